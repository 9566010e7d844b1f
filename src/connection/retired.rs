//! A replaced connection, until its requests in flight have finished.
//!
//! Its member is still probed, so that a request to a silent member, or to one without a leader, ends as on the
//! connection in use.

use std::time::Duration;

use tokio::time::sleep;

use super::{
    Verdict,
    active_connection::ActiveConnection,
    probe::{ProbeResult, probe},
};
use crate::transport::channel::Metadata;

/// Time between two probes.
const PROBE_INTERVAL: Duration = Duration::from_millis(600);

/// Closes a connection when its requests in flight have finished, or when its member does not respond.
pub(super) async fn retire(active: ActiveConnection, metadata: Metadata) {
    // Long-lived streams do not finish by themselves: they stop when the verdict is `Closed`.
    active.set_verdict(Verdict::Closed);
    let ActiveConnection {
        connection,
        driver,
        _health_service: health_service,
        // Held until the connection is closed.
        _membership,
        ..
    } = active;
    // Its stream would keep the connection open for ever.
    drop(health_service);
    loop {
        sleep(PROBE_INTERVAL).await;
        if connection.channel.open_streams() == 0 || driver.has_ended() {
            break;
        }
        let silence = connection.timing.unresponsive_after();
        // The replacement responded, so only this connection can be silent.
        let others_responded = |_| true;
        let probe = probe(
            &connection.channel,
            &metadata,
            silence,
            others_responded,
            |_| {},
        );
        let (verdict, status) = match probe.await.0 {
            ProbeResult::Status(status) if status.leader == 0 => (Verdict::NoLeader, Some(status)),
            ProbeResult::Status(status) => (Verdict::Closed, Some(status)),
            ProbeResult::NoLeader => (Verdict::NoLeader, None),
            ProbeResult::Silent => (Verdict::Unresponsive, None),
            ProbeResult::Alive | ProbeResult::Ignored | ProbeResult::Failed(_) => continue,
        };
        let health = connection.health().updated(verdict, status);
        connection.health.send_replace(health);
        if verdict == Verdict::Unresponsive {
            return;
        }
    }
    drop(connection);
    driver.finish().await;
}
