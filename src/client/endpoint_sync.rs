//! Endpoints that follow the cluster: taken over from its member list, once or again and again.
//!
//! What a cluster advertises is not always reachable (behind a load balancer, say). So an address is adopted only once
//! its member has answered with the right cluster id, an empty list is never adopted, and the endpoints the
//! client was given stay as a fallback. Nor does a member list lead to plain text whoever was told to encrypt.

use std::{sync::Weak, time::Duration};

use tokio::time::{Instant, sleep};

use super::{Client, Inner};
use crate::{
    balancer::{
        ConnectionMode, MemberView,
        messages::{ConnectEndpoint, EndpointSource, UpdateEndpoints},
        split_tls_downgrades,
    },
    call::deadline_in,
    connection::ConnectivityState,
    error::{Error, ErrorKind},
    proto::{Member, MemberListRequest, MemberListResponse, rpc},
    request::macros::response_headers,
    transport::{Endpoint, grpc},
};

response_headers!(MemberListResponse);

/// How often it is looked whether new endpoints have answered.
const LOOK: Duration = Duration::from_millis(20);

impl Client {
    /// Takes the endpoints over from the cluster's member list and gives the ones in use then.
    ///
    /// Learners, members that have not started and new addresses that do not answer with this cluster's id are left out,
    /// and so are plain ones next to encrypted ones unless `TlsOptions::allow_plain_endpoints` was said; if nothing is
    /// left, the endpoints stay as they are. When no member can be reached, the endpoints the client was given are tried
    /// as well. A [`set_endpoints`](Self::set_endpoints) meanwhile prevails.
    pub async fn sync(&self) -> Result<Vec<String>, Error> {
        let choice = self.caller().ready.load().seeds_version;
        let listed = match self.listed().await {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                let set = self.caller().ready.load_full();
                let mut with_seeds = set.endpoints();
                let seeds = self.without_plain(set.seeds.to_vec(), &with_seeds);
                extend(&mut with_seeds, &seeds);
                self.update(with_seeds, choice).await?;
                self.listed().await?
            }
            listed => listed?,
        };
        let before = self.caller().ready.load().endpoints();
        let advertised = self.without_plain(advertised(&listed), &before);
        let mut union = before.clone();
        extend(&mut union, &advertised);
        self.update(union, choice).await?;
        let answers = self.answering(&advertised).await;
        let adopted = adopted(before, &advertised, &answers);
        self.update(adopted, choice).await?;
        Ok(self.endpoints())
    }

    fn without_plain(&self, more: Vec<Endpoint>, known: &[Endpoint]) -> Vec<Endpoint> {
        if self.caller().shared.dial.tls.allows_plain() {
            return more;
        }
        let (kept, plain) = split_tls_downgrades(more, known);
        for endpoint in plain {
            tracing::warn!(%endpoint, "a member advertises an endpoint that is not encrypted; it is left out");
        }
        kept
    }

    async fn listed(&self) -> Result<Vec<Member>, Error> {
        let request = MemberListRequest { linearizable: true };
        let body = grpc::encode(&request)?;
        let answer: MemberListResponse = self
            .caller()
            .unary(rpc::MEMBER_LIST, body, self.request_timeout())
            .await?;
        Ok(answer.members)
    }

    async fn update(&self, endpoints: Vec<Endpoint>, choice: u64) -> Result<(), Error> {
        let update = UpdateEndpoints {
            endpoints,
            source: EndpointSource::MemberList {
                seeds_version: choice,
            },
        };
        let told = self.caller().balancer.send(update).await;
        told.map_err(|_| Error::shut_down())
    }

    /// Waits until each of these has answered or failed, and tells how each stands.
    async fn answering(&self, endpoints: &[Endpoint]) -> Vec<StreamRegistration> {
        let caller = self.caller();
        if caller.policy.connection_mode() == ConnectionMode::Single {
            // A policy that keeps one connection would leave the others idle, and nobody would know of them.
            for endpoint in endpoints {
                caller.balancer.do_send(ConnectEndpoint(endpoint.clone()));
            }
        }
        let patience = deadline_in(caller.shared.dial.connect_timeout) + LOOK;
        loop {
            let set = caller.ready.load_full();
            let standing = |endpoint: &Endpoint| {
                let member = set.members.iter().find(|view| view.endpoint == *endpoint);
                member.map_or(StreamRegistration::Foreign, standing_of)
            };
            let standings: Vec<StreamRegistration> = endpoints.iter().map(standing).collect();
            if !standings.contains(&StreamRegistration::Undecided) || Instant::now() >= patience {
                return standings;
            }
            sleep(LOOK).await;
        }
    }
}

