//! Maintenance: status, alarms, defragmentation, hashes, snapshots, leader moves, downgrades.
//!
//! `.at(endpoint)` sends a request to one member, over the connection that the client already has.
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

mod disarm_all;
mod move_leader;
pub mod snapshot;
pub(crate) mod versions;

use crate::{
    error::{Error, Result},
    proto::{
        self, AlarmRequest, DefragmentRequest, DowngradeRequest, HashKvRequest, HashRequest,
        ResponseHeader, StatusRequest, alarm_request::AlarmAction,
        downgrade_request::DowngradeAction, rpc, rpc::RpcClass,
    },
    request::{
        HeaderResponse, MemberRequest, Request, header,
        macros::{from_response, header_responses, response_headers},
    },
};

pub use self::{
    disarm_all::DisarmAll,
    move_leader::MoveLeader,
    snapshot::{SavedSnapshot, SnapshotToFile},
    versions::MemberVersion,
};
pub use crate::proto::AlarmType;

response_headers!(
    proto::AlarmResponse,
    proto::StatusResponse,
    proto::HashResponse,
    proto::HashKvResponse,
    proto::DowngradeResponse,
);
header_responses!(proto::DefragmentResponse, proto::MoveLeaderResponse);

/// Maintenance requests, made by [`Client::maintenance`](crate::Client::maintenance).
#[derive(Debug, Clone)]
pub struct Maintenance<C = ()>(pub(super) C);

/// Creates unbound requests: messages to the actor [`Etcd`](crate::Etcd), or bound later with `.on(&client)`.
pub fn requests() -> Maintenance {
    Maintenance(())
}

impl<C> Maintenance<C> {
    pub(crate) fn new(client: C) -> Self {
        Self(client)
    }
}

impl<C: Clone> Maintenance<C> {
    /// Returns the status of a member.
    pub fn status(&self) -> MemberRequest<Status, C> {
        MemberRequest::new::<proto::StatusResponse>(&self.0, rpc::STATUS, &StatusRequest {})
    }

    /// Lists the active alarms.
    pub fn alarms(&self) -> Request<Alarms, C> {
        self.alarm(RpcClass::Read, AlarmAction::Get, 0, AlarmType::None)
    }

    /// Disarms one alarm of one member. The response contains the alarm if it was active.
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
        Request::new::<proto::AlarmResponse>(&self.0, rpc::ALARM.with_class(class), &request)
    }

    /// Returns the space of deleted and compacted data to the file system. The member does not serve requests
    /// meanwhile: defragment one member at a time and set a `.timeout` that fits its database. If the response is lost,
    /// the member may still be defragmenting ([`Outcome::Unknown`](crate::Outcome::Unknown)); the request is then not
    /// sent to another member.
    pub fn defragment(&self) -> MemberRequest<HeaderResponse, C> {
        // Not idempotent in effect: a retry on another member would stop two members at once.
        let rpc = rpc::DEFRAGMENT;
        MemberRequest::new::<proto::DefragmentResponse>(&self.0, rpc, &DefragmentRequest {})
    }

    /// Returns the hash of the whole database of a member, including member-specific data. To compare members, use
    /// [`hash_kv`](Self::hash_kv).
    pub fn hash(&self) -> MemberRequest<Hash, C> {
        let rpc = rpc::HASH;
        MemberRequest::new::<proto::HashResponse>(&self.0, rpc, &HashRequest {})
    }

    /// Returns the hash of a member's keys and values up to a revision (0 for the newest). It is equal on all members
    /// with the same compacted revision.
    pub fn hash_kv(&self, revision: i64) -> MemberRequest<HashKv, C> {
        let rpc = rpc::HASH_KV;
        MemberRequest::new::<proto::HashKvResponse>(&self.0, rpc, &HashKvRequest { revision })
    }

    /// Checks whether the cluster can be downgraded to a version. Since etcd 3.5.
    pub fn downgrade_validate(&self, version: impl Into<String>) -> Request<Downgrade, C> {
        self.downgrade(RpcClass::Read, DowngradeAction::Validate, version)
    }

    /// Starts a downgrade: allows members of this older version. Since etcd 3.6 (3.5 never responds).
    pub fn downgrade_enable(&self, version: impl Into<String>) -> Request<Downgrade, C> {
        self.downgrade(RpcClass::Mutation, DowngradeAction::Enable, version)
    }

    /// Cancels the downgrade in progress. Since etcd 3.6 (3.5 never responds).
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
        Request::new::<proto::DowngradeResponse>(
            &self.0,
            rpc::DOWNGRADE.with_class(class),
            &request,
        )
    }
}

