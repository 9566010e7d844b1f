//! Snapshots of real members, and of scripted members that fail during the transfer.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use actix_etcd::{Client, ErrorKind, balancer::Pinned, proto::SnapshotResponse};
use serde_json::Value;
use sha2::{Digest, Sha256};
use testbed::{Cluster, Reply, ScriptedServer};

use crate::support::{
    etcdctl::{etcdctl, etcdutl},
    skipped_check::report_skipped,
    wait::TEST_TIMEOUT,
};

const SNAPSHOT: &str = "/etcdserverpb.Maintenance/Snapshot";

/// A temporary folder, removed on drop.
struct TempFolder(PathBuf);

impl TempFolder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("snapshot-{:016x}", random_number()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn files(&self) -> Vec<String> {
        let files = fs::read_dir(&self.0).unwrap();
        files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect()
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn random_number() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}

/// Checks the checksum, the number of keys and the revision of a snapshot with etcdutl.
fn assert_accepted(path: &Path, expected: (u64, i64)) {
    let path = path.to_str().unwrap();
    if let Some(printed) = etcdutl(&["snapshot", "status", path, "--write-out=json"]) {
        let status: Value = serde_json::from_str(&printed).unwrap();
        let (keys, revision) = expected;
        assert_eq!(status["revision"], revision, "{status}");
        assert!(status["totalKey"].as_u64() >= Some(keys), "{status}");
    }
}

async fn start_filled(members: usize) -> (Cluster, Client) {
    fill(Cluster::start(members).await).await
}

async fn fill(cluster: Cluster) -> (Cluster, Client) {
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    for key in 0..64 {
        let value = vec![b'v'; 64 << 10];
        etcd.put(format!("k/{key}"), value).await.unwrap();
    }
    (cluster, etcd)
}

#[tokio::test]
async fn snapshot_file_is_complete_and_private() {
    let (_cluster, etcd) = start_filled(1).await;
    let folder = TempFolder::new();
    let path = folder.0.join("backup.db");
    let reports = Arc::new(Mutex::new(Vec::new()));
    let recorded = reports.clone();
    let saved = etcd
        .maintenance()
        .snapshot_to(&path)
        .progress(move |progress| recorded.lock().unwrap().push(progress))
        .await
        .unwrap();
    assert_eq!(folder.files(), ["backup.db"]);
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the snapshot contains password hashes");
    let bytes = fs::read(&path).unwrap();
    assert_eq!(saved.size, bytes.len() as u64);
    assert!(bytes.len() > 4 << 20);
    let (data, hash) = bytes.split_at(bytes.len() - 32);
    assert_eq!(&Sha256::digest(data)[..], hash);
    let reports = reports.lock().unwrap().clone();
    assert!(
        reports
            .windows(2)
            .all(|pair| pair[0].received < pair[1].received)
    );
    let last = reports.last().unwrap();
    assert_eq!((last.received, last.total), (saved.size, saved.size));
    let revision = etcd.get("k/0").await.unwrap().header.revision;
    assert_accepted(&path, (64, revision));
    // An existing file is replaced.
    etcd.maintenance().snapshot_to(&path).await.unwrap();
    assert_eq!(folder.files(), ["backup.db"]);
}

#[tokio::test]
async fn cluster_is_restored_from_snapshot() {
    // Other server versions do not start with the data folder that etcdctl 3.4 creates.
    match etcdctl(&["version"]) {
        Some(version) if version.contains("version: 3.4.") => {}
        Some(version) => return report_skipped(&format!("etcdctl is not 3.4: {version}")),
        None => return,
    }
    let release = Cluster::builder().version("3.4");
    let (_cluster, etcd) = fill(release.clone().start().await).await;
    let folder = TempFolder::new();
    let path = folder.0.join("backup.db");
    etcd.maintenance().snapshot_to(&path).await.unwrap();
    let restored = release.start().await;
    let member = restored.member(0);
    member.stop().await;
    fs::remove_dir_all(member.data_folder()).unwrap();
    let peer = member.peer_url();
    etcdctl(&[
        "snapshot",
        "restore",
        path.to_str().unwrap(),
        &format!("--data-dir={}", member.data_folder().display()),
        &format!("--name={}", member.name()),
        &format!("--initial-cluster={}={peer}", member.name()),
        &format!("--initial-advertise-peer-urls={peer}"),
    ]);
    restored.start_all().await;
    let etcd = Client::connect(restored.endpoints()).await.unwrap();
    let found = etcd.get("k/").prefix().await.unwrap();
    assert_eq!(found.kvs.len(), 64);
    assert!(found.kvs.iter().all(|kv| kv.value == vec![b'v'; 64 << 10]));
}

#[tokio::test]
async fn snapshot_is_read_as_stream() {
    let (_cluster, etcd) = start_filled(1).await;
    let mut snapshot = etcd.maintenance().snapshot().await.unwrap();
    let mut length = 0;
    while let Some(bytes) = snapshot.next().await {
        length += bytes.unwrap().len() as u64;
    }
    assert_eq!(snapshot.progress().received, length);
    assert_eq!(snapshot.progress().total, length);
}

#[tokio::test]
async fn snapshot_restarts_after_connection_reset() {
    let (cluster, etcd) = start_filled(3).await;
    let folder = TempFolder::new();
    let path = folder.0.join("backup.db");
    let mut last = 0;
    let restarts = Arc::new(AtomicU32::new(0));
    let (cluster_to_reset, restart_counter) = (cluster.clone(), restarts.clone());
    let saved = etcd
        .maintenance()
        .snapshot_to(&path)
        .progress(move |progress| {
            if last == 0 {
                for member in cluster_to_reset.members() {
                    member.client_link().reset_now();
                }
            } else if progress.received <= last {
                restart_counter.fetch_add(1, Ordering::SeqCst);
            }
            last = progress.received;
        })
        .await
        .unwrap();
    assert!(
        restarts.load(Ordering::SeqCst) > 0,
        "the snapshot did not restart"
    );
    assert_eq!(fs::metadata(&path).unwrap().len(), saved.size);
    assert_eq!(folder.files(), ["backup.db"]);
    let revision = etcd.get("k/0").await.unwrap().header.revision;
    assert_accepted(&path, (64, revision));
}

fn chunk(blob: Vec<u8>, remaining_bytes: u64) -> SnapshotResponse {
    SnapshotResponse {
        remaining_bytes,
        blob: blob.into(),
        ..SnapshotResponse::default()
    }
}

/// Returns a database of one page and its checksum.
fn page_and_checksum() -> (Vec<u8>, Vec<u8>) {
    let page = vec![7; 512];
    let hash = Sha256::digest(&page).to_vec();
    (page, hash)
}

/// Reply with a complete snapshot.
fn snapshot_reply() -> Reply {
    Reply::streaming(|mut sender, _| async move {
        let (page, hash) = page_and_checksum();
        let _ = sender.send(&chunk(page, 0)).await;
        let _ = sender.send(&chunk(hash, 0)).await;
    })
}

#[tokio::test]
async fn broken_snapshot_restarts_on_other_member() {
    for policy in [Pinned::cold(), Pinned::warm()] {
        let members = [ScriptedServer::start().await, ScriptedServer::start().await];
        let endpoints = members.each_ref().map(ScriptedServer::endpoint);
        let first = Arc::new(Mutex::new(None));
        for (member, endpoint) in members.iter().zip(endpoints.clone()) {
            let first = first.clone();
            // The member that gets the first request always fails.
            member.on(SNAPSHOT, move |_| {
                let mut first = first.lock().unwrap();
                if *first.get_or_insert(endpoint.clone()) != endpoint {
                    return snapshot_reply();
                }
                Reply::streaming(|mut sender, _| async move {
                    let _ = sender.send(&chunk(vec![7; 512], u64::MAX)).await;
                    sender.status(14, "etcdserver: server stopped");
                })
            });
        }
        let etcd = Client::builder(endpoints).balance(policy);
        let etcd = etcd.connect().await.unwrap();
        let folder = TempFolder::new();
        let path = folder.0.join("backup.db");
        etcd.maintenance().snapshot_to(&path).await.unwrap();
        let requests = members.each_ref().map(|member| member.count(SNAPSHOT));
        assert_eq!(requests, [1, 1]);
    }
}

/// Reply with a snapshot that stops after its first chunk.
fn stalled_reply() -> Reply {
    Reply::streaming(|mut sender, _| async move {
        let _ = sender.send(&chunk(vec![7; 512], 512)).await;
        sender.closed().await;
    })
}

#[tokio::test]
async fn stalled_snapshot_starts_again() {
    let server = ScriptedServer::start().await;
    server.on(SNAPSHOT, |call| match call.nth {
        0 => stalled_reply(),
        _ => snapshot_reply(),
    });
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let folder = TempFolder::new();
    let saving = etcd.maintenance().snapshot_to(folder.0.join("backup.db"));
    let saving = saving.progress_timeout(Duration::from_millis(300));
    let saved = tokio::time::timeout(TEST_TIMEOUT, saving.into_future()).await;
    assert_eq!(saved.unwrap().unwrap().size, 544);
    assert_eq!(server.count(SNAPSHOT), 2);
}

#[tokio::test]
async fn stalled_snapshot_ends_with_error() {
    let server = ScriptedServer::start().await;
    server.on(SNAPSHOT, |_| stalled_reply());
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let snapshot = etcd.maintenance().snapshot().await.unwrap();
    let mut snapshot = snapshot.progress_timeout(Duration::from_millis(300));
    assert_eq!(snapshot.next().await.unwrap().unwrap().len(), 512);
    let next = tokio::time::timeout(TEST_TIMEOUT, snapshot.next()).await;
    let error = next.unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MemberUnresponsive, "{error}");
    assert!(error.to_string().contains("300ms"), "{error}");
}

