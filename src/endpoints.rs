//! Endpoints that follow the cluster: taken over from its member list, once or again and again.
//!
//! What a cluster advertises is not always reachable (behind a load balancer, say). So an address is adopted only once
//! its member has answered with the right cluster id, an empty list is never adopted, and the endpoints the
//! client was given stay as a fallback. Nor does a member list lead to plain text whoever was told to encrypt.

use std::{sync::Weak, time::Duration};

use tokio::time::{Instant, sleep};

use crate::{
    api::answers,
    balancer::{Connects, UpdateEndpoints},
    call::Rpc,
    client::{Client, Inner},
    connection::ConnectivityState,
    error::{Error, ErrorKind},
    proto::{Member, MemberListRequest, MemberListResponse},
    retry::RpcClass,
    runtime::shut_down,
    transport::{Endpoint, grpc},
};

answers!(MemberListResponse);

/// How often it is looked whether new endpoints have answered.
const LOOK: Duration = Duration::from_millis(20);

impl Client {
    /// Takes the endpoints over from the cluster's member list and gives the ones in use then.
    ///
    /// Learners, members that have not started and addresses that do not answer with this cluster's id are left
    /// out, and so are plain ones next to encrypted ones unless `TlsOptions::allow_plain_endpoints` was said; if nothing
    /// is left, the endpoints stay as they are. When no member can be reached, the endpoints the client was made with
    /// are tried as well.
    pub async fn sync(&self) -> Result<Vec<String>, Error> {
        let listed = match self.listed().await {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                let mut with_seeds = self.current_endpoints();
                let seeds = self.without_downgrades(self.seeds().to_vec(), &with_seeds);
                extend(&mut with_seeds, seeds);
                self.update(with_seeds).await?;
                self.listed().await?
            }
            listed => listed?,
        };
        let before = self.current_endpoints();
        let advertised = self.without_downgrades(advertised(&listed), &before);
        let mut union = before.clone();
        extend(&mut union, advertised.clone());
        self.update(union).await?;
        let answering = self.answering(&advertised).await;
        let adopted = if answering.is_empty() {
            before
        } else {
            answering
        };
        self.update(adopted).await?;
        Ok(self.endpoints())
    }

    fn without_downgrades(&self, more: Vec<Endpoint>, known: &[Endpoint]) -> Vec<Endpoint> {
        if self.caller().shared.dial.tls.allows_plain() {
            return more;
        }
        let (kept, plain) = without_downgrades(more, known);
        for endpoint in plain {
            tracing::warn!(%endpoint, "a member advertises an endpoint that is not encrypted; it is left out");
        }
        kept
    }

    async fn listed(&self) -> Result<Vec<Member>, Error> {
        let rpc = Rpc {
            path: "/etcdserverpb.Cluster/MemberList",
            class: RpcClass::Read,
            leaderless: false,
        };
        let request = MemberListRequest { linearizable: true };
        let body = grpc::encode(&request)?;
        let answer: MemberListResponse = self
            .caller()
            .unary(rpc, body, self.request_timeout())
            .await?;
        Ok(answer.members)
    }

    fn current_endpoints(&self) -> Vec<Endpoint> {
        let set = self.caller().ready.load();
        set.members
            .iter()
            .map(|member| member.endpoint.clone())
            .collect()
    }

    async fn update(&self, endpoints: Vec<Endpoint>) -> Result<(), Error> {
        let told = self
            .caller()
            .balancer
            .send(UpdateEndpoints(endpoints))
            .await;
        told.map_err(|_| shut_down())
    }

    /// Waits until each of these has answered or failed, and gives those that answered.
    async fn answering(&self, endpoints: &[Endpoint]) -> Vec<Endpoint> {
        // A policy that keeps one connection leaves the others idle: nothing speaks against them.
        let rests = self.caller().policy.connects() == Connects::One;
        let patience = Instant::now() + self.caller().shared.dial.connect_timeout + LOOK;
        loop {
            let set = self.caller().ready.load_full();
            let state_of = |endpoint: &&Endpoint| {
                let member = set
                    .members
                    .iter()
                    .find(|member| member.endpoint == **endpoint);
                member.map_or(ConnectivityState::Shutdown, |member| member.state)
            };
            let undecided = |endpoint: &Endpoint| match state_of(&endpoint) {
                ConnectivityState::Connecting => true,
                ConnectivityState::Idle => !rests,
                _ => false,
            };
            if !endpoints.iter().any(undecided) || Instant::now() >= patience {
                let answered = |endpoint: &&Endpoint| match state_of(endpoint) {
                    ConnectivityState::Ready | ConnectivityState::NoLeader => true,
                    ConnectivityState::Idle => rests,
                    _ => false,
                };
                return endpoints.iter().filter(answered).cloned().collect();
            }
            sleep(LOOK).await;
        }
    }
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
            Ok(endpoint) => extend(&mut endpoints, vec![endpoint]),
            Err(error) => tracing::warn!(%error, "a member advertises what is no endpoint"),
        }
    }
    endpoints
}

/// The endpoints that may be used beside those that are known, and the plain ones that may not: where one is encrypted,
/// a plain one would get passwords and tokens in the clear.
fn without_downgrades(more: Vec<Endpoint>, known: &[Endpoint]) -> (Vec<Endpoint>, Vec<Endpoint>) {
    let encrypted = more.iter().chain(known).any(Endpoint::is_tls);
    more.into_iter()
        .partition(|endpoint| endpoint.is_tls() || !encrypted)
}

fn extend(endpoints: &mut Vec<Endpoint>, more: Vec<Endpoint>) {
    for endpoint in more {
        if !endpoints.contains(&endpoint) {
            endpoints.push(endpoint);
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

    fn endpoints(texts: &[&str]) -> Vec<Endpoint> {
        let parsed = texts.iter().map(|text| Endpoint::parse(text));
        parsed.collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn no_plain_endpoint_comes_beside_an_encrypted_one() {
        for (known, more, kept) in [
            (
                vec!["https://a:1"],
                vec!["https://b:1", "http://c:1"],
                vec!["https://b:1"],
            ),
            (vec!["https://a:1"], vec!["http://a:1", "unix:///s"], vec![]),
            (vec!["unixs:///s"], vec!["http://a:1"], vec![]),
            (
                vec!["http://a:1"],
                vec!["https://b:1", "http://c:1"],
                vec!["https://b:1"],
            ),
            (
                vec!["http://a:1"],
                vec!["http://b:1", "unix:///s"],
                vec!["http://b:1", "unix:///s"],
            ),
        ] {
            let (found, plain) = without_downgrades(endpoints(&more), &endpoints(&known));
            assert_eq!(found, endpoints(&kept), "{known:?} {more:?}");
            assert_eq!(plain.len(), more.len() - kept.len());
        }
    }
}
