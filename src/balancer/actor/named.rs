//! Members that requests name: connected even where the policy would let them rest.

use std::time::Duration;

use actix::{AsyncContext, Context, Handler, Message};
use tokio::time::Instant;

use super::{BalancerActor, Member};
use crate::{balancer::NeedMember, connection::ConnectivityState};

/// A member that requests have named stays connected for that long: they come in groups.
const NAMED_FOR: Duration = Duration::from_secs(30);

impl Member {
    pub(super) fn is_named(&self, now: Instant) -> bool {
        self.named_until.is_some_and(|until| now < until)
    }
}

impl BalancerActor {
    /// Whether it is there for requests that name it, and the others have the one that is kept.
    pub(super) fn is_only_named(&self, member: &Member) -> bool {
        let kept = |other: &&Member| Some(other.view.id) == self.kept;
        let kept = self.members.iter().find(kept);
        kept.is_some_and(|kept| {
            kept.view.state == ConnectivityState::Ready
                && kept.view.id != member.view.id
                && member.is_named(Instant::now())
        })
    }

    /// Looks again when members may not be named any more; one timer, however many requests name them.
    pub(super) fn forget_names(&mut self, ctx: &mut Context<Self>) {
        let last = self.members.iter().filter_map(|member| member.named_until);
        let now = Instant::now();
        if let Some(last) = last.max().filter(|last| now < *last)
            && !std::mem::replace(&mut self.forgetting, true)
        {
            ctx.notify_later(NamedNoMore, last - now);
        }
    }
}

/// A member may not be named any more.
#[derive(Message)]
#[rtype(result = "()")]
struct NamedNoMore;

impl Handler<NeedMember> for BalancerActor {
    type Result = ();

    fn handle(&mut self, NeedMember(endpoint): NeedMember, ctx: &mut Context<Self>) {
        let named = self
            .members
            .iter_mut()
            .find(|member| member.view.endpoint == endpoint);
        if let Some(member) = named {
            member.named_until = Some(Instant::now() + NAMED_FOR);
            self.meet_demand();
            self.forget_names(ctx);
        }
    }
}

impl Handler<NamedNoMore> for BalancerActor {
    type Result = ();

    fn handle(&mut self, _: NamedNoMore, ctx: &mut Context<Self>) {
        self.forgetting = false;
        self.meet_demand();
        self.forget_names(ctx);
    }
}
