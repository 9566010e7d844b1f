//! The request to stop a mirror.

use tokio::sync::watch;

use super::MirrorEnd;

/// Set by [`Mirror::stop`](super::Mirror::stop).
#[derive(Debug, Clone)]
pub(super) struct StopMirror(pub(super) watch::Receiver<bool>);

impl StopMirror {
    pub(super) fn is_requested(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the mirror is requested to stop.
    pub(super) async fn requested(&self) {
        if self.0.clone().wait_for(|stop| *stop).await.is_err() {
            // The handle was dropped, which drops this future as well.
            std::future::pending::<()>().await;
        }
    }

    /// Runs work until it is done. Fails if the mirror is requested to stop before.
    pub(super) async fn unless_requested<T, E>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E>
    where
        E: From<MirrorEnd>,
    {
        tokio::select! {
            biased;
            result = work => result,
            () = self.requested() => Err(MirrorEnd::Stopped.into()),
        }
    }

    /// Waits until the handle is dropped without a request to stop.
    pub(super) async fn handle_dropped(&self) {
        let mut stop = self.0.clone();
        while stop.changed().await.is_ok() {}
        if *stop.borrow() {
            std::future::pending::<()>().await;
        }
    }
}
