//! The actor of a session.

use std::sync::Arc;

use actix::{
    Actor, ActorContext, ActorFutureExt, Addr, AsyncContext, Context, Handler, Supervised,
    WrapFuture,
};

use super::{SessionBuilder, SessionState, healing::Healer, messages::EndSession};
use crate::runtime::supervisor::supervise;

/// Follows the lease of one session until the session is lost for good or its handle is dropped.
pub(crate) struct SessionActor {
    healer: Arc<Healer>,
}

impl SessionActor {
    pub(super) fn start(builder: SessionBuilder, state: Arc<SessionState>) -> Addr<Self> {
        let healer = Arc::new(Healer { builder, state });
        supervise("session", |_| {}, |_| Self { healer })
    }
}

impl Actor for SessionActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let healer = self.healer.clone();
        let follow_lease = async move { healer.follow_lease().await };
        ctx.spawn(follow_lease.into_actor(self).map(|(), _, ctx| ctx.stop()));
    }
}

impl Supervised for SessionActor {}

crate::runtime::supervisor::crashes!(SessionActor);

impl Drop for SessionActor {
    fn drop(&mut self) {
        self.healer.state.end_if_open();
    }
}

impl Handler<EndSession> for SessionActor {
    type Result = ();

    fn handle(&mut self, _: EndSession, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}