/// How an advertised address stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamRegistration {
    /// It has neither answered nor failed yet.
    Undecided,
    /// It answered, and for this cluster.
    Answers,
    /// It does not answer now.
    Fails,
    /// It belongs to another cluster, or nobody wants it any more.
    Foreign,
}

fn standing_of(member: &MemberView) -> StreamRegistration {
    match member.state {
        ConnectivityState::Idle | ConnectivityState::Connecting if member.error.is_none() => {
            StreamRegistration::Undecided
        }
        ConnectivityState::Ready | ConnectivityState::NoLeader => StreamRegistration::Answers,
        ConnectivityState::Shutdown => StreamRegistration::Foreign,
        ConnectivityState::Idle
        | ConnectivityState::Connecting
        | ConnectivityState::TransientFailure => match &member.error {
            Some(error) if error.kind() == ErrorKind::ClusterChanged => StreamRegistration::Foreign,
            Some(_) | None => StreamRegistration::Fails,
        },
    }
}

/// The endpoints after a sync: new ones that answer, and those in use that are still advertised, even if they are down
/// for the moment. The ones before where none answers.
fn adopted(
    before: Vec<Endpoint>,
    advertised: &[Endpoint],
    standings: &[StreamRegistration],
) -> Vec<Endpoint> {
    if !standings.contains(&StreamRegistration::Answers) {
        return before;
    }
    let wanted = |(endpoint, standing): &(&Endpoint, &StreamRegistration)| match standing {
        StreamRegistration::Answers => true,
        StreamRegistration::Fails | StreamRegistration::Undecided => before.contains(endpoint),
        StreamRegistration::Foreign => false,
    };
    let wanted = advertised.iter().zip(standings).filter(wanted);
    wanted.map(|(endpoint, _)| endpoint.clone()).collect()
}

/// Syncs again and again for as long as the client lives.
pub(crate) async fn keep_in_sync(client: Weak<Inner>, interval: Duration) {
    loop {
        sleep(interval.mul_f64(0.9 + 0.2 * fastrand::f64())).await;
        let Some(client) = client.upgrade().map(Client::from_inner) else {
            return;
        };
        match client.sync().await {
            Ok(endpoints) => tracing::debug!(?endpoints, "endpoints are in sync"),
            Err(error) if error.kind() == ErrorKind::Shutdown => return,
            Err(error) => tracing::warn!(%error, "endpoints could not be synced"),
        }
    }
}

/// The client addresses of members that serve.
fn advertised(members: &[Member]) -> Vec<Endpoint> {
    let mut endpoints = Vec::new();
    let serving = members
        .iter()
        .filter(|member| !member.name.is_empty() && !member.is_learner);
    for url in serving.flat_map(|member| &member.client_ur_ls) {
        match Endpoint::parse(url) {
            Ok(endpoint) => extend(&mut endpoints, &[endpoint]),
            Err(error) => tracing::warn!(%error, "a member advertises what is no endpoint"),
        }
    }
    endpoints
}

fn extend(endpoints: &mut Vec<Endpoint>, more: &[Endpoint]) {
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
    fn a_member_in_use_stays_while_it_is_down_and_a_new_one_has_to_answer() {
        use StreamRegistration::{Answers, Fails, Foreign, Undecided};
        let advertised = endpoints(&["a:1", "b:1", "c:1", "d:1", "e:1"]);
        let before = endpoints(&["seed:1", "b:1", "d:1"]);
        let standings = [Answers, Fails, Fails, Foreign, Undecided];
        let after = adopted(before.clone(), &advertised, &standings);
        assert_eq!(after, endpoints(&["a:1", "b:1"]));
        let none = [Fails, Fails, Undecided, Foreign, Fails];
        assert_eq!(adopted(before.clone(), &advertised, &none), before);
    }

    #[test]
    fn learners_unstarted_members_and_nonsense_are_left_out() {
        let members = [
            member("a", false, &["http://a:1", "http://b:1"]),
            member("", false, &["http://unstarted:1"]),
            member("l", true, &["http://learner:1"]),
            member("b", false, &["http://a:1", "nonsense://"]),
        ];
        let names: Vec<_> = advertised(&members)
            .iter()
            .map(|e| e.as_str().to_owned())
            .collect();
        assert_eq!(names, ["http://a:1", "http://b:1"]);
    }
}
