//! Active health checks of the proxy.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::Shared;

const CHECK: &str = "http://127.0.0.1/grpc.health.v1.Health/Check";
/// The encoded response of a member that serves: the five-byte prefix and `status: SERVING`.
const SERVING: &[u8] = &[0, 0, 0, 0, 2, 8, 1];

/// Checks all members at this interval until aborted.
pub(super) async fn run(shared: Arc<Shared>, interval: Duration) {
    loop {
        let next = Instant::now() + interval;
        let mut checks = JoinSet::new();
        for member in 0..shared.upstreams.len() {
            let shared = shared.clone();
            checks.spawn(async move {
                let checked = timeout(interval, is_serving(&shared, member)).await;
                let healthy = checked.is_ok_and(|serving| serving == Some(true));
                shared.upstreams.set_health(member, healthy).await;
            });
        }
        while checks.join_next().await.is_some() {}
        sleep_until(next).await;
    }
}

async fn is_serving(shared: &Shared, member: usize) -> Option<bool> {
    let (mut requests, _connection) = shared.upstreams.connect(member).await?;
    let request = Request::post(CHECK)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .expect("a valid request");
    let (response, mut body) = requests.send_request(request, false).ok()?;
    let empty_message = Bytes::from_static(&[0; 5]);
    body.send_data(empty_message, true).ok()?;
    let data = response.await.ok()?.into_body().data().await?.ok()?;
    Some(data == SERVING)
}
