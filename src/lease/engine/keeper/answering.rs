//! What streams say: answers, refusals, and their end.

use std::time::Duration;

use actix::{Context, Handler};

use super::KeeperActor;
use crate::{
    auth::engine::Token,
    error::{Error, ErrorKind, Outcome},
    lease::engine::{
        Acked, Answered, Denied, StreamBroken, StreamEnded, actor::now, route::PENALTY,
    },
    retry::table::{Passing, passing},
};

/// How long a new token may take.
const TOKEN_PATIENCE: Duration = Duration::from_secs(5);

impl KeeperActor {
    /// A stream that ends takes what is in flight on it along: those leases ask another member at once.
    pub(super) fn end_stream(&mut self, number: u64, error: Option<&Error>) {
        let mut streams = self.streams.iter();
        let Some(place) = streams.position(|stream| stream.number == number) else {
            return;
        };
        let stream = self.streams.swap_remove(place);
        let (endpoint, connection) = (stream.endpoint(), stream.connection.clone());
        self.penalties.insert(endpoint, now() + PENALTY);
        if let Some(error) = error {
            tracing::debug!(endpoint = %connection.endpoint, %error, "a keepalive stream ended");
            if error.kind() == ErrorKind::NoLeader {
                connection.request_probe();
            } else if passing(error.kind()) == Passing::WithToken {
                self.penalties.remove(&endpoint);
                self.renew_token(stream.token.clone(), error.kind());
            }
        }
        let mut owed = stream.give_up();
        // Keepalives are handled one by one, so a refusal means the first that was not answered.
        if let Some(error) = error.filter(|error| error.kind() == ErrorKind::PermissionDenied)
            && let Some(refused) = owed.pop_front()
        {
            self.penalties.remove(&endpoint);
            let actor = refused.place.and_then(|place| self.lane.actor(place));
            if let Some(actor) = actor {
                actor.do_send(Denied);
            }
            self.answer_once(refused.lease, &Err(error.clone()));
        }
        for owed in owed {
            if let Some(place) = owed.place {
                self.lane.kept(place, |kept| {
                    if kept.asked.stream == number {
                        let sent_at = owed.sent_at;
                        kept.actor.do_send(StreamBroken { sent_at });
                    }
                });
            }
            if !self.once.is_empty() {
                let broken = error.cloned().unwrap_or_else(unanswered);
                self.answer_once(owed.lease, &Err(broken));
            }
        }
    }

    /// A stream keeps the token it was opened with: the next one is opened with the new token.
    fn renew_token(&self, refused: Token, why: ErrorKind) {
        let tokens = self.caller.tokens.clone();
        actix_rt::spawn(async move {
            let deadline = tokio::time::Instant::now() + TOKEN_PATIENCE;
            if let Err(error) = tokens.renewed(&refused, why, deadline).await {
                tracing::warn!(%error, "no new token for keepalives yet");
            }
        });
    }

    fn answer_once(&mut self, lease: i64, answer: &Result<i64, Error>) {
        if let Some(once) = self.once.remove(&lease) {
            for waiting in once.waiting {
                let _ = waiting.send(answer.clone());
            }
        }
    }
}

fn unanswered() -> Error {
    Error::new(
        ErrorKind::MemberUnresponsive,
        Outcome::Unknown,
        "keepalives are not answered",
    )
}

impl Handler<Answered> for KeeperActor {
    type Result = ();

    fn handle(&mut self, answered: Answered, ctx: &mut Context<Self>) {
        let now = now();
        let lane = self.lane.clone();
        for (lease, ttl) in answered.answers {
            let Some(stream) = self.stream(answered.stream) else {
                return;
            };
            // Who was passed over waits as long as for any answer, and asks another member.
            let owed = stream.answered(lease, now, |passed| {
                if let Some(place) = passed.place {
                    lane.wake_in_time(place);
                }
            });
            let Some(owed) = owed else { continue };
            if let Some(place) = owed.place
                && !lane.renew(place, ttl, owed.sent_at, now)
                && let Some(actor) = lane.actor(place)
            {
                let sent_at = owed.sent_at;
                actor.do_send(Acked { ttl, sent_at });
            }
            if !self.once.is_empty() {
                self.answer_once(lease, &Ok(ttl));
            }
        }
        self.rearm(ctx);
    }
}

impl Handler<StreamEnded> for KeeperActor {
    type Result = ();

    fn handle(&mut self, ended: StreamEnded, _: &mut Context<Self>) {
        self.end_stream(ended.stream, ended.error.as_ref());
    }
}
