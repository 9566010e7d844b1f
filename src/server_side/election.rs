//! Elections run by the server (service `v3election`).
//!
//! As with server-side [`lock`](super::lock)s, the request stays open while the candidate waits, and fails with its
//! member. Prefer [`recipes::election`](crate::recipes::election).

use crate::{
    error::{Error, ErrorKind, Outcome, Result},
    proto::{
        KeyValue, ResponseHeader, rpc,
        v3electionpb::{
            CampaignRequest, CampaignResponse, LeaderRequest, LeaderResponse, ProclaimRequest,
            ProclaimResponse, ResignRequest, ResignResponse,
        },
    },
    request::{
        ClientHandle, HeaderResponse, IntoBytes, Request, ResponseStream, header,
        key_prefix::{KeyPrefix, KeyedRequest, KeyedResponse},
        macros::{from_response, header_responses, response_headers},
    },
};

pub use crate::proto::v3electionpb::LeaderKey;

response_headers!(CampaignResponse, LeaderResponse);
header_responses!(ProclaimResponse, ResignResponse);

impl KeyedRequest for CampaignRequest {
    fn add_prefix(&mut self, prefix: &KeyPrefix) {
        prefix.add(&mut self.name);
    }
}

impl KeyedRequest for LeaderRequest {
    fn add_prefix(&mut self, prefix: &KeyPrefix) {
        prefix.add(&mut self.name);
    }
}

impl KeyedRequest for ProclaimRequest {
    fn add_prefix(&mut self, prefix: &KeyPrefix) {
        add_to_leader(&mut self.leader, prefix);
    }
}

impl KeyedRequest for ResignRequest {
    fn add_prefix(&mut self, prefix: &KeyPrefix) {
        add_to_leader(&mut self.leader, prefix);
    }
}

fn add_to_leader(leader: &mut Option<LeaderKey>, prefix: &KeyPrefix) {
    if let Some(leader) = leader {
        prefix.add(&mut leader.name);
        prefix.add(&mut leader.key);
    }
}

impl KeyedResponse for CampaignResponse {
    fn remove_prefix(&mut self, prefix: &KeyPrefix) {
        if let Some(leader) = &mut self.leader {
            prefix.remove(&mut leader.name);
            prefix.remove(&mut leader.key);
        }
    }
}

impl KeyedResponse for LeaderResponse {
    fn remove_prefix(&mut self, prefix: &KeyPrefix) {
        self.kv.remove_prefix(prefix);
    }
}

impl KeyedResponse for ProclaimResponse {
    fn remove_prefix(&mut self, _: &KeyPrefix) {}
}

impl KeyedResponse for ResignResponse {
    fn remove_prefix(&mut self, _: &KeyPrefix) {}
}

/// Requests of the election service, made by [`Client::server_elections`](crate::Client::server_elections).
#[derive(Debug, Clone)]
pub struct ServerElections<C = ()>(C);

/// Creates unbound requests: messages to the actor [`Etcd`](crate::Etcd), or bound later with `.on(&client)`.
pub fn requests() -> ServerElections {
    ServerElections(())
}

impl<C> ServerElections<C> {
    pub(crate) fn new(client: C) -> Self {
        Self(client)
    }
}

impl<C: Clone> ServerElections<C> {
    /// Waits until elected and proclaims a value. The leadership lasts until the lease ends or `resign`. Set a
    /// `.timeout` that covers the wait.
    pub fn campaign(
        &self,
        name: impl IntoBytes,
        lease: impl Into<i64>,
        value: impl IntoBytes,
    ) -> Request<Elected, C> {
        let request = CampaignRequest {
            name: name.into_bytes(),
            lease: lease.into(),
            value: value.into_bytes(),
        };
        let rpc = rpc::SERVER_CAMPAIGN;
        Request::with_keys::<_, CampaignResponse>(&self.0, rpc, &request)
    }

    /// Changes the proclaimed value. Fails with [`ErrorKind::LockLost`] if the leadership has ended.
    pub fn proclaim(
        &self,
        leader: &LeaderKey,
        value: impl IntoBytes,
    ) -> Request<HeaderResponse, C> {
        let request = ProclaimRequest {
            leader: Some(leader.clone()),
            value: value.into_bytes(),
        };
        let rpc = rpc::SERVER_PROCLAIM;
        Request::with_keys::<_, ProclaimResponse>(&self.0, rpc, &request)
    }

    /// Gives up the leadership.
    pub fn resign(&self, leader: &LeaderKey) -> Request<HeaderResponse, C> {
        let request = ResignRequest {
            leader: Some(leader.clone()),
        };
        let rpc = rpc::SERVER_RESIGN;
        Request::with_keys::<_, ResignResponse>(&self.0, rpc, &request)
    }

    /// Returns the leader. Fails with [`ErrorKind::NoElectionLeader`] if there is none.
    pub fn leader(&self, name: impl IntoBytes) -> Request<ServerLeader, C> {
        let request = LeaderRequest {
            name: name.into_bytes(),
        };
        let rpc = rpc::SERVER_LEADER;
        Request::with_keys::<_, LeaderResponse>(&self.0, rpc, &request)
    }
}

impl<C: ClientHandle> ServerElections<C> {
    /// Streams the current leader and every later one. The stream ends with an error if its member fails; open it again
    /// then.
    pub async fn observe(&self, name: impl IntoBytes) -> Result<ResponseStream<ServerLeader>> {
        let mut request = LeaderRequest {
            name: name.into_bytes(),
        };
        let (client, view) = (&self.0, self.0.view().clone());
        view.add_prefix(&mut request);
        let rpc = rpc::SERVER_OBSERVE;
        let leaders = ResponseStream::open::<_, LeaderResponse>(client, rpc, request, None).await?;
        Ok(leaders.translated(move |leader: &mut ServerLeader| view.remove_prefix(&mut leader.kv)))
    }
}

/// The response to a campaign: the election is won.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Elected {
    /// Cluster, member and revision of the response.
    pub header: ResponseHeader,
    /// Key of the leadership, for `proclaim` and `resign`.
    pub leader: LeaderKey,
}

impl TryFrom<CampaignResponse> for Elected {
    type Error = Error;

    fn try_from(response: CampaignResponse) -> Result<Self> {
        let missing = || {
            Error::new(
                ErrorKind::Protocol,
                Outcome::Unknown,
                "the response has no leader",
            )
        };
        Ok(Self {
            header: header(response.header),
            leader: response.leader.ok_or_else(missing)?,
        })
    }
}

/// The leader of an election.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ServerLeader {
    /// Cluster, member and revision of the response.
    pub header: ResponseHeader,
    /// The leader's key and proclaimed value; `None` while there is no leader.
    pub kv: Option<KeyValue>,
}

from_response!(ServerLeader: LeaderResponse => kv);
