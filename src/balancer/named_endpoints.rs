//! Endpoints that requests name (`.at(endpoint)`): connected for a while even if the policy would leave them idle.

use std::time::Duration;

use actix::{AsyncContext, Context, Handler};
use tokio::time::Instant;

#[cfg(feature = "test-faults")]
use super::messages::ExpireNamedEndpoints;
use super::{
    BalancerActor, ConnectivityState,
    actor::ManagedEndpoint,
    messages::{ConnectEndpoint, NamedEndpointsExpired},
};

/// Time for which an endpoint stays connected after a request has named it. Such requests come in groups.
const NAMED_FOR: Duration = Duration::from_secs(30);

impl ManagedEndpoint {
    /// Returns whether a request has named the endpoint recently.
    pub(super) fn is_named(&self, now: Instant) -> bool {
        self.named_until.is_some_and(|until| now < until)
    }
}

impl BalancerActor {
    /// Returns whether only requests that name the endpoint may use it: all others use the kept endpoint while it is
    /// ready. Such an endpoint is named, or it became ready before it received the command to disconnect.
    pub(super) fn is_reserved_for_named_requests(&self, endpoint: &ManagedEndpoint) -> bool {
        let kept = self
            .endpoints
            .iter()
            .find(|other| Some(other.view.id) == self.kept);
        kept.is_some_and(|kept| {
            kept.view.state == ConnectivityState::Ready && kept.view.id != endpoint.view.id
        })
    }

    /// Sets one timer for the time at which the last named endpoint expires.
    pub(super) fn schedule_named_expiry(&mut self, ctx: &mut Context<Self>) {
        let expiries = self.endpoints.iter().filter_map(|other| other.named_until);
        let now = Instant::now();
        if let Some(last) = expiries.max().filter(|last| now < *last)
            && !std::mem::replace(&mut self.expiry_scheduled, true)
        {
            ctx.notify_later(NamedEndpointsExpired, last - now);
        }
    }
}

impl Handler<ConnectEndpoint> for BalancerActor {
    type Result = ();

    fn handle(&mut self, ConnectEndpoint(endpoint): ConnectEndpoint, ctx: &mut Context<Self>) {
        let named = self
            .endpoints
            .iter_mut()
            .find(|other| other.view.endpoint == endpoint);
        if let Some(named) = named {
            named.named_until = Some(Instant::now() + NAMED_FOR);
            self.update_connections();
            self.schedule_named_expiry(ctx);
        }
    }
}

impl Handler<NamedEndpointsExpired> for BalancerActor {
    type Result = ();

    fn handle(&mut self, _: NamedEndpointsExpired, ctx: &mut Context<Self>) {
        self.expiry_scheduled = false;
        self.update_connections();
        self.schedule_named_expiry(ctx);
    }
}

#[cfg(feature = "test-faults")]
impl Handler<ExpireNamedEndpoints> for BalancerActor {
    type Result = ();

    fn handle(&mut self, _: ExpireNamedEndpoints, _: &mut Context<Self>) {
        for endpoint in &mut self.endpoints {
            endpoint.named_until = None;
        }
        self.update_connections();
    }
}
