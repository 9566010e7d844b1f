//! Mutexes, singletons and sessions in processes that are paused at random (SIGSTOP), while members of the cluster and
//! links fail.
//!
//! `CHAOS_SECS` sets the duration, `CHAOS_SEED` the seed, which the test prints.

use tokio::runtime::Runtime;

use crate::support::{
    holder_timeline::HolderTimeline,
    lock_competition::check_nothing_left,
    mutex_process,
    node_process::{EventKind, NodeEvent},
    paused_nodes::{PauseRecord, PausedNodes},
    process_isolation::child_test,
    session_process, singleton_process,
};

/// A process can be paused between the check of the clock and the poll that it allows. That happens rarely.
const MAX_LATE_BEATS: usize = 1;

fn print_faults(record: &PauseRecord) {
    println!(
        "{} pauses, {} of them cut off, {} member faults",
        record.pauses.len(),
        record.cuts,
        record.member_faults
    );
}

/// Fails if two holders acted at the same time, or one acted after the deadline of its lease.
fn check_holders(events_by_node: &[Vec<NodeEvent>], record: &PauseRecord) {
    let timeline = HolderTimeline::new(events_by_node, &record.pauses);
    println!("{timeline}");
    timeline.check_one_at_a_time();
    assert!(timeline.holders >= 2, "{timeline}");
    assert!(timeline.late_beats <= MAX_LATE_BEATS, "{timeline}");
}

#[test]
fn paused_lock_holders_never_overlap() {
    if mutex_process::run_as_node() {
        return;
    }
    Runtime::new().unwrap().block_on(async {
        let mut nodes = PausedNodes::start(|| child_test!()).await;
        nodes.wait_for_more(EventKind::Started).await;
        let record = nodes
            .inject_faults("mutex, pauses", mutex_process::TTL)
            .await;
        print_faults(&record);
        nodes.wait_for_more(EventKind::Started).await;
        nodes.make_idle().await;
        let cleanup = check_nothing_left(&nodes.client().await, "l/").await;
        println!("0 ghosts: no key is left and the lock is free after {cleanup:?}");
        check_fencing(&nodes).await;
        check_holders(&nodes.stop().await, &record);
    });
}

/// Fails if a holder wrote after the next one.
async fn check_fencing(nodes: &PausedNodes) {
    let writes = nodes.cluster.history("work").await;
    let tokens = writes.into_iter().filter_map(|change| change.value);
    let tokens: Vec<i64> = tokens
        .map(|token| String::from_utf8(token).unwrap().parse().unwrap())
        .collect();
    assert!(tokens.is_sorted(), "{tokens:?}");
}

#[test]
fn paused_singletons_never_overlap() {
    if singleton_process::run_as_node() {
        return;
    }
    Runtime::new().unwrap().block_on(async {
        let nodes = PausedNodes::start(|| child_test!()).await;
        nodes.wait_for_more(EventKind::Started).await;
        let record = nodes
            .inject_faults("singleton, pauses", singleton_process::TTL)
            .await;
        print_faults(&record);
        nodes.wait_for_more(EventKind::Beat).await;
        let (cluster, etcd) = (nodes.cluster.clone(), nodes.client().await);
        check_holders(&nodes.stop().await, &record);
        let cleanup = check_nothing_left(&etcd, "only/").await;
        println!("0 ghosts: no key is left and the name is free after {cleanup:?}");
        drop(cluster);
    });
}

#[test]
fn paused_sessions_have_keys_while_up() {
    if session_process::run_as_node() {
        return;
    }
    Runtime::new().unwrap().block_on(async {
        let nodes = PausedNodes::start(|| child_test!()).await;
        for node in &nodes.processes {
            node.wait_for(EventKind::KeysPresent, 1).await;
        }
        let record = nodes
            .inject_faults("session, pauses", session_process::TTL)
            .await;
        print_faults(&record);
        for node in &nodes.processes {
            let present = node.count(EventKind::KeysPresent);
            node.wait_for(EventKind::KeysPresent, present + 1).await;
        }
        let (present, missing) = (
            nodes.count(EventKind::KeysPresent),
            nodes.count(EventKind::KeysMissing),
        );
        println!("{present} checks with all keys, {missing} with missing keys");
        assert_eq!(missing, 0);
        let (cluster, etcd) = (nodes.cluster.clone(), nodes.client().await);
        nodes.stop().await;
        assert_eq!(etcd.get("s/").prefix().await.unwrap().count, 0);
        drop(cluster);
    });
}
