//! Tokens and permissions of maintenance requests. etcd 3.4 and 3.5 return their errors with the code `Unknown`.

use actix_etcd::{Client, ErrorKind, Result, kv::put};
use testbed::Cluster;

use crate::support::auth_cluster::{connect_as, connect_as_root, start_with_auth};

const RELEASES: [&str; 2] = ["3.4", "3.5"];

const NAMES: [&str; 4] = ["snapshot", "defragment", "hash", "hash_kv"];

async fn request(etcd: &Client, name: &str) -> Result<()> {
    let maintenance = etcd.maintenance();
    match name {
        "snapshot" => maintenance.snapshot().await.map(drop),
        "defragment" => maintenance.defragment().await.map(drop),
        "hash" => maintenance.hash().await.map(drop),
        "hash_kv" => maintenance.hash_kv(0).await.map(drop),
        _ => unreachable!("unknown request {name}"),
    }
}

#[tokio::test]
async fn maintenance_request_renews_lost_token() {
    for version in RELEASES {
        let cluster = start_with_auth(Cluster::builder().version(version)).await;
        let mut clients = Vec::new();
        for name in NAMES {
            clients.push((name, connect_as_root(&cluster).await));
        }
        // A restarted member has lost its simple tokens.
        cluster.member(0).restart().await;
        for (name, etcd) in clients {
            if let Err(error) = request(&etcd, name).await {
                panic!("{name} on {version}: {error:?}");
            }
        }
    }
}

#[tokio::test]
async fn denied_maintenance_request_has_its_kind() {
    for version in RELEASES {
        let cluster = Cluster::builder().version(version).start().await;
        cluster.add_user("ann", "word", Some("ann/")).await;
        cluster.enable_auth("root", "secret").await;
        let ann = connect_as(&cluster, "ann", "word").await;
        put("ann/k", "v").on(&ann).await.unwrap();
        let anonymous = Client::connect(cluster.endpoints()).await.unwrap();
        for name in NAMES {
            let denied = request(&ann, name).await.unwrap_err();
            assert_eq!(
                denied.kind(),
                ErrorKind::PermissionDenied,
                "{name} on {version}"
            );
            let no_user = request(&anonymous, name).await.unwrap_err();
            assert_eq!(no_user.kind(), ErrorKind::UserEmpty, "{name} on {version}");
        }
    }
}
