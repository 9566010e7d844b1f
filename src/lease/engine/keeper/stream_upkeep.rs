//! Opens, checks and ends keepalive streams.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use actix::{AsyncContext, Context};

use super::{KeeperActor, messages::OnceRenewal};
use crate::{
    connection::Connection,
    connection::token::Token,
    error::{Error, ErrorKind, Outcome},
    lease::engine::{
        clock::now,
        keepalive_route::PENALTY,
        keepalive_stream::KeepAliveStream,
        kept_leases::QueuedKeepAlive,
        lease_actor::{KeepAliveDenied, KeepAliveDue, KeepAliveFailed},
    },
    retry::{RetryDecision, decision::remedy},
};

/// How long the member of a silent stream is suspect.
const SUSPICION: Duration = Duration::from_secs(2);
/// Maximum time to wait for a new token.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(5);

impl KeeperActor {
    pub(super) fn stream_mut(&mut self, number: u64) -> Option<&mut KeepAliveStream> {
        let mut streams = self.streams.iter_mut();
        streams.find(|stream| stream.number == number)
    }

    /// Returns the index of the stream on a connection. Opens one if there is none.
    pub(super) fn stream_on(
        &mut self,
        connection: &Arc<Connection>,
        ctx: &mut Context<Self>,
        now: Instant,
    ) -> Option<usize> {
        let token = self.caller.context.token.load();
        let open = self.streams.iter().position(|stream| {
            // A stream keeps the token it was opened with. It is replaced before that token expires.
            stream.is_on(connection) && stream.token.generation == token.generation
        });
        if open.is_some() {
            return open;
        }
        let token = Token::clone(&token);
        let number = self.next_stream;
        self.next_stream += 1;
        let keeper = ctx.address().downgrade();
        match KeepAliveStream::open(number, connection, token, keeper, now) {
            Ok(stream) => {
                self.streams.push(stream);
                Some(self.streams.len() - 1)
            }
            Err(error) => {
                let penalty = self.penalties.insert(connection.id, now + PENALTY);
                // Repeated at short intervals while the connection allows no more streams.
                if penalty.is_none_or(|until| until <= now) {
                    tracing::warn!(%error, "failed to open a keepalive stream");
                }
                None
            }
        }
    }

    /// Closes idle streams. Also closes streams without keepalives in flight that get no new ones: streams on
    /// connections that are not ready, which they would keep open, and streams with an old token.
    pub(super) fn close_unused_streams(&mut self, ready: &[Arc<Connection>], now: Instant) {
        let token = self.caller.context.token.load().generation;
        let mut index = 0;
        while let Some(stream) = self.streams.get(index) {
            let is_ready = ready.iter().any(|connection| stream.is_on(connection));
            let is_used = is_ready && stream.token.generation == token;
            if stream.idle_at() <= now || (!is_used && !stream.has_in_flight()) {
                self.streams.swap_remove(index).finish();
            } else {
                index += 1;
            }
        }
    }

    /// Ends the stream of a keepalive that timed out, if that stream is silent for all leases.
    pub(super) fn reset_silent_stream(&mut self, keepalive: &QueuedKeepAlive, now: Instant) {
        let Some(last) = self.last_keepalive(keepalive) else {
            return;
        };
        let silent = self
            .stream_mut(last.stream)
            .filter(|stream| stream.is_silent(keepalive.response_timeout, now));
        let Some(connection) = silent.map(|stream| stream.connection.clone()) else {
            return;
        };
        tracing::debug!(endpoint = %connection.endpoint, "keepalive stream is silent");
        let until = now + SUSPICION;
        self.suspicions.push((until, connection.suspect()));
        self.leases.schedule_stream_check(until);
        self.end_stream(last.stream, None);
    }

