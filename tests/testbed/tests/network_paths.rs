//! Balancers, gRPC proxies and host names in front of a cluster.

mod grpc_client;

use std::io::ErrorKind;
use std::time::Duration;

use grpc_client::{GrpcClient, PutRequest, TIMEOUT};
use testbed::{
    AddressGroup, Chaos, ChaosKind, ChaosPath, Cluster, Fault, GrpcProxy, HostsFile, PathKind,
    TcpBalancer, VERSIONS,
};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Returns the index of the member that serves a new connection to this endpoint.
async fn member_behind(cluster: &Cluster, endpoint: &str) -> usize {
    let id = GrpcClient::connect(endpoint)
        .await
        .put("k")
        .await
        .member_id();
    let members = cluster.members();
    members.iter().position(|member| member.id() == id).unwrap()
}

#[tokio::test]
async fn balancer_assigns_connections_in_turn() {
    let cluster = Cluster::start(3).await;
    let balancer = TcpBalancer::over(&cluster);
    for expected in [0, 1, 2, 0] {
        assert_eq!(
            member_behind(&cluster, &balancer.endpoint()).await,
            expected
        );
    }
    balancer.script(&[2, 2]);
    for expected in [2, 2, 1] {
        assert_eq!(
            member_behind(&cluster, &balancer.endpoint()).await,
            expected
        );
    }
    balancer.forward_to(&[1]);
    for _ in 0..2 {
        assert_eq!(member_behind(&cluster, &balancer.endpoint()).await, 1);
    }
    assert_eq!(balancer.link().accepted(), 9);
    assert_eq!(balancer.forwarded(1), 4);
}

#[tokio::test]
async fn balanced_connection_stays_with_its_member() {
    let cluster = Cluster::start(3).await;
    let balancer = TcpBalancer::over(&cluster);
    let mut client = GrpcClient::connect(&balancer.endpoint()).await;
    let member = cluster.member(0);
    assert_eq!(client.put("k").await.member_id(), member.id());
    balancer.forward_to(&[1]);
    assert_eq!(client.put("k").await.member_id(), member.id());
    member.kill();
    let ended = timeout(TIMEOUT, client.driver).await;
    assert!(ended.is_ok(), "the connection outlived its member");
}

#[tokio::test]
async fn balancer_link_can_fail() {
    let cluster = Cluster::start(1).await;
    let balancer = TcpBalancer::over(&cluster);
    let mut client = GrpcClient::connect(&balancer.endpoint()).await;
    client.put("k").await;
    balancer.link().set(Fault::Freeze);
    let put = client.send("/etcdserverpb.KV/Put", &PutRequest::default());
    assert!(timeout(Duration::from_millis(150), put).await.is_err());
    balancer.link().heal();
    client.put("k").await;
    balancer.link().reset_now();
    assert!(client.driver.await.unwrap().is_err());
    balancer.link().set(Fault::Refuse);
    let address = balancer.endpoint().replace("http://", "");
    let refused = TcpStream::connect(address).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn grpc_proxy_of_every_version_serves() {
    for version in VERSIONS {
        let cluster = Cluster::builder().version(version).start().await;
        let proxy = GrpcProxy::start(&cluster).await;
        let mut client = GrpcClient::connect(&proxy.endpoint()).await;
        client.put("k").await;
        assert_eq!(cluster.history("k").await.len(), 1, "etcd {version}");
    }
}

#[tokio::test]
async fn grpc_proxy_can_be_killed_and_frozen() {
    let cluster = Cluster::start(1).await;
    let proxy = GrpcProxy::start(&cluster).await;
    let mut client = GrpcClient::connect(&proxy.endpoint()).await;
    client.put("k").await;
    proxy.freeze();
    let put = client.send("/etcdserverpb.KV/Put", &PutRequest::default());
    assert!(timeout(Duration::from_millis(150), put).await.is_err());
    proxy.thaw();
    client.put("k").await;
    let killed = proxy.pid().unwrap();
    proxy.kill();
    let address = proxy.endpoint().replace("http://", "");
    let refused = TcpStream::connect(address).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    proxy.launch().await;
    GrpcClient::connect(&proxy.endpoint()).await.put("k").await;
    let pid = proxy.pid().unwrap();
    assert_ne!(pid, killed);
    drop(proxy);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[tokio::test]
async fn addresses_of_group_lead_to_their_members() {
    let cluster = Cluster::start(2).await;
    let group = AddressGroup::over(&cluster);
    for (index, address) in group.addresses().iter().enumerate() {
        let endpoint = group.endpoint(&address.to_string());
        assert_eq!(member_behind(&cluster, &endpoint).await, index);
    }
    let endpoint = group.endpoint(&group.addresses()[0].to_string());
    group.link(0).set(Fault::Refuse);
    let refused = TcpStream::connect(endpoint.replace("http://", "")).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    group.link(0).heal();
    assert_eq!(member_behind(&cluster, &endpoint).await, 0);
}

#[test]
fn host_name_resolves_to_several_addresses() {
    if !HostsFile::is_supported() {
        println!("skipped: this machine allows no user namespaces");
        return;
    }
    let hosts = HostsFile::new();
    let addresses = ["127.0.0.2", "127.0.0.3"];
    hosts.set("etcd.test", &addresses.map(|ip| ip.parse().unwrap()));
    let found = hosts
        .launcher()
        .args(["getent", "ahosts", "etcd.test"])
        .output()
        .unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    for address in addresses {
        assert!(found.contains(address), "{found}");
    }
}

#[tokio::test]
async fn random_faults_of_path_are_healed() {
    let cluster = Cluster::start(1).await;
    for kind in [PathKind::TcpBalancer, PathKind::GrpcProxy] {
        let path = ChaosPath::open(kind, &cluster).await;
        let chaos = Chaos::new(kind.name(), 7, Duration::from_secs(2))
            .fault_duration(Duration::from_millis(50), Duration::from_millis(300));
        let reset = [ChaosKind::ClientReset];
        let faults = chaos.run_through(&path, &cluster, &reset).await;
        assert!(faults.path > 0, "{faults}");
        for endpoint in path.endpoints() {
            let response = GrpcClient::connect(&endpoint).await.put("k").await;
            assert_eq!(response.grpc_status(), "0", "{endpoint}");
        }
    }
}
