//! Waiting for mirrors, with a timeout.

use actix_etcd::{
    Client, Error,
    layers::mirror::{Mirror, MirrorEnd},
};
use tokio::time::timeout;

use crate::support::wait::TEST_TIMEOUT;

/// Waits until the mirror has applied everything that is in the source now.
pub async fn catch_up(mirror: &Mirror, source: &Client) {
    let revision = source.get("app/").await.unwrap().header.revision;
    let applied = timeout(TEST_TIMEOUT, mirror.applied(revision)).await;
    applied.expect("the mirror is stuck").unwrap();
}

/// Waits until the mirror ends with an error, and returns it.
pub async fn failure(mirror: &Mirror) -> Error {
    let end = timeout(TEST_TIMEOUT, mirror.ended()).await;
    match end.expect("the mirror did not end") {
        MirrorEnd::Failed(error) => error,
        other => panic!("{other:?}"),
    }
}
