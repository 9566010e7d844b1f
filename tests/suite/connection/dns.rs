//! Host names are resolved again at every connection attempt, by the system's resolver.

use actix_etcd::Client;
use testbed::{AddressGroup, Cluster, HostsFile};

use crate::support::{
    own_host_names::with_hosts_file,
    wait::{TEST_TIMEOUT, until},
};

const HOST_NAME: &str = "member.test";

#[test]
fn changed_address_is_used_on_reconnect() {
    with_hosts_file!(check_reconnect);
}

async fn check_reconnect(hosts: HostsFile) {
    let cluster = Cluster::start(2).await;
    let group = AddressGroup::over(&cluster);
    let (old, new) = (group.link(0), group.link(1));
    hosts.set(HOST_NAME, &group.addresses()[..1]);
    let etcd = Client::connect([group.endpoint(HOST_NAME)]).await.unwrap();
    assert_eq!((old.accepted(), new.accepted()), (1, 0));
    hosts.set(HOST_NAME, &group.addresses()[1..]);
    old.reset_now();
    until("the new address is connected", || new.connections() == 1).await;
    etcd.wait_ready(TEST_TIMEOUT).await.unwrap();
    // The old address still accepts connections: the client left it only because of the name.
    assert_eq!(old.accepted(), 1);
}
