//! Watching over a connection in use: when its member is probed, and what follows from the answer.

use std::{future::Future, time::Duration};

use actix::{AsyncContext, Context, Handler, Message};
use tokio::time::Instant;

use super::{ConnectionActor, live::complaint, tell};
use crate::connection::{
    Health, Probe, Probed, Sighting, Suspect, Suspected, Verdict,
    probe::{self, Answer},
};

/// The others are asked no more often than this on behalf of one member.
const OTHERS_AGAIN: Duration = Duration::from_millis(100);

impl ConnectionActor {
    fn probe(&mut self) -> Option<impl Future<Output = Probed> + 'static> {
        let metadata = self.metadata();
        let live = self.live.as_mut()?;
        if live.probing {
            return None;
        }
        live.probing = true;
        live.pace.asked(Instant::now());
        let channel = live.connection.channel.clone();
        let generation = live.connection.generation;
        let (id, ready) = (self.id, self.shared.ready.clone());
        Some(async move {
            let others_answer = |since| ready.load().heard_others(id, since);
            let answer = probe::ask(&channel, &metadata, others_answer).await;
            Probed { generation, answer }
        })
    }

    pub(super) fn start_probe(&mut self, ctx: &mut Context<Self>) {
        if let Some(probe) = self.probe() {
            let actor = ctx.address().downgrade();
            actix_rt::spawn(async move { tell(&actor, probe.await) });
        }
    }

    /// Asks at once, or as soon as the last question is long enough ago.
    pub(super) fn probe_soon(&mut self, ctx: &mut Context<Self>) {
        let Some(live) = self.live.as_mut().filter(|live| !live.probing) else {
            return;
        };
        let spacing = live.pace.spacing(Instant::now());
        if spacing.is_zero() {
            self.start_probe(ctx);
        } else {
            self.probe_in(spacing, true, ctx);
        }
    }

    /// Takes in what a probe of the connection in use brought.
    fn judge(&mut self, answer: Answer, ctx: &mut Context<Self>) {
        let Some(live) = self.live.as_mut() else {
            return;
        };
        let generation = live.connection.generation;
        let (verdict, sighting) = match answer {
            Answer::Seen(seen) if !self.shared.cluster.accepts(seen.cluster) => {
                return self.leave_cluster(generation, seen.cluster, ctx);
            }
            Answer::Seen(seen) => {
                let others = self.shared.ready.load().others(self.id);
                (live.progress.look(&seen, others), Some(seen))
            }
            Answer::Alive => {
                live.progress.untold();
                (Verdict::Fine, None)
            }
            Answer::NoLeader => (Verdict::NoLeader, None),
            Answer::Silent => return self.give_up(generation, Verdict::Unresponsive, ctx),
            Answer::Broken(_) if !live.connection.channel.accepts_requests() => {
                return self.retire(generation, ctx);
            }
            Answer::Broken(error) => {
                self.error = Some(error);
                return self.give_up(generation, Verdict::Closed, ctx);
            }
        };
        self.settle(generation, verdict, sighting, ctx);
    }

    fn settle(
        &mut self,
        generation: u64,
        verdict: Verdict,
        sighting: Option<Sighting>,
        ctx: &mut Context<Self>,
    ) {
        let Some(live) = self.live.as_mut() else {
            return;
        };
        let verdict = match verdict {
            Verdict::Fine if !live.serving => Verdict::NotServing,
            other => other,
        };
        let known = live.connection.health();
        let sighting = sighting.or(known.sighting);
        if verdict != known.verdict && !verdict.is_fine() {
            tracing::info!(endpoint = %self.endpoint, reason = verdict.reason(), "member avoided");
            self.error = Some(complaint(verdict).with_endpoint(self.endpoint.name()));
        }
        live.connection
            .health
            .send_replace(Health { verdict, sighting });
        let next = self.machine.leader_seen(generation, verdict.is_fine());
        self.apply(next, ctx);
        self.probe_again(verdict, ctx);
    }

    pub(super) fn probe_again(&mut self, verdict: Verdict, ctx: &mut Context<Self>) {
        let Some(live) = self.live.as_mut() else {
            return;
        };
        let pause = live.pace.after(verdict, live.connection.is_suspected());
        self.probe_in(jittered(pause), false, ctx);
    }

    fn probe_in(&mut self, pause: Duration, wanted: bool, ctx: &mut Context<Self>) {
        let Some(live) = self.live.as_mut() else {
            return;
        };
        if let Some(pending) = live.due.take() {
            ctx.cancel_future(pending);
        }
        let generation = live.connection.generation;
        live.due = Some(ctx.notify_later(ProbeDue { generation, wanted }, pause));
    }
}

fn jittered(delay: Duration) -> Duration {
    delay.mul_f64(0.8 + 0.4 * fastrand::f64())
}

/// It is time for the next probe.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct ProbeDue {
    generation: u64,
    /// Somebody asked for it, whatever is known of the member now.
    wanted: bool,
}

/// The member's health service told whether it serves.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct ServingChanged {
    pub(super) generation: u64,
    pub(super) serving: bool,
}

impl Handler<Suspect> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, suspect: Suspect, ctx: &mut Context<Self>) {
        if suspect.generation != self.machine.generation() {
            return;
        }
        let Some(live) = self.live.as_mut() else {
            return;
        };
        // The others are asked even where a probe is under way: its silence is judged by whether they answer.
        let now = Instant::now();
        live.pace.hurry();
        if live.others_asked.is_none_or(|at| at + OTHERS_AGAIN <= now) {
            live.others_asked = Some(now);
            self.tell_balancer(Suspected { id: self.id });
        }
        self.probe_soon(ctx);
    }
}

impl Handler<Probe> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, _: Probe, ctx: &mut Context<Self>) {
        self.probe_soon(ctx);
    }
}

impl Handler<ProbeDue> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, due: ProbeDue, ctx: &mut Context<Self>) {
        let Some(live) = self
            .live
            .as_mut()
            .filter(|live| live.connection.generation == due.generation)
        else {
            return;
        };
        live.due = None;
        let verdict = live.connection.health().verdict;
        let suspected = live.connection.is_suspected();
        if suspected {
            self.tell_balancer(Suspected { id: self.id });
        }
        let Some(live) = self.live.as_ref() else {
            return;
        };
        if due.wanted
            || suspected
            || !verdict.is_fine()
            || live.connection.has_standing()
            || self.shared.follow_leader
        {
            self.start_probe(ctx);
        } else {
            self.probe_again(verdict, ctx);
        }
    }
}

impl Handler<Probed> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, Probed { generation, answer }: Probed, ctx: &mut Context<Self>) {
        let Some(live) = self
            .live
            .as_mut()
            .filter(|live| live.connection.generation == generation)
        else {
            return;
        };
        live.probing = false;
        self.judge(answer, ctx);
    }
}

impl Handler<ServingChanged> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, told: ServingChanged, ctx: &mut Context<Self>) {
        let Some(live) = self
            .live
            .as_mut()
            .filter(|live| live.connection.generation == told.generation)
        else {
            return;
        };
        if live.serving == told.serving {
            return;
        }
        live.serving = told.serving;
        let known = live.connection.health().verdict;
        let verdict = match known {
            Verdict::NotServing if told.serving => Verdict::Fine,
            other => other,
        };
        self.settle(told.generation, verdict, None, ctx);
    }
}
