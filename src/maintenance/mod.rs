//! Looking after the members: status, alarms, defragmentation, hashes, leadership, downgrades.
//!
//! Requests that concern one member are sent to it with `.at(endpoint)`, over the connection the client has anyway.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! for endpoint in etcd.endpoints() {
//!     let status = etcd.maintenance().status().at(&endpoint).await?;
//!     println!("{endpoint}: {} of {} bytes in use", status.db_size_in_use, status.db_size);
//! }
//! # Ok(())
//! # }
//! ```

pub mod snapshot;
mod snapshot_checksum;
mod snapshot_file;
mod upkeep;
pub(crate) mod versions;

use crate::{
    call::Rpc,
    client::Client,
    error::{Error, Result},
    proto::{
        self, AlarmRequest, DefragmentRequest, DowngradeRequest, HashKvRequest, HashRequest,
        ResponseHeader, StatusRequest, alarm_request::AlarmAction,
        downgrade_request::DowngradeAction,
    },
    request::{HeaderResponse, MemberRequest, Request, answers, header, header_responses},
    retry::RpcClass,
};

pub use self::{
    snapshot_file::{SavedSnapshot, SnapshotToFile},
    upkeep::{DisarmAll, MoveLeader},
    versions::MemberVersion,
};
pub use crate::proto::AlarmType;

answers!(
    proto::AlarmResponse,
    proto::StatusResponse,
    proto::HashResponse,
    proto::HashKvResponse,
    proto::DowngradeResponse,
);
header_responses!(proto::DefragmentResponse, proto::MoveLeaderResponse);

const ALARM: &str = "/etcdserverpb.Maintenance/Alarm";
const DOWNGRADE: &str = "/etcdserverpb.Maintenance/Downgrade";
pub(super) const STATUS: Rpc = own("/etcdserverpb.Maintenance/Status", RpcClass::Read);

/// What a member answers by itself, with a leader or without.
const fn own(path: &'static str, class: RpcClass) -> Rpc {
    Rpc {
        path,
        class,
        leaderless: true,
        waits: false,
    }
}

/// What the cluster has to agree on.
pub(super) const fn agreed(path: &'static str, class: RpcClass) -> Rpc {
    Rpc {
        path,
        class,
        leaderless: false,
        waits: false,
    }
}

/// Looking after the members; see [`Client::maintenance`].
#[derive(Debug, Clone)]
pub struct Maintenance<C = Client>(pub(super) C);

impl Client {
    /// Looking after the members.
    pub fn maintenance(&self) -> Maintenance {
        Maintenance(self.clone())
    }
}

/// The same, bound to no client yet: messages to the actor [`Etcd`](crate::Etcd), or to be bound with `.on(&client)`.
pub fn requests() -> Maintenance<()> {
    Maintenance(())
}

impl<C: Clone> Maintenance<C> {
    /// What a member says of itself.
    pub fn status(&self) -> MemberRequest<Status, C> {
        MemberRequest::new::<proto::StatusResponse>(&self.0, STATUS, &StatusRequest {})
    }

    /// The alarms that are raised.
    pub fn alarms(&self) -> Request<Alarms, C> {
        self.alarm(RpcClass::Read, AlarmAction::Get, 0, AlarmType::None)
    }

    /// Takes one alarm of one member back; the answer has it if it was raised.
    pub fn disarm(&self, alarm: Alarm) -> Request<Alarms, C> {
        self.alarm(
            RpcClass::Idempotent,
            AlarmAction::Deactivate,
            alarm.member,
            alarm.kind,
        )
    }

    fn alarm(
        &self,
        class: RpcClass,
        action: AlarmAction,
        member_id: u64,
        alarm: AlarmType,
    ) -> Request<Alarms, C> {
        let request = AlarmRequest {
            action: action.into(),
            member_id,
            alarm: alarm.into(),
        };
        Request::new::<proto::AlarmResponse>(&self.0, agreed(ALARM, class), &request)
    }

    /// Gives the space of deleted and compacted data back to the file system. The member serves nothing meanwhile, so
    /// do one at a time, and allow as long as its database needs (`.timeout`). Where its answer is lost, it may still be
    /// at it ([`Outcome::Unknown`](crate::Outcome::Unknown)): no other member is asked then.
    pub fn defragment(&self) -> MemberRequest<HeaderResponse, C> {
        // Twice does no harm to one member, but would stop two of them.
        let rpc = own("/etcdserverpb.Maintenance/Defragment", RpcClass::Mutation);
        MemberRequest::new::<proto::DefragmentResponse>(&self.0, rpc, &DefragmentRequest {})
    }

    /// The hash of all a member stores, its own bookkeeping among it. To compare members use [`hash_kv`](Self::hash_kv).
    pub fn hash(&self) -> MemberRequest<Hash, C> {
        let rpc = own("/etcdserverpb.Maintenance/Hash", RpcClass::Read);
        MemberRequest::new::<proto::HashResponse>(&self.0, rpc, &HashRequest {})
    }

    /// The hash of a member's keys and values up to a revision, 0 for the newest: equal on all members that have the
    /// same compacted revision.
    pub fn hash_kv(&self, revision: i64) -> MemberRequest<HashKv, C> {
        let rpc = own("/etcdserverpb.Maintenance/HashKV", RpcClass::Read);
        MemberRequest::new::<proto::HashKvResponse>(&self.0, rpc, &HashKvRequest { revision })
    }

