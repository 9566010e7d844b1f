//! The limit of requests that a client has in flight at once.

use std::sync::Arc;

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout_at},
};

use crate::{
    error::{Error, ErrorKind, Outcome},
    proto::rpc::Rpc,
};

/// Limits the requests that a client has in flight at once. The others wait in order of arrival.
#[derive(Debug, Clone)]
pub(crate) struct InFlightLimit {
    free: Arc<Semaphore>,
    max: usize,
}

impl InFlightLimit {
    pub(crate) fn new(max: usize) -> Self {
        let max = max.min(Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(max)),
            max,
        }
    }

    /// Counts a request until the result is dropped. Returns `None` if the limit is reached.
    ///
    /// Blocking RPCs do not count: the response to a lock may depend on a later request of the same client.
    pub(super) fn try_admit(&self, rpc: Rpc) -> Option<InFlight<'_>> {
        if rpc.blocking {
            return Some(InFlight { _permit: None });
        }
        let permit = self.free.try_acquire().ok()?;
        Some(InFlight {
            _permit: Some(permit),
        })
    }

    /// Waits until the request may be sent.
    pub(super) async fn admit(&self, deadline: Instant) -> Result<InFlight<'_>, Error> {
        let Ok(permit) = timeout_at(deadline, self.free.acquire()).await else {
            let reason = format!(
                "{} other requests of this client were in flight until the deadline (`max_in_flight`)",
                self.max
            );
            let kind = ErrorKind::DeadlineExceeded;
            return Err(Error::new(kind, Outcome::NotSent, reason));
        };
        // The semaphore is never closed; an error would mean that there is no limit.
        Ok(InFlight {
            _permit: permit.ok(),
        })
    }
}

/// A request in flight.
#[derive(Debug)]
pub(super) struct InFlight<'a> {
    _permit: Option<SemaphorePermit<'a>>,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::proto::rpc::{PUT, SERVER_LOCK};

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(100)
    }

    #[tokio::test(start_paused = true)]
    async fn request_beyond_the_limit_waits_until_its_deadline() {
        let limit = InFlightLimit::new(1);
        let first = limit.try_admit(PUT).unwrap();
        assert!(limit.try_admit(PUT).is_none());
        let error = limit.admit(soon()).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.outcome()),
            (ErrorKind::DeadlineExceeded, Outcome::NotSent)
        );
        drop(first);
        limit.admit(soon()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_requests_are_admitted_in_order() {
        let limit = InFlightLimit::new(1);
        let first = limit.try_admit(PUT);
        let (sender, mut admitted) = tokio::sync::mpsc::unbounded_channel();
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..10 {
            let (limit, sender) = (limit.clone(), sender.clone());
            tasks.spawn(async move {
                let _permit = limit.admit(soon()).await.unwrap();
                sender.send(number).unwrap();
            });
            tokio::task::yield_now().await;
        }
        drop((first, sender));
        for number in 0..10 {
            assert_eq!(admitted.recv().await, Some(number));
        }
    }

    #[test]
    fn blocking_request_does_not_count() {
        let limit = InFlightLimit::new(1);
        let _lock = limit.try_admit(SERVER_LOCK).unwrap();
        let _put = limit.try_admit(PUT).unwrap();
        assert!(limit.try_admit(SERVER_LOCK).is_some());
        assert!(limit.try_admit(PUT).is_none());
    }
}
