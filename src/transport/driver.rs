//! Drives an HTTP/2 connection on the client's thread, with its pings.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::time::{Instant, Sleep, sleep_until};

use super::{
    pinger::Pinger,
    shared_connection::{CHECK_INTERVAL, SharedConnection},
};

/// Drives a connection until it ends. Dropping the driver closes the connection at once.
pub(crate) struct Driver {
    connection: Arc<SharedConnection>,
    pinger: Option<Pinger>,
    /// Timer of the next check while callers drive the connection.
    next_check: Option<Pin<Box<Sleep>>>,
}

impl Driver {
    pub(super) fn new(connection: Arc<SharedConnection>, pinger: Option<Pinger>) -> Self {
        Self {
            connection,
            pinger,
            next_check: None,
        }
    }

    /// Checks the driver on the runtime of the callers, if there is one, when it is time.
    fn poll_checks(&mut self, cx: &mut Context<'_>) {
        if !self.connection.is_driven_by_callers() {
            self.next_check = None;
            return;
        }
        let next = || Instant::now() + CHECK_INTERVAL;
        let timer = self
            .next_check
            .get_or_insert_with(|| Box::pin(sleep_until(next())));
        let mut is_due = self.connection.has_lost_its_driver();
        while timer.as_mut().poll(cx).is_ready() {
            timer.as_mut().reset(next());
            is_due = true;
        }
        if is_due {
            self.connection.check(cx);
        }
    }
}

impl Future for Driver {
    /// Reason why the connection ended.
    type Output = String;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<String> {
        let polled = self.connection.poll_as_client(cx);
        self.poll_checks(cx);
        if let Some(pinger) = &mut self.pinger {
            pinger.slow_down_if_requested();
        }
        if polled.is_ready() {
            return polled;
        }
        match &mut self.pinger {
            Some(pinger) => pinger.poll(cx),
            None => Poll::Pending,
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.connection.close();
    }
}
