//! Delivery errors of actix as errors of this crate.

use actix::MailboxError;

use crate::error::{Error, ErrorKind, Outcome};

/// Lets `??` convert both errors of `etcd.send(request).await`. The outcome is [`Outcome::Unknown`], because the actor may
/// have sent the request before it stopped or before the timeout ended.
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

    use actix::{Actor, ActorContext, Context, Handler, ResponseFuture};

    use super::*;
    use crate::{
        error::Result,
        kv::{Get, GetResponse, get},
    };

    /// An actor that never responds to `keep`, and stops at every other key.
    struct Unresponsive;

    impl Actor for Unresponsive {
        type Context = Context<Self>;
    }

    impl Handler<Get> for Unresponsive {
        type Result = ResponseFuture<Result<GetResponse>>;

        fn handle(&mut self, request: Get, ctx: &mut Context<Self>) -> Self::Result {
            if request.wire().unwrap().key != "keep" {
                ctx.stop();
            }
            Box::pin(std::future::pending())
        }
    }

    #[actix::test]
    async fn mailbox_errors_convert_with_unknown_outcome() {
        async fn read(actor: &actix::Addr<Unresponsive>, key: &'static str) -> Result<GetResponse> {
            let timeout = Duration::from_millis(20);
            Ok(actor.send(get(key)).timeout(timeout).await??)
        }
        let actor = Unresponsive.start();
        let timed_out = read(&actor, "keep").await.unwrap_err();
        assert_eq!(timed_out.kind(), ErrorKind::DeadlineExceeded);
        assert_eq!(timed_out.outcome(), Outcome::Unknown);
        let stopped = actor.send(get("stop")).await.unwrap_err();
        let stopped = Error::from(stopped);
        assert_eq!(stopped.kind(), ErrorKind::Shutdown);
        assert_eq!(stopped.outcome(), Outcome::Unknown);
        let closed = read(&actor, "keep").await.unwrap_err();
        assert_eq!(closed.kind(), ErrorKind::Shutdown);
    }
}
