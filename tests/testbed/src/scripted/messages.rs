//! The one answer the server knows by itself.

/// The header of every answer of etcd.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ResponseHeader {
    /// Which cluster.
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    /// Which member answers.
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    /// The revision of the store.
    #[prost(int64, tag = "3")]
    pub revision: i64,
    /// The raft term.
    #[prost(uint64, tag = "4")]
    pub raft_term: u64,
}

/// What a member says of itself.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusResponse {
    /// Which cluster and member.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The server's release.
    #[prost(string, tag = "2")]
    pub version: String,
    /// The size of its database.
    #[prost(int64, tag = "3")]
    pub db_size: i64,
    /// The member it follows; zero if it knows none.
    #[prost(uint64, tag = "4")]
    pub leader: u64,
    /// Its raft index.
    #[prost(uint64, tag = "5")]
    pub raft_index: u64,
    /// Its raft term.
    #[prost(uint64, tag = "6")]
    pub raft_term: u64,
    /// What is wrong with it, such as `etcdserver: no leader`.
    #[prost(string, repeated, tag = "8")]
    pub errors: Vec<String>,
}

impl StatusResponse {
    /// A member that leads a cluster of its own.
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
}