    /// Wakes the actors of leases whose response is late, removes outdated penalties, suspicions and streams, and
    /// schedules the next check.
    pub(super) fn check_streams(&mut self, now: Instant) {
        self.suspicions.retain(|(until, _)| *until > now);
        self.penalties.retain(|_, until| *until > now);
        let ready = self.caller.ready_set.load().ready.clone();
        self.close_unused_streams(&ready, now);
        let abandoned = self
            .streams
            .iter()
            .filter(|stream| stream.has_abandoned(now));
        let abandoned: Vec<_> = abandoned.map(|stream| stream.number).collect();
        for stream in abandoned {
            self.end_stream(stream, None);
        }
        let idle = self.streams.iter().map(KeepAliveStream::idle_at);
        let suspected = self.suspicions.iter().map(|(until, _)| *until);
        let mut next = idle.chain(suspected).min();
        for keepalive in self.streams.iter().flat_map(KeepAliveStream::in_flight) {
            let Some(slot) = keepalive.slot else { continue };
            let late_at = self.leases.with(slot, |kept| {
                // A keepalive that the lease's actor sent has a timer of its own.
                if kept.deadline.in_flight_since() != Some(keepalive.sent_at) {
                    return None;
                }
                let late_at = keepalive.sent_at + kept.deadline.response_timeout();
                if late_at <= now {
                    kept.actor.do_send(KeepAliveDue);
                    return None;
                }
                Some(late_at)
            });
            next = next.into_iter().chain(late_at.flatten()).min();
        }
        if let Some(next) = next {
            self.leases.schedule_stream_check(next);
        }
    }

    /// Removes a stream and fails the keepalives in flight on it, so that their leases use another member at once.
    pub(super) fn end_stream(&mut self, number: u64, error: Option<&Error>) {
        let mut streams = self.streams.iter();
        let Some(index) = streams.position(|stream| stream.number == number) else {
            return;
        };
        let stream = self.streams.swap_remove(index);
        let (endpoint, connection) = (stream.endpoint(), stream.connection.clone());
        self.penalties.insert(endpoint, now() + PENALTY);
        if let Some(error) = error {
            tracing::debug!(endpoint = %connection.endpoint, %error, "keepalive stream ended");
            if error.kind() == ErrorKind::NoLeader {
                connection.request_probe();
            } else if remedy(error.kind()) == RetryDecision::RenewToken
                && !self
                    .caller
                    .tokens
                    .is_members_fault(endpoint, &stream.token, error.kind())
            {
                self.penalties.remove(&endpoint);
                self.renew_token(stream.token.clone(), error.kind());
            }
        }
        let mut failed = stream.reset();
        // A member handles keepalives in order, so an error belongs to the oldest one in flight.
        if let Some(error) = error.filter(|error| error.kind() == ErrorKind::PermissionDenied)
            && let Some(denied) = failed.pop_front()
        {
            self.penalties.remove(&endpoint);
            if let Some(slot) = denied.slot {
                self.leases
                    .with(slot, |kept| kept.actor.do_send(KeepAliveDenied));
            }
            self.respond_once(denied.lease, &Err(error.clone()));
        }
        for keepalive in failed {
            if let Some(slot) = keepalive.slot {
                self.leases.with(slot, |kept| {
                    if kept.last_keepalive.stream == number {
                        let sent_at = keepalive.sent_at;
                        kept.actor.do_send(KeepAliveFailed { sent_at });
                    }
                });
            }
            if !self.once_waiters.is_empty() {
                let error = error.cloned().unwrap_or_else(no_response);
                self.respond_once(keepalive.lease, &Err(error));
            }
        }
    }

    /// Requests a new token. A stream keeps the token it was opened with; the next stream uses the new one.
    fn renew_token(&self, rejected: Token, reason: ErrorKind) {
        let tokens = self.caller.tokens.clone();
        actix_rt::spawn(async move {
            let deadline = tokio::time::Instant::now() + TOKEN_TIMEOUT;
            if let Err(error) = tokens.renewed(&rejected, reason, deadline).await {
                tracing::warn!(%error, "failed to renew the token for keepalives");
            }
        });
    }

    /// Responds to the callers that wait for one keepalive of a lease.
    pub(super) fn respond_once(&mut self, lease: i64, response: &Result<OnceRenewal, Error>) {
        if let Some(waiters) = self.once_waiters.remove(&lease) {
            for sender in waiters.senders {
                let _ = sender.send(response.clone());
            }
        }
    }
}

fn no_response() -> Error {
    Error::new(
        ErrorKind::MemberUnresponsive,
        Outcome::Unknown,
        "the member did not respond to keepalives",
    )
}
