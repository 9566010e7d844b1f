//! Admission of requests: from a message to a task that sends the request and returns its response.

use std::sync::Arc;

use actix::{
    Context, Handler,
    dev::{MessageResponse, OneshotSender},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

use super::{Etcd, EtcdRequest, OverloadPolicy, failures::FailureReporter};
use crate::{
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    request::ResponseFuture,
};

impl<R: EtcdRequest<Client>> Handler<R> for Etcd {
    type Result = Admission<R>;

    fn handle(&mut self, request: R, _: &mut Context<Self>) -> Admission<R> {
        Admission {
            request,
            client: self.client(),
            in_flight: self.in_flight.clone(),
            queue: self.queue.clone(),
            overload_policy: self.overload_policy,
            failures: self.failures.clone(),
        }
    }
}

/// A request that is sent, queued or rejected.
///
/// A type with its own [`MessageResponse`], because only `MessageResponse::handle` shows whether a caller waits.
pub struct Admission<R> {
    request: R,
    client: Result<Client>,
    in_flight: Arc<Semaphore>,
    queue: Arc<Semaphore>,
    overload_policy: OverloadPolicy,
    failures: FailureReporter,
}

impl<R: EtcdRequest<Client>> MessageResponse<Etcd, R> for Admission<R> {
    fn handle(self, _: &mut Context<Etcd>, response: Option<OneshotSender<R::Result>>) {
        let response = ResponseSender(response);
        if response.is_cancelled() {
            return;
        }
        let client = match self.client {
            Ok(client) => client,
            Err(error) => return response.fail(self.request, error, self.failures),
        };
        let task = RequestTask {
            request: self.request,
            client,
            failures: self.failures,
        };
        let error = match self.in_flight.clone().try_acquire_owned() {
            Ok(permit) => return task.start(response, permit),
            Err(error) => error,
        };
        let may_wait =
            error == TryAcquireError::NoPermits && self.overload_policy == OverloadPolicy::Queue;
        match self.queue.try_acquire_owned() {
            Ok(place) if may_wait => task.start_later(response, self.in_flight, place),
            _ => response.fail(task.request, overloaded(), task.failures),
        }
    }
}

fn overloaded() -> Error {
    Error::new(
        ErrorKind::Overloaded,
        Outcome::NotSent,
        "the actor `Etcd` has reached its limit of requests",
    )
}

/// A request and the client that sends it.
struct RequestTask<R> {
    request: R,
    client: Client,
    failures: FailureReporter,
}

impl<R: EtcdRequest<Client>> RequestTask<R> {
    fn start(self, response: ResponseSender<R>, permit: OwnedSemaphorePermit) {
        actix_rt::spawn(self.run(response, permit));
    }

    /// Starts when a permit is free, unless the caller cancels the request first.
    fn start_later(
        self,
        mut response: ResponseSender<R>,
        in_flight: Arc<Semaphore>,
        place: OwnedSemaphorePermit,
    ) {
        actix_rt::spawn(async move {
            tokio::select! {
                Ok(permit) = in_flight.acquire_owned() => {
                    drop(place);
                    self.run(response, permit).await;
                }
                () = response.cancelled() => {}
            }
        });
    }

    async fn run(self, mut response: ResponseSender<R>, permit: OwnedSemaphorePermit) {
        let unawaited = (!response.has_caller()).then(|| self.request.clone());
        let request: ResponseFuture<R::Response> = self.request.send_with(&self.client);
        let result = tokio::select! {
            result = request => result,
            () = response.cancelled() => return,
        };
        drop(permit);
        match (unawaited, result) {
            (None, result) => response.send(result),
            (Some(request), Ok(value)) => request.discard(value),
            (Some(request), Err(error)) => self.failures.report(request, error).await,
        }
    }
}

/// Returns the result to the caller, if one waits: `None` for messages sent with `do_send`.
struct ResponseSender<R: EtcdRequest<Client>>(Option<OneshotSender<R::Result>>);

impl<R: EtcdRequest<Client>> ResponseSender<R> {
    fn has_caller(&self) -> bool {
        self.0.is_some()
    }

    /// Whether the caller has dropped the request.
    fn is_cancelled(&self) -> bool {
        self.0.as_ref().is_some_and(OneshotSender::is_closed)
    }

    /// Waits until the caller drops the request; forever if there is no caller.
    async fn cancelled(&mut self) {
        match &mut self.0 {
            Some(sender) => sender.closed().await,
            None => std::future::pending().await,
        }
    }

    fn send(self, result: R::Result) {
        if let Some(sender) = self.0 {
            // Sending fails if the caller has dropped the request; then the result is dropped, too.
            let _ = sender.send(result);
        }
    }

    fn fail(self, request: R, error: Error, failures: FailureReporter) {
        if self.has_caller() {
            self.send(Err(error));
        } else {
            actix_rt::spawn(async move { failures.report(request, error).await });
        }
    }
}