    /// Asks whether the cluster could be downgraded to this version (since etcd 3.5).
    pub fn downgrade_validate(&self, version: impl Into<String>) -> Request<Downgrade, C> {
        self.downgrade(RpcClass::Read, DowngradeAction::Validate, version)
    }

    /// Allows members of this older version (since etcd 3.6; 3.5 knows it, but never answers).
    pub fn downgrade_enable(&self, version: impl Into<String>) -> Request<Downgrade, C> {
        self.downgrade(RpcClass::Mutation, DowngradeAction::Enable, version)
    }

    /// Ends the downgrade that is under way (since etcd 3.6; 3.5 knows it, but never answers).
    pub fn downgrade_cancel(&self) -> Request<Downgrade, C> {
        self.downgrade(RpcClass::Mutation, DowngradeAction::Cancel, "")
    }

    fn downgrade(
        &self,
        class: RpcClass,
        action: DowngradeAction,
        version: impl Into<String>,
    ) -> Request<Downgrade, C> {
        let request = DowngradeRequest {
            action: action.into(),
            version: version.into(),
        };
        Request::new::<proto::DowngradeResponse>(&self.0, agreed(DOWNGRADE, class), &request)
    }
}

/// What a member says of itself.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Status {
    /// Who answered.
    pub header: ResponseHeader,
    /// The version of its binary.
    pub version: String,
    /// The version of its data's format; empty before etcd 3.6.
    pub storage_version: String,
    /// The member it takes for the leader; 0 where it knows none.
    pub leader: u64,
    /// Whether it has no vote.
    pub is_learner: bool,
    /// The raft term.
    pub raft_term: u64,
    /// The newest entry of the raft log that is known to be committed.
    pub raft_index: u64,
    /// The newest entry that was applied.
    pub raft_applied_index: u64,
    /// The size of the database file in bytes.
    pub db_size: i64,
    /// How much of it holds data.
    pub db_size_in_use: i64,
    /// How far it may grow; 0 before etcd 3.6.
    pub db_size_quota: i64,
    /// What is wrong with the member, in its own words: alarms, no leader.
    pub errors: Vec<String>,
    /// The version the cluster is being downgraded to, if it is.
    pub downgrading_to: Option<String>,
}

impl TryFrom<proto::StatusResponse> for Status {
    type Error = Error;

    fn try_from(answer: proto::StatusResponse) -> Result<Self> {
        Ok(Self {
            header: header(answer.header)?,
            version: answer.version,
            storage_version: answer.storage_version,
            leader: answer.leader,
            is_learner: answer.is_learner,
            raft_term: answer.raft_term,
            raft_index: answer.raft_index,
            raft_applied_index: answer.raft_applied_index,
            db_size: answer.db_size,
            db_size_in_use: answer.db_size_in_use,
            db_size_quota: answer.db_size_quota,
            errors: answer.errors,
            downgrading_to: answer
                .downgrade_info
                .filter(|info| info.enabled)
                .map(|info| info.target_version),
        })
    }
}

/// An alarm of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alarm {
    /// The member's id.
    pub member: u64,
    /// What is wrong.
    pub kind: AlarmType,
}

/// Alarms: those that are raised, or those that were taken back.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Alarms {
    /// Who answered; etcd 3.4 leaves it out.
    pub header: Option<ResponseHeader>,
    /// The alarms.
    pub alarms: Vec<Alarm>,
}

impl TryFrom<proto::AlarmResponse> for Alarms {
    type Error = Error;

    fn try_from(answer: proto::AlarmResponse) -> Result<Self> {
        let alarm = |alarm: proto::AlarmMember| Alarm {
            member: alarm.member_id,
            kind: alarm.alarm(),
        };
        Ok(Self {
            header: answer.header,
            alarms: answer.alarms.into_iter().map(alarm).collect(),
        })
    }
}

/// The hash of a whole database.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Hash {
    /// Who answered.
    pub header: ResponseHeader,
    /// The hash.
    pub hash: u32,
}

impl TryFrom<proto::HashResponse> for Hash {
    type Error = Error;

    fn try_from(answer: proto::HashResponse) -> Result<Self> {
        Ok(Self {
            header: header(answer.header)?,
            hash: answer.hash,
        })
    }
}

/// The hash of the keys and values.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct HashKv {
    /// Who answered.
    pub header: ResponseHeader,
    /// The hash.
    pub hash: u32,
    /// What was compacted away: hashes compare only where this is the same.
    pub compact_revision: i64,
    /// The revision that was hashed up to; 0 before etcd 3.6.
    pub hash_revision: i64,
}

impl TryFrom<proto::HashKvResponse> for HashKv {
    type Error = Error;

    fn try_from(answer: proto::HashKvResponse) -> Result<Self> {
        Ok(Self {
            header: header(answer.header)?,
            hash: answer.hash,
            compact_revision: answer.compact_revision,
            hash_revision: answer.hash_revision,
        })
    }
}

/// What a request about a downgrade found.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Downgrade {
    /// Who answered.
    pub header: ResponseHeader,
    /// The cluster's version now.
    pub version: String,
}

impl TryFrom<proto::DowngradeResponse> for Downgrade {
    type Error = Error;

    fn try_from(answer: proto::DowngradeResponse) -> Result<Self> {
        Ok(Self {
            header: header(answer.header)?,
            version: answer.version,
        })
    }
}
