//! From a message to a call: admission, the task, the answer.

use std::sync::Arc;

use actix::{
    Context, Handler,
    dev::{MessageResponse, OneshotSender},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

use super::{Etcd, EtcdRequest, Failures, OverloadPolicy};
use crate::{
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    request::ResponseFuture,
};

impl<R: EtcdRequest<Client>> Handler<R> for Etcd {
    type Result = Serving<R>;

    fn handle(&mut self, request: R, _: &mut Context<Self>) -> Serving<R> {
        Serving {
            request,
            client: self.client(),
            calls: self.calls.clone(),
            waiting: self.waiting.clone(),
            overload_policy: self.overload_policy,
            failures: self.failures.clone(),
        }
    }
}

/// A request that is being admitted.
///
/// An answer of its own kind, as only `MessageResponse` is told whether somebody waits.
pub struct Serving<R> {
    request: R,
    client: Result<Client>,
    calls: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    overload_policy: OverloadPolicy,
    failures: Failures,
}

impl<R: EtcdRequest<Client>> MessageResponse<Etcd, R> for Serving<R> {
    fn handle(self, _: &mut Context<Etcd>, answer: Option<OneshotSender<R::Result>>) {
        let asker = Asker(answer);
        if asker.has_left() {
            return;
        }
        let client = match self.client {
            Ok(client) => client,
            Err(error) => return asker.fail(self.request, error, self.failures),
        };
        let call = Call {
            request: self.request,
            client,
            failures: self.failures,
        };
        let error = match self.calls.clone().try_acquire_owned() {
            Ok(permit) => return call.start(asker, permit),
            Err(error) => error,
        };
        let waits =
            error == TryAcquireError::NoPermits && self.overload_policy == OverloadPolicy::Queue;
        match self.waiting.try_acquire_owned() {
            Ok(place) if waits => call.wait(asker, self.calls, place),
            _ => asker.fail(call.request, overloaded(), call.failures),
        }
    }
}

fn overloaded() -> Error {
    Error::new(
        ErrorKind::Overloaded,
        Outcome::NotSent,
        "the actor `Etcd` has as many calls under way as it may",
    )
}

/// A request that has its client.
struct Call<R> {
    request: R,
    client: Client,
    failures: Failures,
}

impl<R: EtcdRequest<Client>> Call<R> {
    fn start(self, asker: Asker<R>, permit: OwnedSemaphorePermit) {
        actix_rt::spawn(self.run(asker, permit));
    }

    /// Starts when there is room, unless nobody waits for it any more.
    fn wait(self, mut asker: Asker<R>, calls: Arc<Semaphore>, place: OwnedSemaphorePermit) {
        actix_rt::spawn(async move {
            tokio::select! {
                Ok(permit) = calls.acquire_owned() => {
                    drop(place);
                    self.run(asker, permit).await;
                }
                () = asker.left() => {}
            }
        });
    }

    async fn run(self, mut asker: Asker<R>, permit: OwnedSemaphorePermit) {
        let kept = asker.is_nobody().then(|| self.request.clone());
        let call: ResponseFuture<R::Response> = self.request.send_with(&self.client);
        let result = tokio::select! {
            result = call => result,
            () = asker.left() => return,
        };
        drop(permit);
        match (kept, result) {
            (None, result) => asker.answer(result),
            (Some(request), Ok(response)) => request.discard(response),
            (Some(request), Err(error)) => self.failures.tell(request, error).await,
        }
    }
}

/// Who waits for the answer, if anybody does.
struct Asker<R: EtcdRequest<Client>>(Option<OneshotSender<R::Result>>);

impl<R: EtcdRequest<Client>> Asker<R> {
    fn is_nobody(&self) -> bool {
        self.0.is_none()
    }

    /// Whether there was somebody who does not wait any more.
    fn has_left(&self) -> bool {
        self.0.as_ref().is_some_and(OneshotSender::is_closed)
    }

    /// Ends when somebody who waits does not any more.
    async fn left(&mut self) {
        match &mut self.0 {
            Some(answer) => answer.closed().await,
            None => std::future::pending().await,
        }
    }

    fn answer(self, result: R::Result) {
        if let Some(answer) = self.0 {
            // An error is the result itself: the asker has left, and what it was given is dropped.
            let _ = answer.send(result);
        }
    }

    fn fail(self, request: R, error: Error, failures: Failures) {
        if self.is_nobody() {
            actix_rt::spawn(async move { failures.tell(request, error).await });
        } else {
            self.answer(Err(error));
        }
    }
}
