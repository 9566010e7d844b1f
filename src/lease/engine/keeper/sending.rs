//! Sending keepalives: by which member, on which stream, and what to do when no answer comes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use actix::{AsyncContext, Context, Handler, Message};
use tokio::sync::oneshot;

use super::KeeperActor;
use crate::{
    auth::engine::Token,
    balancer::messages::AwaitReady,
    connection::Connection,
    lease::engine::{
        KeepAliveDue,
        actor::now,
        places::{Asked, Kept, Renewal},
        route::{self, Candidate, PENALTY},
        streams::KeepaliveStream,
    },
};

/// How long a silent member is probed because of us.
const SUSPECTED_FOR: Duration = Duration::from_secs(2);
/// A word with the balancer that failed is tried again after this.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// A member may be ready again.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct MemberReady;

impl KeeperActor {
    /// Sends what leases want to be sent. A keepalive that is routine is known again by its time.
    pub(super) fn send(&mut self, renewals: Vec<Renewal>, now: Instant, ctx: &mut Context<Self>) {
        if renewals.is_empty() || self.closed {
            return;
        }
        for renewal in renewals.iter().filter(|renewal| renewal.elsewhere) {
            self.judge(renewal, now);
        }
        let connections = self.caller.ready.load().ready.clone();
        self.leave_all_but(&connections, now);
        let candidates = self.candidates(&connections);
        let mut patience = None;
        for renewal in renewals {
            let Some(asked) = self.asked(&renewal) else {
                continue;
            };
            if asked.parked {
                continue;
            }
            let avoid = asked.member.filter(|_| renewal.elsewhere);
            let chosen = route::choose(&candidates, renewal.lease, avoid, now)
                .and_then(|place| self.stream_on(&connections[place], ctx, now));
            if let Some(stream) = chosen {
                let stream = &mut self.streams[stream];
                stream.add(&renewal, now);
                let asked = Asked {
                    stream: stream.number,
                    member: Some(stream.endpoint()),
                    parked: false,
                };
                self.note_asked(&renewal, asked);
                patience = patience.into_iter().chain([renewal.patience]).min();
            } else {
                self.park(renewal, asked);
            }
        }
        if let Some(patience) = patience {
            self.lane.make_rounds(now + patience);
        }
        self.flush();
        if !self.parked.is_empty() {
            self.await_ready(ctx);
        }
    }

    fn flush(&mut self) {
        let flushed = self.streams.iter_mut().map(|stream| {
            let result = stream.flush();
            (stream.number, result)
        });
        let failed: Vec<_> = flushed
            .filter_map(|(number, result)| Some((number, result.err()?)))
            .collect();
        for (number, error) in failed {
            self.end_stream(number, Some(&error));
        }
    }

    /// Nobody can be asked: it waits, and its lease hears when its time to wait is over.
    fn park(&mut self, renewal: Renewal, asked: Asked) {
        let parked = Asked {
            parked: true,
            ..asked
        };
        self.note_asked(&renewal, parked);
        if let Some(place) = renewal.place {
            self.lane.wake_in_time(place);
        }
        self.parked.push(renewal);
    }

    /// A lease got no answer in time. Where its stream is silent altogether, it is given up for all.
    fn judge(&mut self, renewal: &Renewal, now: Instant) {
        let Some(asked) = self.asked(renewal) else {
            return;
        };
        let silent = self
            .stream(asked.stream)
            .filter(|stream| stream.is_silent(renewal.patience, now));
        let Some(connection) = silent.map(|stream| stream.connection.clone()) else {
            return;
        };
        tracing::debug!(endpoint = %connection.endpoint, "keepalives are not answered");
        let until = now + SUSPECTED_FOR;
        self.suspicions.push((until, connection.suspect()));
        self.lane.make_rounds(until);
        self.end_stream(asked.stream, None);
    }

    /// What is not done for a lease that is due: calls those whose answer is late, and forgets what is over.
    pub(super) fn make_rounds(&mut self, now: Instant) {
        self.suspicions.retain(|(until, _)| *until > now);
        self.penalties.retain(|_, until| *until > now);
        let ready = self.caller.ready.load().ready.clone();
        self.leave_all_but(&ready, now);
        let idle = self.streams.iter().map(KeepaliveStream::idle_at);
        let suspected = self.suspicions.iter().map(|(until, _)| *until);
        let mut next = idle.chain(suspected).min();
        for owed in self.streams.iter().flat_map(KeepaliveStream::owed) {
            let Some(place) = owed.place else { continue };
            let late = self.lane.kept(place, |kept| {
                if kept.deadline.in_flight_since() != Some(owed.sent_at) {
                    return None;
                }
                let late_at = owed.sent_at + kept.deadline.patience();
                if late_at <= now {
                    kept.actor.do_send(KeepAliveDue);
                    return None;
                }
                Some(late_at)
            });
            next = next.into_iter().chain(late.flatten()).min();
        }
        if let Some(next) = next {
            self.lane.make_rounds(next);
        }
    }