#[tokio::test]
async fn wrong_checksum_leaves_no_file() {
    let server = ScriptedServer::start().await;
    server.on(SNAPSHOT, |_| {
        Reply::streaming(|mut sender, _| async move {
            let (page, mut hash) = page_and_checksum();
            hash[3] ^= 1;
            let _ = sender.send(&chunk(page, 0)).await;
            let _ = sender.send(&chunk(hash, 0)).await;
        })
    });
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let folder = TempFolder::new();
    let path = folder.0.join("backup.db");
    let refused = etcd.maintenance().snapshot_to(&path).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Protocol);
    assert!(refused.to_string().contains("checksum"), "{refused}");
    assert!(folder.files().is_empty(), "{:?}", folder.files());
}

#[tokio::test]
async fn cancelled_snapshot_leaves_no_file() {
    let server = ScriptedServer::start().await;
    server.on(SNAPSHOT, |_| {
        Reply::streaming(|mut sender, _| async move {
            let _ = sender.send(&chunk(vec![7; 512], 512)).await;
            sender.closed().await;
        })
    });
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let folder = TempFolder::new();
    let path = folder.0.join("backup.db");
    let saving = etcd.maintenance().snapshot_to(&path).into_future();
    let saved = tokio::time::timeout(Duration::from_millis(300), saving).await;
    assert!(saved.is_err());
    crate::support::wait::until_async("the partial file is removed", async || {
        folder.files().is_empty()
    })
    .await;
}

#[tokio::test]
async fn failure_before_first_byte_is_retried() {
    let server = ScriptedServer::start().await;
    server.on(SNAPSHOT, |call| match call.nth {
        0 => Reply::status(14, "etcdserver: no leader"),
        1 => Reply::status(16, "etcdserver: server stopped"),
        _ => snapshot_reply(),
    });
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let mut snapshot = etcd.maintenance().snapshot().await.unwrap();
    let mut length = 0;
    while let Some(bytes) = snapshot.next().await {
        length += bytes.unwrap().len();
    }
    assert_eq!(length, 544);
}

#[tokio::test]
async fn missing_folder_is_reported() {
    let (_cluster, etcd) = start_filled(1).await;
    let folder = TempFolder::new();
    let path = folder.0.join("missing").join("backup.db");
    let refused = etcd.maintenance().snapshot_to(&path).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::FileFailed);
}
