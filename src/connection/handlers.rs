//! Message handlers of the [`ConnectionActor`].

use std::time::Duration;

use actix::{ActorContext, Context, Handler, ResponseFuture};
use tokio::time::Instant;

use super::{
    ConnectionActor, ConnectivityState, Verdict,
    active_connection::{ActiveConnection, ProbeState},
    messages::{
        ClosedToRequests, Connect, ConnectionLost, DialFinished, Disconnect, Drain,
        ForeignClusterDetected, Probe, ProbeDue, ProbeFinished, ProbeLate, ReconnectDue,
        ReconnectSooner, ReplacementDue, RoutineProbe, ServingChanged, StreamOpened, Suspect,
    },
    state_machine::ConnectionAction,
};

/// Shortest time between two `Suspect` messages that are reported to the owner.
const SUSPICION_REPORT_SPACING: Duration = Duration::from_millis(100);
/// A member that was probed within this time is not probed again only because it carries streams.
const ROUTINE_SPACING: Duration = Duration::from_millis(200);

impl Handler<Connect> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, _: Connect, ctx: &mut Context<Self>) {
        let action = self.machine.connect();
        self.apply(action, ctx);
    }
}

impl Handler<ReconnectSooner> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, _: ReconnectSooner, ctx: &mut Context<Self>) {
        let action = self.machine.reconnect_sooner(Instant::now());
        self.apply(action, ctx);
        if self.machine.connectivity() == ConnectivityState::NoLeader {
            self.probe_soon(ctx);
        }
    }
}

impl Handler<ReconnectDue> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, _: ReconnectDue, ctx: &mut Context<Self>) {
        self.reconnect_timer = None;
        let action = self.machine.reconnect_due();
        self.apply(action, ctx);
    }
}

impl Handler<ReplacementDue> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, _: ReplacementDue, ctx: &mut Context<Self>) {
        self.reconnect_timer = None;
        let action = self.machine.replacement_due();
        self.apply(action, ctx);
    }
}

impl Handler<DialFinished> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, dial: DialFinished, ctx: &mut Context<Self>) {
        let DialFinished { generation, result } = dial;
        if self.machine.is_replacing(generation) {
            return self.handle_replacement(generation, result, ctx);
        }
        if !self.machine.is_connecting(generation) {
            return;
        }
        let address = result.as_ref().ok().and_then(|contact| contact.address);
        let error = match result {
            Ok(contact) if !contact.is_open() => {
                self.connection_lost_error("the connection ended as soon as it was made")
            }
            Ok(contact) => {
                let cluster = contact.response.cluster();
                if self.context.cluster.accepts(cluster) {
                    return self.take_into_use(generation, contact, ctx);
                }
                self.foreign_cluster_error(cluster)
            }
            Err(error) => error,
        };
        if let Some(address) = address {
            self.addresses
                .borrow_mut()
                .mark_failed(address, Instant::now());
        }
        self.error = Some(error);
        let action = self
            .machine
            .dial_failed(generation, Instant::now(), fastrand::f64());
        self.apply(action, ctx);
    }
}

impl Handler<ConnectionLost> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, lost: ConnectionLost, ctx: &mut Context<Self>) {
        if self.active_generation(lost.generation).is_some() {
            self.error = Some(self.connection_lost_error(lost.reason));
            self.close_and_reconnect(lost.generation, Verdict::Closed, ctx);
        }
    }
}

impl Handler<ClosedToRequests> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, closed: ClosedToRequests, ctx: &mut Context<Self>) {
        self.replace_connection(closed.generation, ctx);
    }
}

impl Handler<ForeignClusterDetected> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, detected: ForeignClusterDetected, ctx: &mut Context<Self>) {
        self.leave_cluster(detected.generation, detected.cluster, ctx);
    }
}

impl Handler<Suspect> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, suspect: Suspect, ctx: &mut Context<Self>) {
        if suspect.generation != self.machine.generation() {
            return;
        }
        let Some(active) = self.active.as_mut() else {
            return;
        };
        let now = Instant::now();
        active.suspected_since.get_or_insert(now);
        active.schedule.reset();
        // Reported even while a probe is in flight: its timeout depends on whether the other members respond.
        if active
            .suspicion_reported_at
            .is_none_or(|at| at + SUSPICION_REPORT_SPACING <= now)
        {
            active.suspicion_reported_at = Some(now);
            self.report_suspicion();
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

impl Handler<RoutineProbe> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, _: RoutineProbe, ctx: &mut Context<Self>) {
        let now = Instant::now();
        let active = self.active.as_ref();
        if active.is_some_and(|active| !active.schedule.probed_within(ROUTINE_SPACING, now)) {
            self.probe_soon(ctx);
        }
    }
}

impl Handler<StreamOpened> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, _: StreamOpened, _: &mut Context<Self>) {
        self.report_streams();
    }
}

impl Handler<ProbeDue> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, due: ProbeDue, ctx: &mut Context<Self>) {
        let Some(active) = self.active_generation(due.generation) else {
            return;
        };
        active.next_probe = None;
        let verdict = active.connection.health().verdict;
        let suspected = active.connection.is_suspected();
        let has_streams = active.connection.has_streams();
        let awaits_token = active.connection.awaits_token_probe();
        if suspected {
            self.report_suspicion();
        }
        if due.requested
            || suspected
            || !verdict.is_fine()
            || has_streams
            || awaits_token
            || self.context.follow_leader
        {
            self.start_probe(ctx);
        } else {
            self.schedule_probe(verdict, ctx);
        }
    }
}

impl Handler<ProbeFinished> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, probe: ProbeFinished, ctx: &mut Context<Self>) {
        if let Some(active) = self.active_generation(probe.generation) {
            active.probe = ProbeState::Idle;
            self.handle_probe_result(probe.result, probe.elapsed, ctx);
        }
    }
}

impl Handler<ProbeLate> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, late: ProbeLate, ctx: &mut Context<Self>) {
        let Some(active) = self.active_generation(late.generation) else {
            return;
        };
        active.probe = ProbeState::Late;
        if late.others_responded {
            self.update_health(Verdict::Late, None, ctx);
        } else {
            self.want_replacement(ctx);
        }
    }
}

impl Handler<ServingChanged> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, changed: ServingChanged, ctx: &mut Context<Self>) {
        let Some(active) = self.active_generation(changed.generation) else {
            return;
        };
        if active.serving == changed.serving {
            return;
        }
        active.serving = changed.serving;
        let verdict = match active.connection.health().verdict {
            Verdict::NotServing if changed.serving => Verdict::Fine,
            other => other,
        };
        self.update_health(verdict, None, ctx);
    }
}

impl Handler<Disconnect> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, _: Disconnect, ctx: &mut Context<Self>) {
        let action = self.machine.disconnect();
        if action == ConnectionAction::Close {
            self.dial_task = None;
            if let Some(active) = self.active.take() {
                drop(active.close_gracefully());
            }
            self.error = None;
            self.outage = None;
        }
        self.apply(action, ctx);
    }
}

impl Handler<Drain> for ConnectionActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: Drain, ctx: &mut Context<Self>) -> ResponseFuture<()> {
        let action = self.machine.shut_down();
        self.dial_task = None;
        let closed = self.active.take().map(ActiveConnection::close_gracefully);
        self.apply(action, ctx);
        ctx.stop();
        Box::pin(async move {
            if let Some(closed) = closed {
                closed.await;
            }
        })
    }
}