    fn candidates(&self, connections: &[Arc<Connection>]) -> Vec<Candidate> {
        let statuses: Vec<_> = connections
            .iter()
            .map(|connection| connection.health().status)
            .collect();
        let leader = route::leader(statuses.iter().copied().flatten());
        connections
            .iter()
            .zip(&statuses)
            .map(|(connection, status)| Candidate {
                id: connection.id,
                leads: leader.is_some() && status.map(|status| status.member) == leader,
                penalty: self.penalties.get(&connection.id).copied(),
            })
            .collect()
    }

    /// The place of the stream on a connection, opened if there is none.
    fn stream_on(
        &mut self,
        connection: &Arc<Connection>,
        ctx: &mut Context<Self>,
        now: Instant,
    ) -> Option<usize> {
        let token = self.caller.shared.token.load();
        let open = self.streams.iter().position(|stream| {
            // A stream keeps the token it was opened with, and is left before that one ends.
            stream.is_on(connection) && stream.token.generation == token.generation
        });
        if open.is_some() {
            return open;
        }
        let token = Token::clone(&token);
        let number = self.next_stream;
        self.next_stream += 1;
        let keeper = ctx.address().downgrade();
        match KeepaliveStream::open(number, connection, token, keeper, now) {
            Ok(stream) => {
                self.streams.push(stream);
                Some(self.streams.len() - 1)
            }
            Err(error) => {
                tracing::debug!(endpoint = %connection.endpoint, %error, "no keepalive stream");
                self.penalties.insert(connection.id, now + PENALTY);
                None
            }
        }
    }

    /// Leaves connections that are not ready any more: nothing keeps a removed member's open. And streams with an older
    /// token, which nothing is sent on any more.
    fn leave_all_but(&mut self, ready: &[Arc<Connection>], now: Instant) {
        let token = self.caller.shared.token.load().generation;
        let mut place = 0;
        while let Some(stream) = self.streams.get(place) {
            let is_ready = ready.iter().any(|connection| stream.is_on(connection));
            let is_used = is_ready && stream.token.generation == token;
            if stream.idle_at() <= now || (!is_used && stream.owes_nothing()) {
                self.streams.swap_remove(place).finish();
            } else {
                place += 1;
            }
        }
    }

    pub(super) fn await_ready(&mut self, ctx: &mut Context<Self>) {
        if std::mem::replace(&mut self.awaiting, true) {
            return;
        }
        let (ready, told) = oneshot::channel();
        self.caller.balancer.do_send(AwaitReady {
            ready,
            leaderless: false,
        });
        let keeper = ctx.address().downgrade();
        actix_rt::spawn(async move {
            if told.await.is_err() {
                tokio::time::sleep(ASK_AGAIN).await;
            }
            if let Some(keeper) = keeper.upgrade() {
                keeper.do_send(MemberReady);
            }
        });
    }

    /// Where the last keepalive went; `None` if nobody wants one any more: it may have waited for longer than that.
    fn asked(&mut self, renewal: &Renewal) -> Option<Asked> {
        let asked = |kept: &mut Kept| (!kept.deadline.is_ended()).then_some(kept.asked);
        let kept = renewal.place.and_then(|place| self.lane.kept(place, asked));
        if let Some(asked) = kept.flatten() {
            return Some(asked);
        }
        let once = self.once.get(&renewal.lease)?;
        if once.waiting.iter().all(oneshot::Sender::is_closed) {
            self.once.remove(&renewal.lease);
            return None;
        }
        Some(once.asked)
    }

    fn note_asked(&mut self, renewal: &Renewal, asked: Asked) {
        if let Some(place) = renewal.place {
            self.lane.kept(place, |kept| kept.asked = asked);
        }
        if !self.once.is_empty()
            && let Some(once) = self.once.get_mut(&renewal.lease)
        {
            once.asked = asked;
        }
    }
}

impl Handler<MemberReady> for KeeperActor {
    type Result = ();

    fn handle(&mut self, _: MemberReady, ctx: &mut Context<Self>) {
        self.awaiting = false;
        if self.caller.ready.load().closed {
            return;
        }
        let now = now();
        let parked = std::mem::take(&mut self.parked);
        for renewal in &parked {
            if let Some(asked) = self.asked(renewal) {
                let parked = false;
                self.note_asked(renewal, Asked { parked, ..asked });
                if let Some(place) = renewal.place {
                    self.lane.sent(place, now);
                }
            }
        }
        self.send(parked, now, ctx);
        self.rearm(ctx);
    }
}
