//! How long a client runs: until the application drops its last handle.
//!
//! Clients, sessions, guards, leases and the other handles of the application share one [`ClientLifetime`]. Background
//! work on the client's thread does not hold it: such work ends with the client instead of keeping it running, and the
//! application's last handle can wait for it.

use std::{sync::Arc, time::Duration};

use super::running_client::RunningClient;
use crate::{call::Caller, request::ClientCore, runtime::holders::Holders};

/// Shared by all handles of the application. Dropping it shuts the client down.
pub(crate) struct ClientLifetime {
    running: Arc<RunningClient>,
    /// Longest time that the drop blocks.
    drop_grace: Duration,
}

impl ClientLifetime {
    pub(super) fn new(running: Arc<RunningClient>, drop_grace: Duration) -> Self {
        Self {
            running,
            drop_grace,
        }
    }
}

impl Drop for ClientLifetime {
    fn drop(&mut self) {
        self.running.shut_down_blocking(self.drop_grace);
    }
}

/// For handles that need no [`Client`](super::Client), such as leases.
impl ClientCore for ClientLifetime {
    fn caller(&self) -> &Caller {
        self.running.caller()
    }

    fn request_timeout(&self) -> Duration {
        self.running.request_timeout()
    }

    fn holders(&self) -> &Arc<Holders> {
        self.running.holders()
    }

    fn run(&self, job: Box<dyn FnOnce() + Send>) -> bool {
        self.running.run(job)
    }
}
