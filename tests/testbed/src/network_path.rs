//! The ways from a client to a cluster: direct, or through a balancer, a proxy or a host name.

use crate::address_group::AddressGroup;
use crate::cluster::Cluster;
use crate::grpc_proxy::GrpcProxy;
use crate::hosts_file::HostsFile;
use crate::l7_proxy::L7Proxy;
use crate::tcp_balancer::TcpBalancer;

/// Environment variable with the [name](PathKind::name) of the path to all clusters.
const VARIABLE: &str = "ETCD_PATH";
/// Host name of [`PathKind::Dns`].
const HOST_NAME: &str = "etcd.test";

/// A kind of path from clients to a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathKind {
    /// One endpoint per member.
    Direct,
    /// One endpoint, a [`TcpBalancer`].
    TcpBalancer,
    /// One endpoint, a [`GrpcProxy`].
    GrpcProxy,
    /// One endpoint, an [`L7Proxy`].
    L7Proxy,
    /// One endpoint, a host name with one address per member. The process needs a [`HostsFile`].
    Dns,
}

impl PathKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::Direct,
        Self::TcpBalancer,
        Self::GrpcProxy,
        Self::L7Proxy,
        Self::Dns,
    ];

    /// Returns the name in environment variables, such as `grpc-proxy`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::TcpBalancer => "tcp-balancer",
            Self::GrpcProxy => "grpc-proxy",
            Self::L7Proxy => "l7-proxy",
            Self::Dns => "dns",
        }
    }

    /// Returns the kind with this name.
    pub fn parse(name: &str) -> Self {
        let kind = Self::ALL.into_iter().find(|kind| kind.name() == name);
        kind.unwrap_or_else(|| {
            panic!(
                "unknown path {name}: use one of {}",
                Self::ALL.map(Self::name).join(", ")
            )
        })
    }

    /// Returns the kind that `ETCD_PATH` selects. Default: direct.
    pub(crate) fn from_env() -> Self {
        match std::env::var(VARIABLE) {
            Ok(name) if !name.is_empty() => Self::parse(&name),
            _ => Self::Direct,
        }
    }
}

/// An open path. Dropping it closes the path, but not the cluster.
pub enum NetworkPath {
    /// One endpoint per member.
    Direct(Vec<String>),
    /// Through a TCP balancer.
    TcpBalancer(TcpBalancer),
    /// Through etcd's gRPC proxy.
    GrpcProxy(GrpcProxy),
    /// Through an L7 proxy.
    L7Proxy(L7Proxy),
    /// Through a host name with several addresses.
    Dns(AddressGroup),
}

impl NetworkPath {
    /// Opens a path to all current members.
    pub async fn open(kind: PathKind, cluster: &Cluster) -> Self {
        match kind {
            PathKind::Direct => Self::Direct(cluster.member_endpoints()),
            PathKind::TcpBalancer => Self::TcpBalancer(TcpBalancer::over(cluster)),
            PathKind::GrpcProxy => Self::GrpcProxy(GrpcProxy::start(cluster).await),
            PathKind::L7Proxy => Self::L7Proxy(L7Proxy::start(cluster).await),
            PathKind::Dns => {
                let group = AddressGroup::over(cluster);
                let hosts = HostsFile::of_this_process();
                let hosts = hosts.expect("the path dns needs a process with a hosts file");
                hosts.set(HOST_NAME, &group.addresses());
                Self::Dns(group)
            }
        }
    }

    /// Returns the URLs that clients connect to.
    pub fn endpoints(&self) -> Vec<String> {
        match self {
            Self::Direct(endpoints) => endpoints.clone(),
            Self::TcpBalancer(balancer) => vec![balancer.endpoint()],
            Self::GrpcProxy(proxy) => vec![proxy.endpoint()],
            Self::L7Proxy(proxy) => vec![proxy.endpoint()],
            Self::Dns(group) => vec![group.endpoint(HOST_NAME)],
        }
    }
}

impl std::fmt::Debug for NetworkPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.endpoints()).finish()
    }
}
