//! Failures of requests that no caller waits for.

use std::{any::Any, fmt, sync::Arc};

use actix::{Message, Recipient};
use tokio::sync::Semaphore;

use super::EtcdRequest;
use crate::{client::Client, error::Error};

/// Largest number of failures that wait for a slow subscriber. Others are only logged.
const MAX_WAITING_FAILURES: usize = 1024;

/// A request without a waiting caller failed.
#[derive(Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub struct RequestFailed {
    /// Name of the request, such as `Put`.
    pub name: &'static str,
    /// Why it failed.
    pub error: Error,
    request: Box<dyn Any + Send>,
}

impl RequestFailed {
    /// Creates a failure, for tests of a subscriber.
    pub fn new<R: EtcdRequest<Client>>(request: R, error: Error) -> Self {
        Self {
            name: request.name(),
            error,
            request: Box::new(request),
        }
    }

    /// Returns the request if it has this type: `failed.request::<Put>()`.
    pub fn request<R: EtcdRequest<Client>>(&self) -> Option<&R> {
        self.request.downcast_ref()
    }
}

impl fmt::Debug for RequestFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestFailed")
            .field("name", &self.name)
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

/// Sends failures to the subscriber, or logs them.
#[derive(Clone)]
pub(super) struct FailureReporter {
    subscriber: Option<Recipient<RequestFailed>>,
    waiting: Arc<Semaphore>,
}

impl Default for FailureReporter {
    fn default() -> Self {
        Self {
            subscriber: None,
            waiting: Arc::new(Semaphore::new(MAX_WAITING_FAILURES)),
        }
    }
}

impl FailureReporter {
    pub(super) fn set_subscriber(&mut self, subscriber: Recipient<RequestFailed>) {
        self.subscriber = Some(subscriber);
    }

    /// Sends a failure to the subscriber and waits until it was handled. Logs it if there is no subscriber, or if too
    /// many failures wait already.
    pub(super) async fn report<R: EtcdRequest<Client>>(&self, request: R, error: Error) {
        let failed = RequestFailed::new(request, error);
        let (name, error) = (failed.name, failed.error.clone());
        if let Some(subscriber) = &self.subscriber
            && let Ok(_waiting) = self.waiting.try_acquire()
        {
            tracing::debug!(request = name, %error, "request failed");
            if subscriber.send(failed).await.is_err() {
                tracing::warn!(request = name, %error, "cannot deliver the failure of a request");
            }
            return;
        }
        tracing::warn!(request = name, %error, "request without a waiting caller failed");
    }
}
