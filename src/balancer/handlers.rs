//! Message handlers of the [`BalancerActor`].

use actix::{ActorContext, Context, Handler, MessageResult, ResponseFuture};
use tokio::time::Instant;
use tokio_stream::{StreamExt, wrappers::BroadcastStream};

#[cfg(feature = "test-faults")]
use super::messages::CrashConnection;
use super::{
    BalancerActor, ConnectivityChange, ConnectivityState,
    actor::ManagedEndpoint,
    messages::{
        AwaitReady, BalancerShutdown, SendChangesTo, SpeedUpReconnects, SubscribeToChanges,
    },
};
use crate::{
    connection::messages::{ConnectionStateChanged, Drain, MemberSuspected, Probe},
    retry::MemberReady,
    runtime::{delivery::deliver, supervisor::ActorFailed},
};

/// Number of members that are probed for comparison with a suspected one.
pub(super) const COMPARED_MEMBERS: usize = 4;

impl Handler<ConnectionStateChanged> for BalancerActor {
    type Result = ();

    fn handle(&mut self, changed: ConnectionStateChanged, _: &mut Context<Self>) {
        let Some(endpoint) = self
            .endpoints
            .iter_mut()
            .find(|endpoint| endpoint.view.id == changed.id)
        else {
            return;
        };
        let view = &mut endpoint.view;
        let state_changed = view.state != changed.state;
        if state_changed {
            view.since = Instant::now();
        }
        view.state = changed.state;
        view.connection = changed.connection;
        view.error = match changed.state {
            ConnectivityState::Ready => None,
            // The last failure stays visible during the next attempt.
            ConnectivityState::Connecting => changed.error.or(view.error.take()),
            ConnectivityState::Idle
            | ConnectivityState::NoLeader
            | ConnectivityState::TransientFailure
            | ConnectivityState::Shutdown => changed.error,
        };
        let change = ConnectivityChange {
            endpoint: view.endpoint.as_str().to_owned(),
            state: view.state,
            error: view.error.clone(),
        };
        // The kept endpoint is chosen first, so that no other one is published beside it.
        self.update_connections();
        self.publish();
        if state_changed {
            if change.state == ConnectivityState::Ready {
                self.retries.do_send(MemberReady);
            }
            let _ = self.changes.send(change);
        }
    }
}

impl Handler<MemberSuspected> for BalancerActor {
    type Result = ();

    fn handle(&mut self, suspected: MemberSuspected, _: &mut Context<Self>) {
        let is_suspected = |endpoint: &ManagedEndpoint| endpoint.view.id == suspected.id;
        let start = self
            .endpoints
            .iter()
            .position(is_suspected)
            .unwrap_or_default();
        let (before, after) = self.endpoints.split_at(start);
        let others = after.iter().skip(1).chain(before);
        let connected = others.filter(|endpoint| endpoint.view.connection.is_some());
        for endpoint in connected.take(COMPARED_MEMBERS) {
            endpoint.actor.do_send(Probe);
        }
    }
}

impl Handler<ActorFailed> for BalancerActor {
    type Result = ();

    fn handle(&mut self, failed: ActorFailed, _: &mut Context<Self>) {
        tracing::warn!(
            actor = failed.actor,
            reason = failed.reason,
            failures = failed.failures,
            "actor restarted after a crash"
        );
    }
}

impl Handler<AwaitReady> for BalancerActor {
    type Result = ();

    fn handle(&mut self, call: AwaitReady, ctx: &mut Context<Self>) {
        if self.closed {
            return;
        }
        let set = self.ready_set.load();
        let served = !set.ready.is_empty() || (call.leaderless && !set.leaderless.is_empty());
        if served {
            let _ = call.ready.send(());
            return;
        }
        self.waiting_calls.push(call);
        if !self.speed_up_scheduled {
            self.speed_up_reconnects(ctx);
        }
    }
}

impl Handler<SpeedUpReconnects> for BalancerActor {
    type Result = ();

    fn handle(&mut self, _: SpeedUpReconnects, ctx: &mut Context<Self>) {
        self.speed_up_reconnects(ctx);
    }
}

impl Handler<SubscribeToChanges> for BalancerActor {
    type Result = MessageResult<SubscribeToChanges>;

    fn handle(&mut self, _: SubscribeToChanges, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.changes.subscribe())
    }
}

impl Handler<SendChangesTo> for BalancerActor {
    type Result = ();

    fn handle(&mut self, SendChangesTo(recipient): SendChangesTo, _: &mut Context<Self>) {
        let changes = BroadcastStream::new(self.changes.subscribe()).filter_map(Result::ok);
        actix_rt::spawn(deliver(changes, recipient));
    }
}

impl Handler<BalancerShutdown> for BalancerActor {
    type Result = ResponseFuture<()>;

    fn handle(
        &mut self,
        shutdown: BalancerShutdown,
        ctx: &mut Context<Self>,
    ) -> ResponseFuture<()> {
        self.closed = true;
        let endpoints = std::mem::take(&mut self.endpoints);
        self.waiting_calls.clear();
        self.publish();
        let drains: Vec<_> = endpoints
            .iter()
            .map(|endpoint| endpoint.actor.send(Drain))
            .collect();
        drop(endpoints);
        ctx.stop();
        let context = self.context.clone();
        Box::pin(async move {
            let all = async {
                for drain in drains {
                    // An error means that the actor has stopped, and its connection with it.
                    let _ = drain.await;
                }
                // Connections that were replaced may have requests in flight, too.
                context.connections.all_closed().await;
            };
            let _ = tokio::time::timeout(shutdown.grace, all).await;
            context.connections.close_all();
            context.connections.all_closed().await;
        })
    }
}

#[cfg(feature = "test-faults")]
impl Handler<CrashConnection> for BalancerActor {
    type Result = ResponseFuture<bool>;

    fn handle(
        &mut self,
        CrashConnection(endpoint): CrashConnection,
        _: &mut Context<Self>,
    ) -> ResponseFuture<bool> {
        let crash = self
            .endpoints
            .iter()
            .find(|other| other.view.endpoint == endpoint)
            .map(|other| other.actor.send(crate::runtime::supervisor::Crash));
        Box::pin(async move {
            match crash {
                Some(crash) => crash.await.is_err(),
                None => false,
            }
        })
    }
}
