//! Delivery errors of actix as errors of this crate.

use actix::MailboxError;

use crate::error::{Error, ErrorKind, Outcome};

/// Allows `etcd.send(request).await??`. The outcome is [`Outcome::Unknown`], because the actor may have sent the
/// request before it stopped or the timeout ended.
impl From<MailboxError> for Error {
    fn from(error: MailboxError) -> Self {
        let (kind, reason) = match error {
            MailboxError::Closed => (
                ErrorKind::Shutdown,
                "the actor stopped before it returned a response",
            ),
            MailboxError::Timeout => (
                ErrorKind::DeadlineExceeded,
                "the actor returned no response within the timeout of the message",
            ),
        };
        Self::new(kind, Outcome::Unknown, reason).with_source(error)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use actix::{Actor, ActorContext, Addr, Context, Handler, ResponseActFuture, fut::wrap_future};

    use super::*;
    use crate::{
        error::Result,
        kv::{Get, GetResponse, get},
    };

    /// An actor that never responds. It stops at the key `stop`.
    struct Unresponsive;

    impl Actor for Unresponsive {
        type Context = Context<Self>;
    }

    impl Handler<Get> for Unresponsive {
        type Result = ResponseActFuture<Self, Result<GetResponse>>;

        fn handle(&mut self, request: Get, ctx: &mut Context<Self>) -> Self::Result {
            if request.wire().unwrap().key == "stop" {
                ctx.stop();
            }
            Box::pin(wrap_future(std::future::pending()))
        }
    }

    async fn failed_read(actor: &Addr<Unresponsive>, key: &'static str, timeout: u64) -> Error {
        let read = async || -> Result<i64> {
            let timeout = Duration::from_millis(timeout);
            let response = actor.send(get(key)).timeout(timeout).await??;
            Ok(response.count)
        };
        read().await.unwrap_err()
    }

    #[actix::test]
    async fn mailbox_errors_convert_with_unknown_outcome() {
        let actor = Unresponsive.start();
        for (key, timeout, kind) in [
            ("k", 20, ErrorKind::DeadlineExceeded),
            ("stop", 10_000, ErrorKind::Shutdown),
            ("k", 10_000, ErrorKind::Shutdown),
        ] {
            let error = failed_read(&actor, key, timeout).await;
            assert_eq!((error.kind(), error.outcome()), (kind, Outcome::Unknown));
        }
    }
}
