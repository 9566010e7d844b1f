//! Follows a member's gRPC health service.

use crate::{
    proto::{
        health::{HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus},
        rpc,
    },
    transport::channel::{Channel, Metadata},
};

/// Smallest limit of concurrent streams at which the health service gets a stream. Below it, calls need the streams
/// more, and probes detect most of what the health service reports.
const MIN_STREAM_LIMIT: usize = 16;

/// Calls `on_change` whenever the member reports whether it is serving. Returns if the member has no health service, or
/// allows fewer than [`MIN_STREAM_LIMIT`] streams.
pub(super) async fn watch_serving(channel: Channel, metadata: Metadata, on_change: impl Fn(bool)) {
    if channel
        .stream_limit()
        .is_some_and(|limit| limit < MIN_STREAM_LIMIT)
    {
        return;
    }
    let monitor = channel.monitor();
    let stream = channel
        .stream::<HealthCheckRequest, HealthCheckResponse>(rpc::HEALTH_WATCH.path, &metadata);
    let Ok((mut request, mut responses)) = stream else {
        return;
    };
    // A channel keeps the connection open, but this task must not.
    drop(channel);
    if request.send(&HealthCheckRequest::default()).is_err() {
        return;
    }
    request.finish();
    loop {
        let response = tokio::select! {
            response = responses.next() => response,
            () = monitor.stream_limit_below(MIN_STREAM_LIMIT) => break,
        };
        let Ok(Some(response)) = response else { break };
        on_change(response.status() != ServingStatus::NotServing);
    }
    // Without the stream, the end of "not serving" would never be reported.
    on_change(true);
}
