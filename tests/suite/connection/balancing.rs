//! Balance policies: which member gets the next request.

use std::time::Duration;

use actix_etcd::{
    Client, ClientBuilder,
    balancer::{BalancePolicy, ConnectivityState, LeaderFirst, Pinned, PowerOfTwo, ReadyEndpoints},
    client::Liveness,
    test_faults::expire_named_endpoints,
};
use testbed::{Cluster, Fault, Member, ScriptedServer};

use crate::support::{
    leg_members::wait_for_legs,
    quiet_window::{in_quiet_window, ready_members},
    scripted_put::{RANGE, range_reply},
    wait::{TEST_TIMEOUT, until, until_async},
    watcher_metrics::wait_for_watchers,
};

/// On a busy machine a probe may be late. The client waits for it, so that the balancing does not change.
fn patient() -> Liveness {
    Liveness::default().unresponsive_after(TEST_TIMEOUT)
}

/// Connects and waits until this many members are ready. Without hedges, each read reaches one member: a copy of a read
/// that is late on a busy machine would go to another one, and the first copy may not be counted.
async fn connect_to_all(builder: ClientBuilder, members: usize) -> Client {
    let builder = builder.hedging(false).liveness(patient());
    let client = builder.connect().await.unwrap();
    until("all members are ready", || {
        ready_members(&client) == members
    })
    .await;
    client
}

async fn connect_cold_pinned(cluster: &Cluster) -> Client {
    let builder = Client::builder(cluster.endpoints()).balance(Pinned::cold());
    builder.liveness(patient()).connect().await.unwrap()
}

/// Sends this many reads per caller and returns how many each member received. The members count them, because the
/// proxies also see probes.
async fn read_counts(cluster: &Cluster, client: &Client, callers: usize, calls: usize) -> Vec<u64> {
    let before = request_counts(cluster, READ_METRIC).await;
    let call = move |client: Client| async move {
        for _ in 0..calls {
            client.get("k").timeout(TEST_TIMEOUT).await.unwrap();
        }
    };
    let callers: Vec<_> = (0..callers)
        .map(|_| tokio::spawn(call(client.clone())))
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    differences(&request_counts(cluster, READ_METRIC).await, &before)
}

/// Like [`read_counts`] with one caller, in a window without a fault, an election or a retry.
async fn exact_read_counts(
    cluster: &Cluster,
    client: &Client,
    members: usize,
    calls: usize,
) -> Vec<u64> {
    in_quiet_window(cluster, client, members, async || {
        let counts = read_counts(cluster, client, 1, calls).await;
        (counts.iter().sum::<u64>() == calls as u64).then_some(counts)
    })
    .await
}

/// Refuses connections to this member and waits until it is not ready.
async fn refuse_member(cluster: &Cluster, client: &Client, member: usize) {
    cluster.member(member).client_link().set(Fault::Refuse);
    until("the member is not ready", || {
        client.connectivity()[member].state != ConnectivityState::Ready
    })
    .await;
}

fn differences(after: &[u64], before: &[u64]) -> Vec<u64> {
    let pairs = after.iter().zip(before);
    pairs.map(|(after, before)| after - before).collect()
}

const READ_METRIC: &str = r#"grpc_server_started_total{grpc_method="Range"}"#;
const REQUEST_METRIC: &str = "grpc_server_started_total";

/// Returns the value of a request counter at each member.
async fn request_counts(cluster: &Cluster, metric: &str) -> Vec<u64> {
    let mut counts = Vec::new();
    for member in cluster.members() {
        let count = member.metric(metric).await;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count"
        )]
        counts.push(count.unwrap_or(0.0) as u64);
    }
    counts
}

#[tokio::test]
async fn round_robin_is_exactly_even() {
    let cluster = Cluster::start(3).await;
    let client = connect_to_all(Client::builder(cluster.endpoints()), 3).await;
    assert_eq!(
        exact_read_counts(&cluster, &client, 3, 300).await,
        [100, 100, 100]
    );
    let counts = exact_read_counts(&cluster, &client, 3, 100).await;
    assert!(
        counts.iter().all(|calls| (33..=34).contains(calls)),
        "{counts:?}"
    );

    refuse_member(&cluster, &client, 1).await;
    assert_eq!(
        exact_read_counts(&cluster, &client, 2, 100).await,
        [50, 0, 50]
    );
    cluster.member(1).client_link().heal();
    assert_eq!(
        exact_read_counts(&cluster, &client, 3, 30).await,
        [10, 10, 10]
    );
}

