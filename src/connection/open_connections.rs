//! Counts the open connections of a client, and closes all of them at the end of a shutdown.

use tokio::sync::watch;

/// The open connections of a client: those in use, those that finish their last requests, and attempts to connect.
#[derive(Debug)]
pub(crate) struct OpenConnections {
    state: watch::Sender<OpenCount>,
}

#[derive(Debug, Default)]
struct OpenCount {
    open: usize,
    must_close: bool,
}

/// One open connection.
pub(super) struct OpenConnection(watch::Sender<OpenCount>);

impl OpenConnections {
    pub(crate) fn new() -> Self {
        Self {
            state: watch::Sender::default(),
        }
    }

    /// Counts a connection until the returned guard is dropped.
    pub(super) fn add(&self) -> OpenConnection {
        self.state.send_modify(|state| state.open += 1);
        OpenConnection(self.state.clone())
    }

    /// Closes all connections at once, with their requests in flight, and all later ones.
    pub(crate) fn close_all(&self) {
        self.state.send_modify(|state| state.must_close = true);
    }

    /// Waits until no connection is open.
    pub(crate) async fn all_closed(&self) {
        let mut state = self.state.subscribe();
        // Never fails: `self` holds the sender.
        let _ = state.wait_for(|state| state.open == 0).await;
    }
}

impl OpenConnection {
    /// Waits until the connection has to close at once.
    pub(super) async fn must_close(&self) {
        let mut state = self.0.subscribe();
        let _ = state.wait_for(|state| state.must_close).await;
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.send_modify(|state| state.open -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_closed_waits_for_every_guard() {
        let connections = OpenConnections::new();
        let (first, second) = (connections.add(), connections.add());
        let mut all_closed = std::pin::pin!(connections.all_closed());
        drop(first);
        tokio::select! {
            biased;
            () = &mut all_closed => panic!("one connection is open"),
            () = tokio::task::yield_now() => {}
        }
        connections.close_all();
        second.must_close().await;
        drop(second);
        all_closed.await;
    }
}