/// The status of a member.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Status {
    /// Cluster, member and revision of the response.
    pub header: ResponseHeader,
    /// Version of the member's binary.
    pub version: String,
    /// Version of the storage format; empty before etcd 3.6.
    pub storage_version: String,
    /// Id of the leader known to this member; 0 if there is none.
    pub leader: u64,
    /// Whether the member is a learner, without a vote.
    pub is_learner: bool,
    /// Raft term.
    pub raft_term: u64,
    /// Index of the newest committed raft entry known to the member.
    pub raft_index: u64,
    /// Index of the newest applied raft entry.
    pub raft_applied_index: u64,
    /// Size of the database file in bytes.
    pub db_size: i64,
    /// Bytes of the file that hold data.
    pub db_size_in_use: i64,
    /// Largest allowed size of the file in bytes; 0 before etcd 3.6.
    pub db_size_quota: i64,
    /// Problems that the member reports, such as alarms or a missing leader.
    pub errors: Vec<String>,
    /// Target version of a downgrade in progress.
    pub downgrading_to: Option<String>,
}

impl TryFrom<proto::StatusResponse> for Status {
    type Error = Error;

    fn try_from(response: proto::StatusResponse) -> Result<Self> {
        Ok(Self {
            header: header(response.header),
            version: response.version,
            storage_version: response.storage_version,
            leader: response.leader,
            is_learner: response.is_learner,
            raft_term: response.raft_term,
            raft_index: response.raft_index,
            raft_applied_index: response.raft_applied_index,
            db_size: response.db_size,
            db_size_in_use: response.db_size_in_use,
            db_size_quota: response.db_size_quota,
            errors: response.errors,
            downgrading_to: response
                .downgrade_info
                .filter(|info| info.enabled)
                .map(|info| info.target_version),
        })
    }
}

/// An alarm of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alarm {
    /// Member id.
    pub member: u64,
    /// Kind of alarm.
    pub kind: AlarmType,
}

/// A list of alarms: the active ones, or those that were disarmed.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Alarms {
    /// Cluster, member and revision of the response; missing in etcd 3.4.
    pub header: Option<ResponseHeader>,
    /// The alarms.
    pub alarms: Vec<Alarm>,
}

impl TryFrom<proto::AlarmResponse> for Alarms {
    type Error = Error;

    fn try_from(response: proto::AlarmResponse) -> Result<Self> {
        let alarm = |alarm: proto::AlarmMember| Alarm {
            member: alarm.member_id,
            kind: alarm.alarm(),
        };
        Ok(Self {
            header: response.header,
            alarms: response.alarms.into_iter().map(alarm).collect(),
        })
    }
}

/// The hash of a whole database, from [`Maintenance::hash`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Hash {
    /// Cluster, member and revision of the response.
    pub header: ResponseHeader,
    /// The hash.
    pub hash: u32,
}

from_response!(Hash: proto::HashResponse => hash);

/// The hash of keys and values, from [`Maintenance::hash_kv`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct HashKv {
    /// Cluster, member and revision of the response.
    pub header: ResponseHeader,
    /// The hash.
    pub hash: u32,
    /// Compacted revision. Only hashes with the same compacted revision can be compared.
    pub compact_revision: i64,
    /// Newest revision in the hash; 0 before etcd 3.6.
    pub hash_revision: i64,
}

from_response!(HashKv: proto::HashKvResponse => hash, compact_revision, hash_revision);

/// The response to a downgrade request.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Downgrade {
    /// Cluster, member and revision of the response.
    pub header: ResponseHeader,
    /// Current version of the cluster.
    pub version: String,
}

from_response!(Downgrade: proto::DowngradeResponse => version);
