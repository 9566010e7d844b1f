//! One endpoint, a host name with one address per member.

use std::time::Duration;

use actix_etcd::Client;
use testbed::{AddressGroup, Cluster, Fault, HostsFile};

use crate::support::{
    own_host_names::with_hosts_file,
    traffic::{Readers, Writers, check_applied_at_most_once, error_counts, longest_gap},
    wait::hold,
    watched_revisions::WatchedRevisions,
};

const HOST_NAME: &str = "etcd.test";
const PREFIX: &str = "w/";
/// Longest time without a successful write, with slack for a busy machine.
const MAX_GAP: Duration = Duration::from_millis(3500);

#[test]
fn unreachable_addresses_of_host_name_are_skipped() {
    with_hosts_file!(check_unreachable_addresses);
}

async fn check_unreachable_addresses(hosts: HostsFile) {
    let cluster = Cluster::start(3).await;
    let group = AddressGroup::over(&cluster);
    hosts.set(HOST_NAME, &group.addresses());
    for fault in [Fault::Refuse, Fault::Reset, Fault::Freeze] {
        group.link(0).set(fault);
        group.link(1).set(fault);
        let etcd = Client::connect([group.endpoint(HOST_NAME)]).await.unwrap();
        etcd.put("k", "v").await.unwrap();
        etcd.shutdown().await;
        group.link(0).heal();
        group.link(1).heal();
    }
}

#[test]
fn host_name_leads_to_another_member_after_fault() {
    with_hosts_file!(check_member_faults);
}

async fn check_member_faults(hosts: HostsFile) {
    let cluster = Cluster::start(3).await;
    cluster.move_leader(2).await;
    let group = AddressGroup::over(&cluster);
    hosts.set(HOST_NAME, &group.addresses());
    let etcd = Client::connect([group.endpoint(HOST_NAME)]).await.unwrap();
    etcd.put("read", "me").await.unwrap();
    let faults: [(&str, fn(&Cluster, usize)); 4] = [
        ("kill", |cluster, index| cluster.member(index).kill()),
        ("freeze", |cluster, index| cluster.member(index).freeze()),
        ("frozen link", |cluster, index| {
            cluster.member(index).client_link().set(Fault::Freeze);
        }),
        ("cut off", Cluster::isolate),
    ];
    for (name, fault) in faults {
        let watched = WatchedRevisions::start(&etcd, PREFIX).await;
        let writers = Writers::start(&etcd, 4, &format!("{PREFIX}{name}/"));
        let readers = Readers::start(&etcd, 2, "read");
        writers.wait_for_writes(20).await;
        let connected = (0..3).find(|index| group.link(*index).connections() > 0);
        let connected = connected.expect("one address is connected");
        let other = (connected + 1) % 3;
        cluster.move_leader(other).await;
        fault(&cluster, connected);
        hold(Duration::from_secs(5)).await;
        cluster.heal();
        cluster.start_all().await;
        writers.wait_for_writes(20).await;
        let writes = writers.finish().await;
        println!(
            "{name}: longest gap {:?}, {:?}",
            longest_gap(&writes),
            error_counts(&writes)
        );
        let failed_reads = readers.finish().await;
        assert!(failed_reads.is_empty(), "{name}: {failed_reads:?}");
        assert!(longest_gap(&writes) < MAX_GAP, "{name}");
        check_applied_at_most_once(&cluster, &format!("{PREFIX}{name}/"), &writes).await;
        watched.check(&cluster).await;
    }
}