#[tokio::test]
async fn round_robin_is_even_for_concurrent_callers() {
    let cluster = Cluster::start(3).await;
    let client = connect_to_all(Client::builder(cluster.endpoints()), 3).await;
    let counts = in_quiet_window(&cluster, &client, 3, async || {
        let counts = read_counts(&cluster, &client, 20, 31).await;
        (counts.iter().sum::<u64>() == 20 * 31).then_some(counts)
    })
    .await;
    assert!(
        counts.iter().all(|calls| (206..=207).contains(calls)),
        "{counts:?}"
    );
}

#[tokio::test]
async fn round_robin_is_even_at_proxies() {
    let cluster = Cluster::start(3).await;
    let client = connect_to_all(Client::builder(cluster.endpoints()), 3).await;
    let proxy_counts = || -> Vec<u64> {
        let members = cluster.members();
        let links = members.iter().map(Member::client_link);
        links.map(testbed::Link::streams_opened).collect()
    };
    let seen = in_quiet_window(&cluster, &client, 3, async || {
        // The members count over a longer time, so that they count all requests that the proxies see.
        let requests_before = request_counts(&cluster, REQUEST_METRIC).await;
        let seen_before = proxy_counts();
        let reads = read_counts(&cluster, &client, 1, 300).await;
        let seen = differences(&proxy_counts(), &seen_before);
        let requests = async || {
            let requests = request_counts(&cluster, REQUEST_METRIC).await;
            differences(&requests, &requests_before)
        };
        until_async("the members count what the proxies have seen", async || {
            let requests = requests().await;
            requests
                .iter()
                .zip(&seen)
                .all(|(count, seen)| count >= seen)
        })
        .await;
        let requests = requests().await;
        // Requests other than reads, such as probes. The members count them as well.
        let others = differences(&requests, &reads);
        // A slow member is probed more often. Such a window is measured again.
        let undisturbed =
            reads.iter().sum::<u64>() == 300 && others.iter().all(|count| *count < 10);
        undisturbed.then_some((seen, others))
    })
    .await;
    for (seen, others) in seen.0.into_iter().zip(seen.1) {
        assert!(
            (100..=100 + others).contains(&seen),
            "{seen} streams at the proxy, {others} of them are not reads"
        );
    }
}

#[tokio::test]
async fn cold_pinned_client_keeps_one_connection() {
    let cluster = Cluster::start(3).await;
    let client = connect_cold_pinned(&cluster).await;
    let connections = || -> Vec<usize> {
        cluster
            .members()
            .iter()
            .map(|member| member.client_link().connections())
            .collect()
    };
    let only_member = || {
        let connections = connections();
        let only = connections.iter().sum::<usize>() == 1;
        connections.iter().position(|count| only && *count == 1)
    };
    // On a busy machine the pinned member may fail at any time: the calls are compared with that of the same window.
    let (first, calls) = in_quiet_window(&cluster, &client, 1, async || {
        until("one connection is left", || only_member().is_some()).await;
        let first = only_member()?;
        let calls = read_counts(&cluster, &client, 1, 50).await;
        let undisturbed = calls.iter().sum::<u64>() == 50 && only_member() == Some(first);
        undisturbed.then_some((first, calls))
    })
    .await;
    assert_eq!(calls[first], 50, "{calls:?}");

    cluster.member(first).client_link().set(Fault::Refuse);
    for _ in 0..20 {
        client.get("k").timeout(TEST_TIMEOUT).await.unwrap();
    }
    until("one other connection is left", || {
        let connections = connections();
        connections[first] == 0 && connections.iter().sum::<usize>() == 1
    })
    .await;
}

