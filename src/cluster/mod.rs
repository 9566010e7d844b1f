//! The members of the cluster: list, add, promote, update, remove.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! let cluster = etcd.cluster();
//! let added = cluster.add_learner(["http://10.0.0.4:2380"]).await?;
//! // Start the new member. When it has caught up:
//! cluster.promote(added.member.id).await?;
//! # Ok(())
//! # }
//! ```

use crate::{
    error::{Error, Result},
    proto::{
        self, MemberAddRequest, MemberListRequest, MemberPromoteRequest, MemberRemoveRequest,
        MemberUpdateRequest, ResponseHeader, rpc,
    },
    request::{Request, header, macros::response_headers},
    transport::{Endpoint, grpc, hide_credentials},
};

response_headers!(
    proto::MemberAddResponse,
    proto::MemberPromoteResponse,
    proto::MemberRemoveResponse,
    proto::MemberUpdateResponse,
);

/// Requests about the members of the cluster, made by [`Client::cluster`](crate::Client::cluster).
#[derive(Debug, Clone)]
pub struct Cluster<C = ()>(C);

/// Creates unbound requests: messages to the actor [`Etcd`](crate::Etcd), or bound later with `.on(&client)`.
pub fn requests() -> Cluster {
    Cluster(())
}

impl<C> Cluster<C> {
    pub(crate) fn new(client: C) -> Self {
        Self(client)
    }
}

impl<C: Clone> Cluster<C> {
    /// Lists the members, confirmed by a quorum. etcd 3.4 always returns the list of one member.
    pub fn list(&self) -> Request<Members, C> {
        let rpc = rpc::MEMBER_LIST;
        let request = MemberListRequest { linearizable: true };
        Request::new::<proto::MemberListResponse>(&self.0, rpc, &request)
    }

    /// Lists the members known to one member. Works without a quorum; the list may be stale.
    pub fn list_serializable(&self) -> Request<Members, C> {
        let rpc = rpc::MEMBER_LIST.leaderless();
        let request = MemberListRequest {
            linearizable: false,
        };
        Request::new::<proto::MemberListResponse>(&self.0, rpc, &request)
    }

    /// Adds a voting member with these peer URLs. It counts towards the quorum at once, even before it has started;
    /// [`add_learner`](Self::add_learner) is safer.
    pub fn add<U: Into<String>>(
        &self,
        peer_urls: impl IntoIterator<Item = U>,
    ) -> Request<AddedMember, C> {
        self.add_member(peer_urls, false)
    }

    /// Adds a learner: a member without a vote, to be [promoted](Self::promote) when it has caught up.
    pub fn add_learner<U: Into<String>>(
        &self,
        peer_urls: impl IntoIterator<Item = U>,
    ) -> Request<AddedMember, C> {
        self.add_member(peer_urls, true)
    }

    fn add_member<U: Into<String>>(
        &self,
        peer_urls: impl IntoIterator<Item = U>,
        is_learner: bool,
    ) -> Request<AddedMember, C> {
        let rpc = rpc::MEMBER_ADD;
        let body = validated(peer_urls).and_then(|peer_ur_ls| {
            grpc::encode(&MemberAddRequest {
                peer_ur_ls,
                is_learner,
            })
        });
        Request::with_body::<proto::MemberAddResponse>(&self.0, rpc, body)
    }

    /// Makes a learner a voting member. Fails with [`ErrorKind::LearnerNotReady`](crate::ErrorKind::LearnerNotReady)
    /// until it has caught up.
    pub fn promote(&self, id: u64) -> Request<Members, C> {
        let rpc = rpc::MEMBER_PROMOTE;
        Request::new::<proto::MemberPromoteResponse>(&self.0, rpc, &MemberPromoteRequest { id })
    }

    /// Removes a member.
    pub fn remove(&self, id: u64) -> Request<Members, C> {
        let rpc = rpc::MEMBER_REMOVE;
        Request::new::<proto::MemberRemoveResponse>(&self.0, rpc, &MemberRemoveRequest { id })
    }

    /// Changes the peer URLs of a member.
    pub fn update<U: Into<String>>(
        &self,
        id: u64,
        peer_urls: impl IntoIterator<Item = U>,
    ) -> Request<Members, C> {
        let rpc = rpc::MEMBER_UPDATE;
        let body = validated(peer_urls)
            .and_then(|peer_ur_ls| grpc::encode(&MemberUpdateRequest { id, peer_ur_ls }));
        Request::with_body::<proto::MemberUpdateResponse>(&self.0, rpc, body)
    }
}

/// Validates peer URLs. etcd accepts invalid ones and fails only when the member starts.
fn validated<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Result<Vec<String>> {
    let urls: Vec<String> = urls.into_iter().map(Into::into).collect();
    if urls.is_empty() {
        return Err(Error::invalid("a member needs at least one peer URL"));
    }
    for url in &urls {
        if !url.contains("://") {
            return Err(Error::invalid(format!(
                "the peer URL `{}` has no scheme; write it like http://10.0.0.4:2380",
                hide_credentials(url)
            )));
        }
        Endpoint::parse(url)?;
    }
    Ok(urls)
}

/// A member of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Member id.
    pub id: u64,
    /// Name; empty until the member has started.
    pub name: String,
    /// URLs for the other members.
    pub peer_urls: Vec<String>,
    /// URLs that the member advertises to clients; empty until it has started.
    pub client_urls: Vec<String>,
    /// Whether the member is a learner, without a vote.
    pub is_learner: bool,
}

impl From<proto::Member> for Member {
    fn from(member: proto::Member) -> Self {
        Self {
            id: member.id,
            name: member.name,
            peer_urls: member.peer_ur_ls,
            client_urls: member.client_ur_ls,
            is_learner: member.is_learner,
        }
    }
}

/// All members; after a change, the new list.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Members {
    /// Cluster, member and revision of the response. All zero from `etcd grpc-proxy`, which lists the members itself.
    pub header: ResponseHeader,
    /// The members.
    pub members: Vec<Member>,
}

macro_rules! members {
    ($($response:ident),*) => {
        $(impl TryFrom<proto::$response> for Members {
            type Error = Error;

            fn try_from(response: proto::$response) -> Result<Self> {
                Ok(Self {
                    header: header(response.header),
                    members: response.members.into_iter().map(Into::into).collect(),
                })
            }
        })*
    };
}

members!(
    MemberListResponse,
    MemberPromoteResponse,
    MemberRemoveResponse,
    MemberUpdateResponse
);

/// The response to adding a member.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct AddedMember {
    /// Cluster, member and revision of the response.
    pub header: ResponseHeader,
    /// The new member.
    pub member: Member,
    /// All members, including the new one.
    pub members: Vec<Member>,
}

impl TryFrom<proto::MemberAddResponse> for AddedMember {
    type Error = Error;

    fn try_from(response: proto::MemberAddResponse) -> Result<Self> {
        Ok(Self {
            header: header(response.header),
            member: response.member.unwrap_or_default().into(),
            members: response.members.into_iter().map(Into::into).collect(),
        })
    }
}
