//! The members of the cluster: list, add, promote, update, remove.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! let cluster = etcd.cluster();
//! let added = cluster.add_learner(["http://10.0.0.4:2380"]).await?;
//! // … start it, and once it has caught up:
//! cluster.promote(added.member.id).await?;
//! # Ok(())
//! # }
//! ```

use crate::{
    call::Rpc,
    client::Client,
    error::{Error, Result},
    proto::{
        self, MemberAddRequest, MemberListRequest, MemberPromoteRequest, MemberRemoveRequest,
        MemberUpdateRequest, ResponseHeader,
    },
    request::{Request, answers, header},
    retry::RpcClass,
    transport::{Endpoint, grpc, shown},
};

answers!(
    proto::MemberAddResponse,
    proto::MemberPromoteResponse,
    proto::MemberRemoveResponse,
    proto::MemberUpdateResponse,
);

const fn rpc(path: &'static str, class: RpcClass) -> Rpc {
    Rpc {
        path,
        class,
        leaderless: false,
        waits: false,
    }
}

/// The members of the cluster; see [`Client::cluster`].
#[derive(Debug, Clone)]
pub struct Cluster<C = Client>(C);

impl Client {
    /// The members of the cluster.
    pub fn cluster(&self) -> Cluster {
        Cluster(self.clone())
    }
}

/// The same, bound to no client yet: messages to the actor [`Etcd`](crate::Etcd), or to be bound with `.on(&client)`.
pub fn requests() -> Cluster<()> {
    Cluster(())
}

impl<C: Clone> Cluster<C> {
    /// The members, as the cluster agrees on them now. (etcd 3.4 knows no such list: a member tells what it knows.)
    pub fn list(&self) -> Request<Members, C> {
        let rpc = rpc("/etcdserverpb.Cluster/MemberList", RpcClass::Read);
        let request = MemberListRequest { linearizable: true };
        Request::new::<proto::MemberListResponse>(&self.0, rpc, &request)
    }

    /// The members as the member that is asked knows them: works without a quorum, and may be out of date.
    pub fn list_serializable(&self) -> Request<Members, C> {
        let rpc = Rpc {
            path: "/etcdserverpb.Cluster/MemberList",
            class: RpcClass::Read,
            leaderless: true,
            waits: false,
        };
        let request = MemberListRequest {
            linearizable: false,
        };
        Request::new::<proto::MemberListResponse>(&self.0, rpc, &request)
    }

    /// Adds a voting member that will be reached at these URLs by the others. It counts for the quorum at once: a
    /// learner is the safer way.
    pub fn add<U: Into<String>>(
        &self,
        peer_urls: impl IntoIterator<Item = U>,
    ) -> Request<Added, C> {
        self.add_member(peer_urls, false)
    }

    /// Adds a member without a vote, to be promoted when it has caught up.
    pub fn add_learner<U: Into<String>>(
        &self,
        peer_urls: impl IntoIterator<Item = U>,
    ) -> Request<Added, C> {
        self.add_member(peer_urls, true)
    }

    fn add_member<U: Into<String>>(
        &self,
        peer_urls: impl IntoIterator<Item = U>,
        is_learner: bool,
    ) -> Request<Added, C> {
        let rpc = rpc("/etcdserverpb.Cluster/MemberAdd", RpcClass::Mutation);
        let body = checked(peer_urls).and_then(|peer_ur_ls| {
            grpc::encode(&MemberAddRequest {
                peer_ur_ls,
                is_learner,
            })
        });
        Request::with_body::<proto::MemberAddResponse>(&self.0, rpc, body)
    }

    /// Gives a learner its vote. Fails with `LearnerNotReady` until it has caught up.
    pub fn promote(&self, id: u64) -> Request<Members, C> {
        let rpc = rpc("/etcdserverpb.Cluster/MemberPromote", RpcClass::Mutation);
        Request::new::<proto::MemberPromoteResponse>(&self.0, rpc, &MemberPromoteRequest { id })
    }

    /// Takes a member out of the cluster.
    pub fn remove(&self, id: u64) -> Request<Members, C> {
        let rpc = rpc("/etcdserverpb.Cluster/MemberRemove", RpcClass::Mutation);
        Request::new::<proto::MemberRemoveResponse>(&self.0, rpc, &MemberRemoveRequest { id })
    }

    /// Changes where the others reach a member.
    pub fn update<U: Into<String>>(
        &self,
        id: u64,
        peer_urls: impl IntoIterator<Item = U>,
    ) -> Request<Members, C> {
        let rpc = rpc("/etcdserverpb.Cluster/MemberUpdate", RpcClass::Mutation);
        let body = checked(peer_urls)
            .and_then(|peer_ur_ls| grpc::encode(&MemberUpdateRequest { id, peer_ur_ls }));
        Request::with_body::<proto::MemberUpdateResponse>(&self.0, rpc, body)
    }
}

/// etcd takes what does not parse and fails when the member starts: it is refused here.
fn checked<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Result<Vec<String>> {
    let urls: Vec<String> = urls.into_iter().map(Into::into).collect();
    if urls.is_empty() {
        return Err(Error::invalid("a member has at least one peer URL"));
    }
    for url in &urls {
        if !url.contains("://") {
            return Err(Error::invalid(format!(
                "the peer URL `{}` has no scheme; write it like http://10.0.0.4:2380",
                shown(url)
            )));
        }
        Endpoint::parse(url)?;
    }
    Ok(urls)
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its id.
    pub id: u64,
    /// Its name; empty until it has started.
    pub name: String,
    /// Where the others reach it.
    pub peer_urls: Vec<String>,
    /// Where it says clients reach it; empty until it has started.
    pub client_urls: Vec<String>,
    /// Whether it has no vote.
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

/// All members, after the change if it was one.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Members {
    /// Who answered.
    pub header: ResponseHeader,
    /// The members.
    pub members: Vec<Member>,
}

macro_rules! members {
    ($($answer:ident),*) => {
        $(impl TryFrom<proto::$answer> for Members {
            type Error = Error;

            fn try_from(answer: proto::$answer) -> Result<Self> {
                Ok(Self {
                    header: header(answer.header)?,
                    members: answer.members.into_iter().map(Into::into).collect(),
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

/// The member that was added.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Added {
    /// Who answered.
    pub header: ResponseHeader,
    /// The new member.
    pub member: Member,
    /// All members, the new one among them.
    pub members: Vec<Member>,
}

impl TryFrom<proto::MemberAddResponse> for Added {
    type Error = Error;

    fn try_from(answer: proto::MemberAddResponse) -> Result<Self> {
        Ok(Self {
            header: header(answer.header)?,
            member: answer.member.unwrap_or_default().into(),
            members: answer.members.into_iter().map(Into::into).collect(),
        })
    }
}
