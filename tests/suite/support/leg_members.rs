//! The members that carry the legs of a hedged watch.

use testbed::Cluster;

use crate::support::wait::until_async;

async fn members_with_watchers(cluster: &Cluster) -> Vec<usize> {
    let mut members = Vec::new();
    for member in cluster.members() {
        let watchers = member.metric("etcd_debugging_mvcc_watcher_total").await;
        if watchers.unwrap_or_default() > 0.5 {
            members.push(member.index());
        }
    }
    members
}

/// Waits until the only watch of the cluster runs on this many members. Returns their indexes.
pub async fn wait_for_legs(cluster: &Cluster, count: usize) -> Vec<usize> {
    let description = format!("the watch runs on {count} members");
    until_async(&description, async || {
        members_with_watchers(cluster).await.len() == count
    })
    .await;
    members_with_watchers(cluster).await
}

/// Waits until the only watch of the cluster, which has three members, runs on both members other than `left`, and has
/// caught up with the changes there.
pub async fn wait_for_legs_without(cluster: &Cluster, left: usize) {
    let others: Vec<usize> = (0..3).filter(|member| *member != left).collect();
    let description = format!("the watch runs on the members {others:?}");
    until_async(&description, async || {
        for member in &others {
            let member = cluster.member(*member);
            let behind = member
                .metric("etcd_debugging_mvcc_slow_watcher_total")
                .await;
            if behind.is_none_or(|behind| behind > 0.5) {
                return false;
            }
        }
        members_with_watchers(cluster).await == others
    })
    .await;
}
