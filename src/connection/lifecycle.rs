//! Takes a new connection into use, closes it and replaces it.

use std::{sync::Arc, time::Duration};

use actix::{AsyncContext, Context};
use tokio::time::Instant;

use super::{
    Connection, ConnectionActor, LinkTiming, MemberHealth, Verdict,
    active_connection::{ActiveConnection, ProbeState},
    actor::send,
    cluster_id::foreign_cluster_error,
    first_contact::{FirstContact, TokenResponse},
    health_service::watch_serving,
    member_health::ProgressTracker,
    messages::{Probe, ServingChanged},
    probe::ProbeResult,
    probe_schedule::ProbeSchedule,
    state_machine::ConnectionAction,
};
use crate::{
    error::{Error, ErrorKind, Outcome},
    runtime::abort_on_drop::AbortOnDrop,
    transport::channel::Metadata,
};

/// Delay of an extra probe of a member that was unreachable: its first status may be out of date.
const SECOND_PROBE_AFTER: Duration = Duration::from_millis(600);

impl ConnectionActor {
    /// Takes a new connection into use.
    pub(super) fn take_into_use(
        &mut self,
        generation: u64,
        contact: FirstContact,
        ctx: &mut Context<Self>,
    ) {
        let had_error = self.error.is_some();
        let now = Instant::now();
        let outage = self.outage.take();
        let may_be_behind = outage.is_some_and(|outage| outage.may_have_missed_commits(now));
        let mut progress = if may_be_behind {
            ProgressTracker::after_outage(now)
        } else {
            ProgressTracker::default()
        };
        let health = self.evaluate_contact(&contact, &mut progress);
        let verdict = health.verdict;
        self.activate(generation, contact, progress, health, ctx);
        self.error = (!verdict.is_fine()).then(|| self.error_for(verdict));
        let action = self
            .machine
            .dial_succeeded(generation, verdict.is_fine(), Instant::now());
        if action == ConnectionAction::None {
            self.active = None;
            return;
        }
        self.apply(action, ctx);
        if had_error || may_be_behind {
            self.report_suspicion();
            ctx.notify_later(Probe, SECOND_PROBE_AFTER);
        }
        self.review_replacement(verdict, ctx);
        self.schedule_probe(verdict, ctx);
    }

    /// Returns the health of a member that has responded for the first time.
    pub(super) fn evaluate_contact(
        &self,
        contact: &FirstContact,
        progress: &mut ProgressTracker,
    ) -> MemberHealth {
        let (verdict, status) = match &contact.response {
            ProbeResult::Status(status) => {
                let others = self.context.members.other_members(self.id);
                (progress.evaluate(status, others), Some(*status))
            }
            ProbeResult::NoLeader => (Verdict::NoLeader, None),
            ProbeResult::Alive
            | ProbeResult::Silent
            | ProbeResult::Ignored
            | ProbeResult::Failed(_) => {
                progress.status_unavailable();
                (Verdict::Fine, None)
            }
        };
        MemberHealth::new(verdict, status)
    }

    /// Makes a new connection the one in use.
    pub(super) fn activate(
        &mut self,
        generation: u64,
        contact: FirstContact,
        progress: ProgressTracker,
        health: MemberHealth,
        ctx: &mut Context<Self>,
    ) {
        let responded_to_token = contact.token == TokenResponse::Received;
        let connection = Arc::new(Connection::new(
            self.id,
            self.endpoint.clone(),
            generation,
            contact.channel,
            ctx.address().downgrade(),
            health,
            LinkTiming::new(self.context.liveness.clone(), contact.round_trip),
        ));
        if responded_to_token {
            connection.record_token_response();
        }
        let health_service = self.follow_health_service(&connection, ctx);
        self.active = Some(ActiveConnection {
            connection,
            address: contact.address,
            driver: contact.driver,
            progress,
            serving: true,
            probe: ProbeState::Idle,
            schedule: ProbeSchedule::default(),
            next_probe: None,
            suspicion_reported_at: None,
            suspected_since: None,
            _health_service: health_service,
            _membership: contact.membership,
        });
    }

