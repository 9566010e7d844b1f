//! Follows a member's gRPC health service.

use crate::{
    proto::{
        health::{HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus},
        rpc,
    },
    transport::channel::{Channel, Metadata},
};

/// Calls `on_change` whenever the member reports whether it is serving. Returns if the member has no health service.
pub(super) async fn watch_serving(channel: Channel, metadata: Metadata, on_change: impl Fn(bool)) {
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
    while let Ok(Some(response)) = responses.next().await {
        on_change(response.status() != ServingStatus::NotServing);
    }
    // Without the stream, the end of "not serving" would never be reported.
    on_change(true);
}
