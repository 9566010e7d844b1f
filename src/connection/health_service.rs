//! Follows a member's gRPC health service.

use crate::{
    proto::health::{
        HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    },
    transport::channel::{Channel, Metadata},
};

const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";

/// Calls `on_change` whenever the member reports whether it is serving. Returns if the member has no health service.
pub(super) async fn watch_serving(channel: Channel, metadata: Metadata, on_change: impl Fn(bool)) {
    let stream = channel.stream::<HealthCheckRequest, HealthCheckResponse>(HEALTH_WATCH, &metadata);
    let Ok((mut request, mut responses)) = stream else {
        return;
    };
    // A channel keeps the connection open, which must close when its last caller has dropped it.
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
