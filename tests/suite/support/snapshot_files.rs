//! Snapshot files, and clients that start without etcd.

use std::{fs, path::PathBuf, time::Duration};

use actix_etcd::Client;
use testbed::Cluster;

/// A path for the snapshot file of a test. The file is removed with this value.
pub struct FilePath(pub PathBuf);

impl FilePath {
    pub fn new() -> Self {
        let name = format!("actix-etcd-suite-{:016x}.cache", fastrand::u64(..));
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for FilePath {
    fn drop(&mut self) {
        // Fails if the test has written no file.
        let _ = fs::remove_file(&self.0);
    }
}

/// Returns a client with short timeouts that has not reached a member.
pub async fn unconnected_client(cluster: &Cluster) -> Client {
    let builder = Client::builder(cluster.endpoints());
    let builder = builder.request_timeout(Duration::from_millis(500));
    builder.connect_lazy().await.unwrap()
}
