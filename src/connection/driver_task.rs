//! The task that drives one HTTP/2 connection.

use std::future::Future;

use super::open_connections::OpenConnection;
use crate::{
    runtime::abort_on_drop::AbortOnDrop,
    transport::{channel::ChannelMonitor, driver::Driver},
};

/// An event of a driven connection.
pub(super) enum DriverEvent {
    /// The connection accepts no more requests; those in flight may still finish.
    ClosedToRequests,
    /// The connection ended, with the reason.
    Ended(String),
}

/// Task that drives a connection. Dropping it closes the connection at once.
pub(super) struct DriverTask(AbortOnDrop);

impl DriverTask {
    pub(super) fn spawn(
        driver: Driver,
        monitor: ChannelMonitor,
        open: OpenConnection,
        on_event: impl Fn(DriverEvent) + 'static,
    ) -> Self {
        Self(AbortOnDrop::spawn(async move {
            let mut driver = std::pin::pin!(driver);
            let ended = async {
                tokio::select! {
                    biased;
                    reason = &mut driver => reason,
                    () = monitor.closed_to_requests() => {
                        on_event(DriverEvent::ClosedToRequests);
                        driver.await
                    }
                }
            };
            let reason = tokio::select! {
                biased;
                reason = ended => reason,
                () = open.must_close() => "the client was shut down".to_owned(),
            };
            on_event(DriverEvent::Ended(reason));
        }))
    }

    pub(super) fn has_ended(&self) -> bool {
        self.0.is_finished()
    }

    /// Lets the requests in flight finish. The returned future resolves when the connection is closed; dropping it does
    /// not close the connection.
    pub(super) fn finish(self) -> impl Future<Output = ()> + 'static {
        self.0.finish()
    }
}
