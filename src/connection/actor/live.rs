//! The connection in use: how it comes into use, and how it goes out of it.

use std::{future::Future, sync::Arc, time::Duration};

use actix::{AsyncContext, Context, SpawnHandle};
use tokio::time::Instant;

use super::{ConnectionActor, liveness::ServingChanged, tell};
use crate::{
    connection::{
        Connection, Health, Probe, Suspected, Verdict,
        pace::ProbePace,
        probe::{self, Answer, DriverTask},
        shared::other_cluster,
        state::Next,
        verdict::{Progress, STALLED_AFTER},
    },
    error::{Error, ErrorKind, Outcome},
    transport::channel::Metadata,
};

/// A member that came back is looked at once more after this, before any call had to be slow.
const SECOND_LOOK: Duration = Duration::from_millis(600);

/// The connection in use.
pub(super) struct Live {
    pub(super) connection: Arc<Connection>,
    pub(super) driver: DriverTask,
    pub(super) progress: Progress,
    pub(super) serving: bool,
    pub(super) probing: bool,
    pub(super) others_asked: Option<Instant>,
    pub(super) due: Option<SpawnHandle>,
    pub(super) pace: ProbePace,
    /// Ends with the connection.
    _health_watch: AbortOnDrop,
}

/// A task that nobody needs without its owner.
pub(super) struct AbortOnDrop(pub(super) tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ConnectionActor {
    /// Ends the connection in use: what is in flight on it fails at once.
    pub(super) fn give_up(&mut self, generation: u64, verdict: Verdict, ctx: &mut Context<Self>) {
        let next = self
            .machine
            .lost(generation, Instant::now(), fastrand::f64());
        if next == Next::Stay {
            return;
        }
        if let Some(live) = self.live.take() {
            self.left = Some(live.left(verdict));
            if verdict == Verdict::Unresponsive {
                self.error = Some(complaint(verdict).with_endpoint(self.endpoint.name()));
            }
            let sighting = live.connection.health().sighting;
            live.connection
                .health
                .send_replace(Health { verdict, sighting });
            if let Some(due) = live.due {
                ctx.cancel_future(due);
            }
        }
        self.apply(next, ctx);
    }

    /// Makes another connection in place of one that takes no more requests. What is in flight on it may finish.
    pub(super) fn retire(&mut self, generation: u64, ctx: &mut Context<Self>) {
        let next = self
            .machine
            .lost(generation, Instant::now(), fastrand::f64());
        if next == Next::Stay {
            return;
        }
        let text = "the connection takes no more requests";
        let refused = Error::new(ErrorKind::ConnectionLost, Outcome::NotSent, text);
        self.error = Some(refused.with_endpoint(self.endpoint.name()));
        if let Some(mut live) = self.live.take() {
            self.left = Some(live.left(Verdict::Closed));
            if let Some(due) = live.due.take() {
                ctx.cancel_future(due);
            }
            drop(live.leave());
        }
        self.apply(next, ctx);
    }

    /// Ends a connection that leads to another cluster. The next one is made after a while: where members do not tell
    /// who they are before the first request, it can lead there again.
    pub(super) fn leave_cluster(&mut self, generation: u64, cluster: u64, ctx: &mut Context<Self>) {
        if self.shared.cluster.accepts(cluster) || !self.is_in_use(generation) {
            return;
        }
        self.machine.disappointed();
        let left = other_cluster(self.shared.cluster.get(), cluster);
        self.error = Some(left.with_endpoint(self.endpoint.name()));
        self.give_up(generation, Verdict::Closed, ctx);
    }

    pub(super) fn is_in_use(&self, generation: u64) -> bool {
        let live = self.live.as_ref();
        live.is_some_and(|live| live.connection.generation == generation)
    }

    pub(super) fn take_into_use(
        &mut self,
        generation: u64,
        contact: probe::FirstContact,
        ctx: &mut Context<Self>,
    ) {
        let actor = ctx.address().downgrade();
        let came_back = self.error.is_some();
        let now = Instant::now();
        let was_away = self.left.take().is_some_and(|left| left.was_long(now));
        let mut progress = if was_away {
            Progress::returning(now)
        } else {
            Progress::default()
        };
        let (verdict, sighting) = match contact.answer {
            Answer::Seen(seen) => {
                let others = self.shared.ready.load().others(self.id);
                (progress.look(&seen, others), Some(seen))
            }
            Answer::NoLeader => (Verdict::NoLeader, None),
            Answer::Alive | Answer::Silent | Answer::Broken(_) => {
                progress.untold();
                (Verdict::Fine, None)
            }
        };
        let connection = Arc::new(Connection::new(
            self.id,
            self.endpoint.clone(),
            generation,
            contact.channel,
            actor.clone(),
            Health { verdict, sighting },
        ));
        let metadata = Metadata {
            require_leader: false,
            ..self.metadata()
        };
        let serving = probe::watch_serving(connection.channel.clone(), metadata, move |serving| {
            tell(
                &actor,
                ServingChanged {
                    generation,
                    serving,
                },
            );
        });
        self.live = Some(Live {
            connection,
            driver: contact.driver,
            progress,
            serving: true,
            probing: false,
            others_asked: None,
            due: None,
            pace: ProbePace::default(),
            _health_watch: AbortOnDrop(actix_rt::spawn(serving)),
        });
        self.error =
            (!verdict.is_fine()).then(|| complaint(verdict).with_endpoint(self.endpoint.name()));
        let next = self
            .machine
            .dialled(generation, verdict.is_fine(), Instant::now());
        if next == Next::Stay {
            self.live = None;
            return;
        }
        self.apply(next, ctx);
        if came_back || was_away {
            // It may not have heard yet what it missed: the others are asked, and then it is looked at again.
            self.tell_balancer(Suspected { id: self.id });
            ctx.notify_later(Probe, SECOND_LOOK);
        }
        self.probe_again(verdict, ctx);
    }
}

pub(super) fn complaint(verdict: Verdict) -> Error {
    let kind = match verdict {
        Verdict::NoLeader | Verdict::CutOff | Verdict::Returning => ErrorKind::NoLeader,
        Verdict::Learner => ErrorKind::NotSupportedForLearner,
        Verdict::Unresponsive => ErrorKind::MemberUnresponsive,
        Verdict::NotServing => ErrorKind::NotServing,
        Verdict::Closed | Verdict::Fine => ErrorKind::ConnectionLost,
    };
    Error::new(kind, Outcome::NotSent, verdict.reason())
}

/// How a connection went out of use by itself.
pub(super) struct Left {
    at: Instant,
    /// The member did not answer, or had been away before and not caught up.
    behind: bool,
}

impl Left {
    /// Whether the member may have missed something since.
    fn was_long(&self, now: Instant) -> bool {
        self.behind || self.at + STALLED_AFTER <= now
    }
}

impl Live {
    fn left(&self, verdict: Verdict) -> Left {
        Left {
            at: Instant::now(),
            behind: verdict == Verdict::Unresponsive || self.progress.is_returning(),
        }
    }

    /// Lets what is in flight finish; the future resolves when the connection is closed.
    pub(super) fn leave(self) -> impl Future<Output = ()> + 'static {
        let Self {
            connection, driver, ..
        } = self;
        // Streams would never finish by themselves: they hear that they have to leave.
        let health = Health {
            verdict: Verdict::Closed,
            sighting: connection.health().sighting,
        };
        connection.health.send_replace(health);
        drop(connection);
        driver.finish()
    }
}