#[tokio::test]
async fn cold_pinned_client_reaches_named_members() {
    let cluster = Cluster::start(3).await;
    let client = connect_cold_pinned(&cluster).await;
    let is_idle = |member: &Member| {
        let known = client.connectivity();
        let mut known = known.iter();
        let known = known.find(|known| known.endpoint == member.endpoint());
        known.is_some_and(|known| known.state == ConnectivityState::Idle)
    };
    let idle_members = || cluster.members().into_iter().filter(is_idle);
    let until_idle = || until("two members are idle", || idle_members().count() == 2);
    // The pinned member is the only one that is ready before and after the window.
    let (idle, accepted, versions, calls) = in_quiet_window(&cluster, &client, 1, async || {
        until_idle().await;
        let idle = idle_members().next()?;
        let accepted_before = idle.client_link().accepted();
        for _ in 0..20 {
            let status = client.maintenance().status().at(idle.endpoint());
            let status = status.timeout(TEST_TIMEOUT).await.unwrap();
            assert_eq!(status.header.member_id, idle.id());
        }
        let accepted = idle.client_link().accepted() - accepted_before;
        let versions = client.versions().await;
        let calls = read_counts(&cluster, &client, 1, 50).await;
        expire_named_endpoints(&client).await;
        until_idle().await;
        let undisturbed = calls.iter().sum::<u64>() == 50;
        undisturbed.then_some((idle, accepted, versions, calls))
    })
    .await;
    // One connection for all requests. A connection attempt from before may have been accepted late.
    assert!(accepted <= 2, "{accepted} connections");
    for member in versions {
        member.version.unwrap();
    }
    // All other requests still go to the pinned member.
    assert!(calls.contains(&50), "{calls:?}");
    assert_eq!(calls[idle.index()], 0, "{calls:?}");
}

#[tokio::test]
async fn cold_pinned_client_starts_with_one_member() {
    const ROUNDS: usize = 20;
    let servers = [
        ScriptedServer::start().await,
        ScriptedServer::start().await,
        ScriptedServer::start().await,
    ];
    for server in &servers {
        server.on(RANGE, |_| range_reply());
    }
    let reads = || servers.each_ref().map(|server| server.count(RANGE));
    for _ in 0..ROUNDS {
        let before = reads();
        let endpoints = servers.each_ref().map(ScriptedServer::endpoint);
        let builder = Client::builder(endpoints).balance(Pinned::cold());
        let client = builder.liveness(patient()).connect().await.unwrap();
        for _ in 0..20 {
            client.get("k").timeout(TEST_TIMEOUT).await.unwrap();
        }
        let after = reads();
        let used = (0..servers.len()).filter(|server| after[*server] > before[*server]);
        assert_eq!(used.count(), 1, "{before:?} {after:?}");
        client.shutdown().await;
    }
}

#[tokio::test]
async fn named_member_stays_connected_for_waiting_request() {
    let cluster = Cluster::start(3).await;
    let client = connect_cold_pinned(&cluster).await;
    let state = |member: &Member| {
        let known = client.connectivity();
        let found = known
            .iter()
            .find(|known| known.endpoint == member.endpoint());
        found.unwrap().state
    };
    let is_idle = |member: &Member| state(member) == ConnectivityState::Idle;
    let idle_members = || cluster.members().into_iter().filter(is_idle);
    until("two members are idle", || idle_members().count() == 2).await;
    let named = idle_members().next().unwrap();
    named.client_link().set(Fault::Refuse);
    let status = client.maintenance().status().at(named.endpoint());
    let status = tokio::spawn(status.timeout(TEST_TIMEOUT).into_future());
    until("the member is dialled", || !is_idle(&named)).await;
    expire_named_endpoints(&client).await;
    named.client_link().heal();
    let status = status.await.unwrap().unwrap();
    assert_eq!(status.header.member_id, named.id());
}

