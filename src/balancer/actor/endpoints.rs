//! Which endpoints there are: what the user gave, what the member list gave, and the way back from the one to the other.

use std::time::Duration;

use actix::{AsyncContext, Context, Handler};
use tokio::time::Instant;

use super::{BalancerActor, Member};
use crate::{
    balancer::{By, ConnectivityChange, MemberView, UpdateEndpoints},
    client::endpoint_sync::split_tls_downgrades,
    connection::{ConnectivityState, Drain, EndpointId, actor::ConnectionActor},
    transport::Endpoint,
};

/// When calls have waited for that long and nobody is ready, the endpoints the user gave are tried as well.
const FALL_BACK: Duration = Duration::from_millis(1500);

impl BalancerActor {
    fn add(&mut self, endpoint: Endpoint, ctx: &mut Context<Self>) {
        let id = EndpointId(self.next_id);
        self.next_id += 1;
        let parent = ctx.address().downgrade();
        let actor = ConnectionActor::start(id, endpoint.clone(), self.shared.clone(), parent);
        let view = MemberView {
            id,
            endpoint,
            state: ConnectivityState::Idle,
            since: Instant::now(),
            error: None,
            connection: None,
        };
        self.members.push(Member {
            view,
            actor,
            named_until: None,
        });
    }

    /// Endpoints from the member list may all be gone for good, where the ones they came from are not.
    pub(super) fn fall_back(&mut self, waited_since: Instant, ctx: &mut Context<Self>) {
        if waited_since.elapsed() < FALL_BACK {
            return;
        }
        let known = self.endpoints();
        let seeds = self.seeds.iter().filter(|seed| !known.contains(seed));
        let mut missing: Vec<Endpoint> = seeds.cloned().collect();
        if !self.shared.dial.tls.allows_plain() {
            missing = split_tls_downgrades(missing, &known).0;
        }
        if missing.is_empty() {
            return;
        }
        tracing::warn!(endpoints = ?missing, "nobody answers: the endpoints given at first are tried again");
        for seed in missing {
            self.add(seed, ctx);
        }
        self.publish();
        self.meet_demand();
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        let members = self.members.iter();
        members.map(|member| member.view.endpoint.clone()).collect()
    }
}

impl Handler<UpdateEndpoints> for BalancerActor {
    type Result = ();

    fn handle(&mut self, update: UpdateEndpoints, ctx: &mut Context<Self>) {
        if self.closed {
            return;
        }
        let UpdateEndpoints { endpoints, by } = update;
        match by {
            By::User => {
                self.seeds = endpoints.clone().into();
                self.choice += 1;
            }
            By::Sync(choice) if choice != self.choice => return,
            By::Sync(_) => {}
        }
        let mut kept = std::mem::take(&mut self.members);
        for endpoint in endpoints {
            if self
                .members
                .iter()
                .any(|member| member.view.endpoint == endpoint)
            {
                continue;
            }
            match kept
                .iter()
                .position(|member| member.view.endpoint == endpoint)
            {
                Some(index) => self.members.push(kept.remove(index)),
                None => self.add(endpoint, ctx),
            }
        }
        self.publish();
        for removed in kept {
            removed.actor.do_send(Drain);
            let _ = self.changes.send(ConnectivityChange {
                endpoint: removed.view.endpoint.as_str().to_owned(),
                state: ConnectivityState::Shutdown,
                error: None,
            });
        }
        self.meet_demand();
    }
}
