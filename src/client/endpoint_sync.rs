//! Updates the endpoints from the cluster's member list, once or periodically.
//!
//! Members can advertise addresses that the client cannot reach, for example behind a load balancer. Therefore a new
//! address is adopted only after its member has responded with the right cluster id, an empty list is never adopted,
//! and the endpoints given by the user stay as a fallback. A plain address is never adopted next to encrypted ones,
//! unless the user allows it.

use std::{sync::Weak, time::Duration};

use tokio::time::{Instant, sleep};

use super::{Client, RunningClient, update_endpoints};
use crate::{
    balancer::{
        ConnectionMode, EndpointView,
        messages::{ConnectEndpoint, EndpointSource},
        split_tls_downgrades,
    },
    call::deadline_in,
    connection::ConnectivityState,
    error::{Error, ErrorKind},
    proto::{Member, MemberListRequest, MemberListResponse, rpc},
    request::macros::response_headers,
    runtime::backoff::Backoff,
    transport::{Endpoint, grpc},
};

response_headers!(MemberListResponse);

/// Interval at which the states of new endpoints are read.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Share of the sync interval that jitter adds or subtracts.
const SYNC_JITTER: f64 = 0.1;

impl Client {
    /// Replaces the endpoints by the addresses in the cluster's member list, and returns the endpoints then in use.
    ///
    /// Leaves out learners, members that have not started, new addresses that do not respond with this cluster's id,
    /// and plain addresses next to encrypted ones (unless `TlsOptions::allow_plain_endpoints` is set). If no address is
    /// left, the endpoints stay as they are. If no member can be reached, the endpoints that were given to the client
    /// are tried, too. If [`set_endpoints`](Self::set_endpoints) is called meanwhile, its endpoints are used.
    pub async fn sync(&self) -> Result<Vec<String>, Error> {
        let source = EndpointSource::MemberList {
            seeds_version: self.caller().ready_set.load().seeds_version,
        };
        let members = match self.member_list().await {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                let set = self.caller().ready_set.load_full();
                let mut with_seeds = set.endpoints();
                let seeds = self.without_downgrades(set.seeds.to_vec(), &with_seeds);
                add_missing(&mut with_seeds, &seeds);
                update_endpoints(self.caller(), with_seeds, source).await?;
                self.member_list().await?
            }
            members => members?,
        };
        let before = self.caller().ready_set.load().endpoints();
        let advertised = self.without_downgrades(advertised_endpoints(&members), &before);
        let mut candidates = before.clone();
        add_missing(&mut candidates, &advertised);
        update_endpoints(self.caller(), candidates, source).await?;
        let checks = self.check_endpoints(&advertised).await;
        let adopted = adopted_endpoints(before, &advertised, &checks);
        update_endpoints(self.caller(), adopted, source).await?;
        Ok(self.endpoints())
    }

    /// Removes plain endpoints if others are encrypted and the user does not allow the mixture.
    fn without_downgrades(&self, new: Vec<Endpoint>, known: &[Endpoint]) -> Vec<Endpoint> {
        if self.caller().context.dial.tls.allows_plain() {
            return new;
        }
        let (kept, plain) = split_tls_downgrades(new, known);
        for endpoint in plain {
            tracing::warn!(%endpoint, "ignored an advertised endpoint that is not encrypted");
        }
        kept
    }

    async fn member_list(&self) -> Result<Vec<Member>, Error> {
        let request = MemberListRequest { linearizable: true };
        let body = grpc::encode(&request)?;
        let response: MemberListResponse = self
            .caller()
            .unary(rpc::MEMBER_LIST, body, self.request_timeout())
            .await?;
        Ok(response.members)
    }

    /// Waits until each endpoint has connected or failed, but not longer than a connection attempt may take.
    async fn check_endpoints(&self, endpoints: &[Endpoint]) -> Vec<EndpointCheck> {
        let caller = self.caller();
        if caller.policy.connection_mode() == ConnectionMode::Single {
            // This policy leaves all but one endpoint idle: connect them for the check.
            for endpoint in endpoints {
                caller.balancer.do_send(ConnectEndpoint(endpoint.clone()));
            }
        }
        let deadline = deadline_in(caller.context.dial.connect_timeout) + POLL_INTERVAL;
        loop {
            let set = caller.ready_set.load_full();
            let check = |endpoint: &Endpoint| {
                let member = set.views.iter().find(|view| view.endpoint == *endpoint);
                member.map_or(EndpointCheck::Foreign, EndpointCheck::of)
            };
            let checks: Vec<EndpointCheck> = endpoints.iter().map(check).collect();
            if !checks.contains(&EndpointCheck::Pending) || Instant::now() >= deadline {
                return checks;
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}

/// Result of connecting to an advertised endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndpointCheck {
    /// Has neither connected nor failed yet.
    Pending,
    /// Responded with this cluster's id.
    Reachable,
    /// Cannot be reached now.
    Unreachable,
    /// Belongs to another cluster, or was removed from the endpoints meanwhile.
    Foreign,
}

impl EndpointCheck {
    fn of(member: &EndpointView) -> Self {
        match member.state {
            ConnectivityState::Idle | ConnectivityState::Connecting if member.error.is_none() => {
                Self::Pending
            }
            ConnectivityState::Ready | ConnectivityState::NoLeader => Self::Reachable,
            ConnectivityState::Shutdown => Self::Foreign,
            ConnectivityState::Idle
            | ConnectivityState::Connecting
            | ConnectivityState::TransientFailure => match &member.error {
                Some(error) if error.kind() == ErrorKind::ClusterChanged => Self::Foreign,
                Some(_) | None => Self::Unreachable,
            },
        }
    }
}

/// Returns the endpoints after a sync: advertised ones that are reachable, and advertised ones in use before, even if
/// they are down. If none is reachable, returns the endpoints in use before.
fn adopted_endpoints(
    before: Vec<Endpoint>,
    advertised: &[Endpoint],
    checks: &[EndpointCheck],
) -> Vec<Endpoint> {
    if !checks.contains(&EndpointCheck::Reachable) {
        return before;
    }
    let adopt = |(endpoint, check): &(&Endpoint, &EndpointCheck)| match check {
        EndpointCheck::Reachable => true,
        EndpointCheck::Unreachable | EndpointCheck::Pending => before.contains(endpoint),
        EndpointCheck::Foreign => false,
    };
    let adopted = advertised.iter().zip(checks).filter(adopt);
    adopted.map(|(endpoint, _)| endpoint.clone()).collect()
}

/// Syncs at this interval until the client is shut down.
pub(super) async fn sync_periodically(client: Weak<RunningClient>, interval: Duration) {
    let schedule = Backoff::new(interval, interval).jitter(SYNC_JITTER);
    loop {
        sleep(schedule.delay(0, fastrand::f64())).await;
        let Some(running) = client.upgrade() else {
            return;
        };
        match (Client { running }).sync().await {
            Ok(endpoints) => tracing::debug!(?endpoints, "endpoints synced"),
            Err(error) if error.kind() == ErrorKind::Shutdown => return,
            Err(error) => tracing::warn!(%error, "cannot sync endpoints"),
        }
    }
}

/// Returns the client addresses of all members that have started and are not learners.
fn advertised_endpoints(members: &[Member]) -> Vec<Endpoint> {
    let mut endpoints = Vec::new();
    let serving = members
        .iter()
        .filter(|member| !member.name.is_empty() && !member.is_learner);
    for url in serving.flat_map(|member| &member.client_ur_ls) {
        match Endpoint::parse(url) {
            Ok(endpoint) => add_missing(&mut endpoints, &[endpoint]),
            Err(error) => {
                tracing::warn!(%error, "ignored an advertised endpoint that is not valid");
            }
        }
    }
    endpoints
}

fn add_missing(endpoints: &mut Vec<Endpoint>, more: &[Endpoint]) {
    for endpoint in more {
        if !endpoints.contains(endpoint) {
            endpoints.push(endpoint.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, learner: bool, urls: &[&str]) -> Member {
        Member {
            name: name.to_owned(),
            is_learner: learner,
            client_ur_ls: urls.iter().map(|url| (*url).to_owned()).collect(),
            ..Member::default()
        }
    }

    fn endpoints(names: &[&str]) -> Vec<Endpoint> {
        let parsed = names.iter().map(|name| Endpoint::parse(name));
        parsed.map(Result::unwrap).collect()
    }

    #[test]
    fn new_endpoint_is_adopted_only_if_reachable() {
        use EndpointCheck::{Foreign, Pending, Reachable, Unreachable};
        let advertised = endpoints(&["a:1", "b:1", "c:1", "d:1", "e:1"]);
        let before = endpoints(&["seed:1", "b:1", "d:1"]);
        let checks = [Reachable, Unreachable, Unreachable, Foreign, Pending];
        let after = adopted_endpoints(before.clone(), &advertised, &checks);
        assert_eq!(after, endpoints(&["a:1", "b:1"]));
        let none = [Unreachable, Unreachable, Pending, Foreign, Unreachable];
        assert_eq!(
            adopted_endpoints(before.clone(), &advertised, &none),
            before
        );
    }

    #[test]
    fn only_valid_urls_of_serving_members_are_used() {
        let members = [
            member("a", false, &["http://a:1", "http://b:1"]),
            member("", false, &["http://unstarted:1"]),
            member("l", true, &["http://learner:1"]),
            member("b", false, &["http://a:1", "nonsense://"]),
        ];
        let names: Vec<_> = advertised_endpoints(&members)
            .iter()
            .map(|e| e.as_str().to_owned())
            .collect();
        assert_eq!(names, ["http://a:1", "http://b:1"]);
    }
}