#[tokio::test]
async fn warm_pinned_client_keeps_members_ready() {
    let cluster = Cluster::start(3).await;
    let client = connect_to_all(
        Client::builder(cluster.endpoints()).balance(Pinned::warm()),
        3,
    )
    .await;
    let calls = exact_read_counts(&cluster, &client, 3, 60).await;
    let pinned = calls
        .iter()
        .position(|calls| *calls == 60)
        .expect("all calls go to one member");
    refuse_member(&cluster, &client, pinned).await;
    let calls = exact_read_counts(&cluster, &client, 2, 60).await;
    assert!(calls.contains(&60) && calls[pinned] == 0, "{calls:?}");
}

#[tokio::test]
async fn hedged_watch_keeps_pinned_member() {
    let cluster = Cluster::start(3).await;
    let builder = Client::builder(cluster.endpoints()).balance(Pinned::warm());
    let client = connect_to_all(builder, 3).await;
    let (before, after) = in_quiet_window(&cluster, &client, 3, async || {
        let before = read_counts(&cluster, &client, 1, 20).await;
        let watch = client.watch("k").hedged().await.unwrap();
        wait_for_legs(&cluster, 2).await;
        let after = read_counts(&cluster, &client, 1, 20).await;
        drop(watch);
        wait_for_watchers(&cluster, 0.0).await;
        Some((before, after))
    })
    .await;
    assert!(before.contains(&20), "{before:?}");
    assert_eq!(after, before);
}

#[tokio::test]
async fn power_of_two_avoids_slow_member() {
    let cluster = Cluster::start(3).await;
    let client = connect_to_all(
        Client::builder(cluster.endpoints()).balance(PowerOfTwo::new()),
        3,
    )
    .await;
    // Much slower than the other members, but not slow enough to count as unresponsive.
    let slow = Fault::Delay(Duration::from_millis(90));
    cluster.member(2).client_link().set(slow);
    let calls = in_quiet_window(&cluster, &client, 3, async || {
        Some(read_counts(&cluster, &client, 16, 20).await)
    })
    .await;
    let all: u64 = calls.iter().sum();
    assert!(
        calls[2] * 4 < all,
        "the slow member must get less than a quarter: {calls:?}"
    );
}

#[tokio::test]
async fn leader_first_follows_leader() {
    let cluster = Cluster::start(3).await;
    let client = connect_to_all(
        Client::builder(cluster.endpoints()).balance(LeaderFirst::new()),
        3,
    )
    .await;
    // The leader may change at any time: the calls are compared with the leader of the same window.
    let leader_and_calls = async || {
        until_async("the leader is known", async || {
            is_known_leader(&client, cluster.leader().await)
        })
        .await;
        let leader = cluster.leader().await;
        let calls = read_counts(&cluster, &client, 1, 40).await;
        (is_known_leader(&client, leader) && calls.iter().sum::<u64>() == 40)
            .then_some((leader, calls))
    };
    let (leader, calls) = in_quiet_window(&cluster, &client, 3, leader_and_calls).await;
    assert_eq!(calls[leader], 40, "{calls:?}");
    loop {
        cluster.move_leader((leader + 1) % 3).await;
        let (new_leader, calls) = in_quiet_window(&cluster, &client, 3, leader_and_calls).await;
        assert_eq!(calls[new_leader], 40, "{calls:?}");
        // An election may have brought the old leader back.
        if new_leader != leader {
            break;
        }
    }
}

/// Returns whether the client considers this member, and no other, the leader.
fn is_known_leader(client: &Client, leader: usize) -> bool {
    let members = client.connectivity();
    let mut members = members.iter().enumerate();
    members.all(|(index, member)| member.is_leader == Some(index == leader))
}

#[tokio::test]
async fn custom_policy_picks_member() {
    #[derive(Debug)]
    struct LastCandidate;
    impl BalancePolicy for LastCandidate {
        fn pick(&self, candidates: &ReadyEndpoints<'_>) -> usize {
            assert!(
                candidates
                    .iter()
                    .all(|candidate| candidate.endpoint().starts_with("http://"))
            );
            candidates.len() - 1
        }
    }
    let cluster = Cluster::start(3).await;
    let client = connect_to_all(
        Client::builder(cluster.endpoints()).balance(LastCandidate),
        3,
    )
    .await;
    assert_eq!(
        exact_read_counts(&cluster, &client, 3, 20).await,
        [0, 0, 20]
    );
}
