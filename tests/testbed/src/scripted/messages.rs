//! The response of `Maintenance.Status`, which the server sends without a script.

/// Header of every etcd response.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ResponseHeader {
    /// Cluster id.
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    /// Id of the member that responds.
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    /// Revision of the store.
    #[prost(int64, tag = "3")]
    pub revision: i64,
    /// Raft term.
    #[prost(uint64, tag = "4")]
    pub raft_term: u64,
}

/// Status of a member.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusResponse {
    /// Header with the cluster and member ids.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Version of the server.
    #[prost(string, tag = "2")]
    pub version: String,
    /// Size of the database in bytes.
    #[prost(int64, tag = "3")]
    pub db_size: i64,
    /// Id of the leader; zero if there is none.
    #[prost(uint64, tag = "4")]
    pub leader: u64,
    /// Raft index.
    #[prost(uint64, tag = "5")]
    pub raft_index: u64,
    /// Raft term.
    #[prost(uint64, tag = "6")]
    pub raft_term: u64,
    /// Errors of the member, such as `etcdserver: no leader`.
    #[prost(string, repeated, tag = "8")]
    pub errors: Vec<String>,
}

impl StatusResponse {
    /// Returns the status of the leader of a healthy single-member cluster.
    pub fn healthy() -> Self {
        let header = ResponseHeader {
            cluster_id: 1,
            member_id: 1,
            revision: 1,
            raft_term: 2,
        };
        Self {
            header: Some(header),
            version: "3.7.2".to_owned(),
            db_size: 20_480,
            leader: 1,
            raft_index: 10,
            raft_term: 2,
            errors: Vec::new(),
        }
    }

    /// Like [`StatusResponse::healthy`], of a member of the cluster with this id. The id of `healthy` is 1.
    pub fn of_cluster(cluster_id: u64) -> Self {
        let mut status = Self::healthy();
        status.header.get_or_insert_default().cluster_id = cluster_id;
        status
    }
}
