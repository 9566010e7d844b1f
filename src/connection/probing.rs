//! Sends and schedules probes, and handles their results.

use std::{sync::Arc, time::Duration};

use actix::{AsyncContext, Context};
use tokio::time::Instant;

use super::{
    ConnectionActor, RaftStatus, Verdict,
    active_connection::ProbeState,
    actor::send,
    messages::{ProbeDue, ProbeFinished, ProbeLate},
    probe::{ProbeResult, probe},
};
use crate::error::Outcome;

impl ConnectionActor {
    /// Sends a probe unless one is in flight.
    pub(super) fn start_probe(&mut self, ctx: &mut Context<Self>) {
        let metadata = self.metadata();
        let Some(active) = self
            .active
            .as_mut()
            .filter(|active| active.probe == ProbeState::Idle)
        else {
            return;
        };
        let now = Instant::now();
        let budget_delay = self.context.probes.delay(now);
        if !budget_delay.is_zero() {
            return self.set_probe_timer(budget_delay, true, ctx);
        }
        self.context.probes.take(now);
        active.probe = ProbeState::InFlight;
        active.schedule.probe_sent(now);
        let silence = active.connection.timing.unresponsive_after();
        let channel = active.connection.channel.clone();
        let connection = Arc::downgrade(&active.connection);
        let generation = active.generation();
        let (id, members) = (self.id, self.context.members.clone());
        let actor = ctx.address().downgrade();
        actix_rt::spawn(async move {
            let others_responded = |since| members.others_responded_since(id, since);
            let on_late = |others_responded| {
                let late = ProbeLate {
                    generation,
                    others_responded,
                };
                send(&actor, late);
            };
            let (result, elapsed) =
                probe(&channel, &metadata, silence, others_responded, on_late).await;
            if let Some(connection) = connection.upgrade() {
                connection.token_probe_finished(metadata.token.is_some() && result.is_response());
            }
            let finished = ProbeFinished {
                generation,
                result,
                elapsed,
            };
            send(&actor, finished);
        });
    }

    /// Sends a probe at once, or after the shortest time between two probes.
    pub(super) fn probe_soon(&mut self, ctx: &mut Context<Self>) {
        let Some(active) = self
            .active
            .as_mut()
            .filter(|active| active.probe == ProbeState::Idle)
        else {
            return;
        };
        let spacing = active.schedule.spacing(Instant::now());
        if spacing.is_zero() {
            self.start_probe(ctx);
        } else {
            self.set_probe_timer(spacing, true, ctx);
        }
    }

    /// Schedules the next routine probe.
    pub(super) fn schedule_probe(&mut self, verdict: Verdict, ctx: &mut Context<Self>) {
        let Some(active) = self.active.as_mut() else {
            return;
        };
        let suspected = active.connection.is_suspected();
        let delay = active
            .schedule
            .next_delay(verdict, suspected, fastrand::f64());
        let delay = delay.max(active.schedule.spacing(Instant::now()));
        self.set_probe_timer(delay, false, ctx);
    }

    fn set_probe_timer(&mut self, delay: Duration, requested: bool, ctx: &mut Context<Self>) {
        let Some(active) = self.active.as_mut() else {
            return;
        };
        if let Some(pending) = active.next_probe.take() {
            ctx.cancel_future(pending);
        }
        let due = ProbeDue {
            generation: active.generation(),
            requested,
        };
        active.next_probe = Some(ctx.notify_later(due, delay));
    }

    /// Handles the result of a probe of the connection in use.
    pub(super) fn handle_probe_result(
        &mut self,
        result: ProbeResult,
        elapsed: Duration,
        ctx: &mut Context<Self>,
    ) {
        let Some(active) = self.active.as_mut() else {
            return;
        };
        let generation = active.generation();
        let (verdict, status) = match result {
            ProbeResult::Status(status) if !self.context.cluster.accepts(status.cluster) => {
                return self.leave_cluster(generation, status.cluster, ctx);
            }
            ProbeResult::Status(status) => {
                active.connection.timing.round_trips().add_sample(elapsed);
                let others = self.context.members.other_members(self.id);
                (active.progress.evaluate(&status, others), Some(status))
            }
            ProbeResult::Alive => {
                active.progress.status_unavailable();
                (Verdict::Fine, None)
            }
            ProbeResult::NoLeader => (Verdict::NoLeader, None),
            ProbeResult::Silent => {
                return self.close_and_reconnect(generation, Verdict::Unresponsive, ctx);
            }
            ProbeResult::Ignored => (Verdict::Late, None),
            ProbeResult::Failed(_) if !active.connection.channel.accepts_requests() => {
                return self.replace_connection(generation, ctx);
            }
            // The connection carries requests, and there is no better one: a proxy may not forward probes.
            ProbeResult::Failed(error)
                if error.code().is_none()
                    && active.connection.has_served()
                    && !self.context.members.other_members(self.id).any_ready =>
            {
                (Verdict::Fine, None)
            }
            ProbeResult::Failed(error) => {
                self.error = Some(error.with_outcome(Outcome::NotSent));
                (Verdict::Unreachable, None)
            }
        };
        self.update_health(verdict, status, ctx);
    }

    /// Publishes the health of the member and schedules the next probe.
    pub(super) fn update_health(
        &mut self,
        verdict: Verdict,
        status: Option<RaftStatus>,
        ctx: &mut Context<Self>,
    ) {
        let Some(active) = self.active.as_ref() else {
            return;
        };
        let verdict = match verdict {
            Verdict::Fine if !active.serving => Verdict::NotServing,
            other => other,
        };
        let known = active.connection.health();
        if verdict != known.verdict && !verdict.is_fine() {
            tracing::info!(endpoint = %self.endpoint, reason = verdict.reason(), "member avoided");
            if verdict != Verdict::Unreachable || self.error.is_none() {
                self.error = Some(self.error_for(verdict));
            }
        }
        let health = known.updated(verdict, status);
        active.connection.health.send_replace(health);
        let action = self
            .machine
            .health_checked(active.generation(), verdict.is_fine());
        self.apply(action, ctx);
        self.review_replacement(verdict, ctx);
        self.schedule_probe(verdict, ctx);
    }
}
