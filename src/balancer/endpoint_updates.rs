//! Adds and removes endpoints: set by the user, taken from the cluster's member list, or restored from the seeds.

use std::time::Duration;

use actix::{AsyncContext, Context, Handler};
use tokio::time::Instant;

use super::{
    BalancerActor, ConnectivityChange, ConnectivityState, EndpointView,
    actor::ManagedEndpoint,
    messages::{EndpointSource, UpdateEndpoints},
    tls_downgrade::split_tls_downgrades,
};
use crate::{
    connection::{ConnectionActor, ConnectionObserver, EndpointId, Voter, messages::Drain},
    transport::Endpoint,
};

/// Time for which calls wait without a ready member before the seeds are added to the endpoints.
const FALL_BACK_AFTER: Duration = Duration::from_millis(1500);

impl BalancerActor {
    fn add_endpoint(&mut self, endpoint: Endpoint, ctx: &mut Context<Self>) {
        let id = EndpointId(self.next_id);
        self.next_id += 1;
        let observer = ConnectionObserver::new(&ctx.address().downgrade());
        let actor = ConnectionActor::start(id, endpoint.clone(), self.context.clone(), observer);
        let view = EndpointView {
            id,
            endpoint,
            state: ConnectivityState::Idle,
            since: Instant::now(),
            error: None,
            connection: None,
        };
        self.endpoints.push(ManagedEndpoint {
            view,
            actor,
            named_until: None,
        });
    }

    /// Makes the current endpoints take part in the choice of the client's cluster.
    fn register_voters(&self) {
        let voters = self.endpoints.iter().map(|endpoint| Voter {
            id: endpoint.view.id,
            name: endpoint.view.endpoint.name(),
            advertised: !self.seeds.contains(&endpoint.view.endpoint),
        });
        self.context.cluster.set_voters(voters.collect());
    }

    /// Adds the seeds after calls have waited for a while: all endpoints of the member list may have been replaced.
    pub(super) fn fall_back_to_seeds(&mut self, waiting_since: Instant, ctx: &mut Context<Self>) {
        if waiting_since.elapsed() < FALL_BACK_AFTER {
            return;
        }
        let views = self.endpoints.iter().map(|endpoint| &endpoint.view);
        let known: Vec<Endpoint> = views.map(|view| view.endpoint.clone()).collect();
        let seeds = self.seeds.iter().filter(|seed| !known.contains(seed));
        let mut missing: Vec<Endpoint> = seeds.cloned().collect();
        if !self.context.dial.tls.allows_plain() {
            missing = split_tls_downgrades(missing, &known).0;
        }
        if missing.is_empty() {
            return;
        }
        tracing::warn!(endpoints = ?missing, "no endpoint responds; initial endpoints added");
        for seed in missing {
            self.add_endpoint(seed, ctx);
        }
        self.register_voters();
        self.publish();
        self.update_connections();
    }
}

impl Handler<UpdateEndpoints> for BalancerActor {
    type Result = ();

    fn handle(&mut self, update: UpdateEndpoints, ctx: &mut Context<Self>) {
        if self.closed {
            return;
        }
        let UpdateEndpoints { endpoints, source } = update;
        match source {
            EndpointSource::User => {
                self.seeds = endpoints.clone().into();
                self.seeds_version += 1;
            }
            EndpointSource::MemberList { seeds_version } => {
                if seeds_version != self.seeds_version {
                    return;
                }
            }
        }
        let mut previous = std::mem::take(&mut self.endpoints);
        for endpoint in endpoints {
            let is_same = |other: &ManagedEndpoint| other.view.endpoint == endpoint;
            if self.endpoints.iter().any(is_same) {
                continue;
            }
            match previous.iter().position(is_same) {
                Some(index) => self.endpoints.push(previous.remove(index)),
                None => self.add_endpoint(endpoint, ctx),
            }
        }
        self.register_voters();
        self.publish();
        for removed in previous {
            removed.actor.do_send(Drain);
            let _ = self.changes.send(ConnectivityChange {
                endpoint: removed.view.endpoint.as_str().to_owned(),
                state: ConnectivityState::Shutdown,
                error: None,
            });
        }
        self.update_connections();
    }
}
