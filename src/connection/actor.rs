//! The actor of one endpoint: its state and how it carries out the decisions of the state machine.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use actix::{
    Actor, Addr, AsyncContext, Context, Handler, Message, SpawnHandle, Supervised, WeakAddr,
    WeakRecipient,
};
use tokio::time::Instant;

use super::{
    ConnectionContext, ConnectivityState, EndpointId, Verdict,
    active_connection::{ActiveConnection, Outage, ProbeState},
    driver_task::DriverEvent,
    first_contact::first_contact,
    ignored_token::replace_ignored_token,
    messages::{
        ClosedToRequests, ConnectionLost, ConnectionStateChanged, DialFinished, MemberSuspected,
        ReconnectDue, ReplacementDue, StreamsStarted,
    },
    state_machine::{ConnectionAction, ConnectionStateMachine},
};
use crate::{
    error::Error,
    runtime::{
        abort_on_drop::AbortOnDrop,
        supervisor::{ActorFailed, supervise},
    },
    transport::{Endpoint, address_history::AddressHistory, channel::Metadata, dial::DialOptions},
};

/// Dials, drives and probes the connection to one endpoint.
pub(crate) struct ConnectionActor {
    pub(super) id: EndpointId,
    pub(super) endpoint: Endpoint,
    pub(super) context: Arc<ConnectionContext>,
    observer: ConnectionObserver,
    pub(super) machine: ConnectionStateMachine,
    /// Present in the states `Ready` and `NoLeader`.
    pub(super) active: Option<ActiveConnection>,
    /// Reason why the endpoint is not ready.
    pub(super) error: Option<Error>,
    pub(super) outage: Option<Outage>,
    /// Timer of the next attempt to connect, or to replace the connection in use.
    pub(super) reconnect_timer: Option<SpawnHandle>,
    /// Task of the attempt to connect that is in flight.
    pub(super) dial_task: Option<AbortOnDrop>,
    /// Time at which a connection was last replaced only because calls were slow.
    pub(super) left_slow_member_at: Option<Instant>,
    /// Addresses that failed lately, shared with the dial task.
    pub(super) addresses: Rc<RefCell<AddressHistory>>,
    restarted: bool,
}

/// Recipients of a connection actor's events. They are weak because the recipient owns the connection actor.
#[derive(Clone)]
pub(crate) struct ConnectionObserver {
    connectivity: WeakRecipient<ConnectionStateChanged>,
    suspicions: WeakRecipient<MemberSuspected>,
    streams: WeakRecipient<StreamsStarted>,
    crashes: WeakRecipient<ActorFailed>,
}

impl ConnectionObserver {
    /// Sends all events to one actor.
    pub(crate) fn new<A>(owner: &WeakAddr<A>) -> Self
    where
        A: Actor<Context = Context<A>>
            + Handler<ConnectionStateChanged>
            + Handler<MemberSuspected>
            + Handler<StreamsStarted>
            + Handler<ActorFailed>,
    {
        Self {
            connectivity: owner.clone().recipient(),
            suspicions: owner.clone().recipient(),
            streams: owner.clone().recipient(),
            crashes: owner.clone().recipient(),
        }
    }
}

impl ConnectionActor {
    pub(crate) fn start(
        id: EndpointId,
        endpoint: Endpoint,
        context: Arc<ConnectionContext>,
        observer: ConnectionObserver,
    ) -> Addr<Self> {
        let crashes = observer.crashes.clone();
        let report_crash = move |failed| {
            if let Some(owner) = crashes.upgrade() {
                owner.do_send(failed);
            }
        };
        supervise("connection", report_crash, |_| Self {
            id,
            endpoint,
            context,
            observer,
            machine: ConnectionStateMachine::new(),
            active: None,
            error: None,
            outage: None,
            reconnect_timer: None,
            dial_task: None,
            left_slow_member_at: None,
            addresses: Rc::default(),
            restarted: false,
        })
    }

    pub(super) fn apply(&mut self, action: ConnectionAction, ctx: &mut Context<Self>) {
        match action {
            ConnectionAction::None => {}
            ConnectionAction::Dial(generation) => {
                self.announce();
                self.dial(generation, self.context.dial.clone(), ctx);
            }
            ConnectionAction::DialReplacement(generation) => {
                self.dial(generation, self.replacement_options(), ctx);
            }
            ConnectionAction::ReconnectAfter(delay) => {
                self.active = None;
                self.announce();
                self.cancel_timer(ctx);
                self.reconnect_timer = Some(ctx.notify_later(ReconnectDue, delay));
            }
            ConnectionAction::ReplaceAfter(delay) => {
                self.cancel_timer(ctx);
                self.reconnect_timer = Some(ctx.notify_later(ReplacementDue, delay));
            }
            ConnectionAction::CancelReplacement => {
                self.cancel_timer(ctx);
                self.dial_task = None;
            }
            ConnectionAction::Announce | ConnectionAction::Close => self.announce(),
        }
    }