    fn follow_health_service(
        &self,
        connection: &Connection,
        ctx: &mut Context<Self>,
    ) -> AbortOnDrop {
        let actor = ctx.address().downgrade();
        let generation = connection.generation;
        let metadata = Metadata {
            require_leader: false,
            ..self.metadata()
        };
        let on_change = move |serving| {
            let changed = ServingChanged {
                generation,
                serving,
            };
            send(&actor, changed);
        };
        AbortOnDrop::spawn(watch_serving(
            connection.channel.clone(),
            metadata,
            on_change,
        ))
    }

    /// Closes the connection in use at once, so that its requests in flight fail, and reconnects.
    pub(super) fn close_and_reconnect(
        &mut self,
        generation: u64,
        verdict: Verdict,
        ctx: &mut Context<Self>,
    ) {
        let action = self.connection_lost(generation);
        if action == ConnectionAction::None {
            return;
        }
        if let Some(active) = self.active.take() {
            self.outage = Some(active.outage(verdict));
            if verdict == Verdict::Unresponsive {
                self.error = Some(self.error_for(verdict));
                self.avoid_address(active.address);
            }
            active.set_verdict(verdict);
            if let Some(pending) = active.next_probe {
                ctx.cancel_future(pending);
            }
        }
        self.apply(action, ctx);
    }

    fn connection_lost(&mut self, generation: u64) -> ConnectionAction {
        let active = self.active.as_ref();
        let has_served = active.is_some_and(|active| active.connection.has_served());
        self.machine
            .connection_lost(generation, has_served, Instant::now(), fastrand::f64())
    }

    /// Replaces a connection that accepts no more requests. Its requests in flight may finish.
    pub(super) fn replace_connection(&mut self, generation: u64, ctx: &mut Context<Self>) {
        let action = self.connection_lost(generation);
        if action == ConnectionAction::None {
            return;
        }
        let reason = "the connection accepts no more requests";
        self.error = Some(self.connection_lost_error(reason));
        if let Some(mut active) = self.active.take() {
            self.outage = Some(active.outage(Verdict::Closed));
            if let Some(pending) = active.next_probe.take() {
                ctx.cancel_future(pending);
            }
            drop(active.close_gracefully());
        }
        self.apply(action, ctx);
    }

    /// Closes a connection to a member of another cluster, and reconnects after a delay. Without the delay, a member
    /// that refuses `Status` requests would be used again at once: only a later response contains its cluster id.
    pub(super) fn leave_cluster(&mut self, generation: u64, cluster: u64, ctx: &mut Context<Self>) {
        if self.context.cluster.accepts(cluster) || self.active_generation(generation).is_none() {
            return;
        }
        self.machine.require_delay();
        self.error = Some(self.foreign_cluster_error(cluster));
        self.close_and_reconnect(generation, Verdict::Closed, ctx);
    }

    pub(super) fn foreign_cluster_error(&self, cluster: u64) -> Error {
        let error = foreign_cluster_error(self.context.cluster.get(), cluster);
        error.with_endpoint(self.endpoint.name())
    }

    pub(super) fn connection_lost_error(
        &self,
        reason: impl Into<std::borrow::Cow<'static, str>>,
    ) -> Error {
        Error::new(ErrorKind::ConnectionLost, Outcome::NotSent, reason)
            .with_endpoint(self.endpoint.name())
    }

    /// Returns the error that explains why a member with this verdict is not ready.
    pub(super) fn error_for(&self, verdict: Verdict) -> Error {
        let kind = match verdict {
            Verdict::NoLeader | Verdict::CutOff | Verdict::Returning => ErrorKind::NoLeader,
            Verdict::Learner => ErrorKind::NotSupportedForLearner,
            Verdict::Unresponsive | Verdict::Late => ErrorKind::MemberUnresponsive,
            Verdict::Unreachable => ErrorKind::Unavailable,
            Verdict::NotServing => ErrorKind::NotServing,
            Verdict::Closed | Verdict::Fine => ErrorKind::ConnectionLost,
        };
        Error::new(kind, Outcome::NotSent, verdict.reason()).with_endpoint(self.endpoint.name())
    }
}
