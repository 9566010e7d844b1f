//! The second legs of hedged watches: how they are started, and which members they may use.
//!
//! The legs of a watch must be on different members. Members are compared by endpoint and, where the client knows them,
//! by member id, because two endpoints may lead to one member. A leg for which there is no other member waits, and
//! does not affect the other leg.

use std::{sync::Arc, time::Duration};

use actix::{AsyncContext, Context, Handler};

use super::{
    HubActor,
    actor::{PlacedWatch, Placement},
    messages::{AttachWatch, RetryWaitingLegs, StartSecondLeg},
};
use crate::{
    connection::{Connection, EndpointId},
    watch::engine::watch_actor::{CancelWatch, NewWatch, SecondLegStarted},
};

/// Time between two attempts to place the legs that wait for a second member.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The member that carries the other leg of a watch.
#[derive(Debug, Clone, Copy)]
pub(super) struct LegMember {
    endpoint: EndpointId,
    /// `None` if the member has not reported it.
    id: Option<u64>,
}

impl LegMember {
    /// Returns whether the connection may lead to this member.
    pub(super) fn may_be_behind(self, connection: &Connection) -> bool {
        connection.id == self.endpoint || self.id.is_some() && self.id == member_id(connection)
    }
}

fn member_id(connection: &Connection) -> Option<u64> {
    let status = connection.health().status;
    status.map(|status| status.member).filter(|id| *id != 0)
}

impl HubActor {
    /// Returns what a new watch needs of the hub, with the next id.
    pub(super) fn new_watch(&mut self, ctx: &mut Context<Self>) -> NewWatch {
        self.last_watch += 1;
        NewWatch {
            id: self.last_watch,
            hub: ctx.address().downgrade(),
            caller: Arc::downgrade(&self.caller),
        }
    }

    /// Removes a watch that has ended, and ends its second leg.
    pub(super) fn remove_watch(&mut self, watch: u64) {
        let removed = self.watches.remove(&watch);
        let second_leg = removed.and_then(|placed| placed.second_leg);
        if let Some(second_leg) = second_leg
            && let Some(placed) = self.watches.get(&second_leg)
        {
            placed.address.do_send(CancelWatch);
        }
    }

    /// Returns the member that carries the other leg of the watch, if there is another leg and it is on a stream.
    pub(super) fn member_of_other_leg(&self, attach: &AttachWatch) -> Option<LegMember> {
        let other = self.watches.get(&attach.apart_from?)?;
        let Placement::OnStream(number) = other.placement else {
            return None;
        };
        let endpoint = self.stream(number)?.endpoint;
        let set = self.caller.ready_set.load();
        let mut connections = set.ready.iter().chain(&set.leaderless);
        let connection = connections.find(|connection| connection.id == endpoint);
        Some(LegMember {
            endpoint,
            id: connection.and_then(|connection| member_id(connection)),
        })
    }

    /// Queues a leg until a member other than that of the other leg is usable.
    pub(super) fn wait_for_second_member(&mut self, attach: AttachWatch, ctx: &mut Context<Self>) {
        self.waiting_legs.push(attach);
        self.retry_waiting_legs_later(ctx);
    }

    pub(super) fn retry_waiting_legs_later(&mut self, ctx: &mut Context<Self>) {
        if !std::mem::replace(&mut self.legs_retry_pending, true) {
            ctx.notify_later(RetryWaitingLegs, RETRY_INTERVAL);
        }
    }
}

impl Handler<RetryWaitingLegs> for HubActor {
    type Result = ();

    fn handle(&mut self, _: RetryWaitingLegs, ctx: &mut Context<Self>) {
        self.legs_retry_pending = false;
        for attach in std::mem::take(&mut self.waiting_legs) {
            self.place(attach, ctx);
        }
    }
}

impl Handler<StartSecondLeg> for HubActor {
    type Result = ();

    fn handle(&mut self, start: StartSecondLeg, ctx: &mut Context<Self>) {
        let first = start.leg.first_watch();
        let has_second = |placed: &PlacedWatch| placed.second_leg.is_some();
        if self.watches.get(&first).is_none_or(has_second) {
            return;
        }
        let address = self.new_watch(ctx).start_second_leg(start);
        let watch = self.last_watch;
        self.watches
            .insert(watch, PlacedWatch::new(address.clone()));
        if let Some(placed) = self.watches.get_mut(&first) {
            placed.second_leg = Some(watch);
            placed.address.do_send(SecondLegStarted { watch, address });
        }
    }
}