    fn cancel_timer(&mut self, ctx: &mut Context<Self>) {
        if let Some(pending) = self.reconnect_timer.take() {
            ctx.cancel_future(pending);
        }
    }

    fn announce(&self) {
        let state = self.machine.connectivity();
        let error = match state {
            ConnectivityState::Ready => None,
            _ => self.error.clone(),
        };
        match &error {
            None => tracing::debug!(endpoint = %self.endpoint, %state, "connectivity changed"),
            Some(error) => {
                tracing::debug!(endpoint = %self.endpoint, %state, %error, "connectivity changed");
            }
        }
        if let Some(owner) = self.observer.connectivity.upgrade() {
            owner.do_send(ConnectionStateChanged {
                id: self.id,
                state,
                connection: self.active.as_ref().map(|active| active.connection.clone()),
                error,
            });
        }
    }

    /// Reports that this member is suspected, so that the other members are probed.
    pub(super) fn report_suspicion(&self) {
        if let Some(owner) = self.observer.suspicions.upgrade() {
            owner.do_send(MemberSuspected { id: self.id });
        }
    }

    /// Reports that the connection carries streams, so that its member is checked at intervals.
    pub(super) fn report_streams(&self) {
        if let Some(owner) = self.observer.streams.upgrade() {
            owner.do_send(StreamsStarted);
        }
    }

    pub(super) fn metadata(&self) -> Metadata {
        Metadata {
            require_leader: true,
            token: self.context.token.load_without_waiting().value,
            timeout: None,
        }
    }

    fn dial(&mut self, generation: u64, options: DialOptions, ctx: &mut Context<Self>) {
        let actor = ctx.address().downgrade();
        let event_recipient = actor.clone();
        let (id, endpoint, context) = (self.id, self.endpoint.clone(), self.context.clone());
        let addresses = self.addresses.clone();
        self.dial_task = Some(AbortOnDrop::spawn(async move {
            let on_event = move |event| match event {
                DriverEvent::ClosedToRequests => {
                    send(&event_recipient, ClosedToRequests { generation });
                }
                DriverEvent::Ended(reason) => {
                    send(&event_recipient, ConnectionLost { generation, reason });
                }
            };
            let result =
                first_contact(id, &endpoint, &options, &context, &addresses, on_event).await;
            let result = match result {
                Ok(contact) => replace_ignored_token(contact, id, &context).await,
                failed => failed,
            };
            send(&actor, DialFinished { generation, result });
        }));
    }

    /// Returns the connection in use if it has this generation.
    pub(super) fn active_generation(&mut self, generation: u64) -> Option<&mut ActiveConnection> {
        self.active
            .as_mut()
            .filter(|active| active.generation() == generation)
    }
}

/// Sends a message unless the actor has stopped.
pub(super) fn send<M>(actor: &WeakAddr<ConnectionActor>, message: M)
where
    M: Message + Send + 'static,
    M::Result: Send,
    ConnectionActor: Handler<M>,
{
    if let Some(actor) = actor.upgrade() {
        actor.do_send(message);
    }
}

impl Actor for ConnectionActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if !std::mem::take(&mut self.restarted) {
            return;
        }
        // A crash ends the actor's timers, but not its connection.
        self.reconnect_timer = None;
        if let Some(active) = self.active.as_mut() {
            active.probe = ProbeState::Idle;
            active.next_probe = None;
            if active.driver.has_ended() {
                let generation = active.generation();
                self.close_and_reconnect(generation, Verdict::Closed, ctx);
                // The connection is still there if the crash came before the state machine used it.
                if self.active.take().is_none() {
                    return;
                }
            }
        }
        if let Some(active) = &self.active {
            let verdict = active.connection.health().verdict;
            self.schedule_probe(verdict, ctx);
        }
        let action = self.machine.actor_restarted();
        self.apply(action, ctx);
    }
}

impl Supervised for ConnectionActor {
    fn restarting(&mut self, _: &mut Context<Self>) {
        self.restarted = true;
    }
}

crate::runtime::supervisor::crashes!(ConnectionActor);
