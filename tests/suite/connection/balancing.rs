//! Who gets the next request.

use std::time::Duration;

use actix_etcd::{
    BalancePolicy, Candidates, Client, ClientBuilder, ConnectivityState, LeaderFirst, Pinned,
    PowerOfTwo,
};
use testbed::{Cluster, Fault, Member};

use crate::support::{
    quiet_window::{in_quiet_window, ready_members},
    wait::until,
};

async fn all_ready(builder: ClientBuilder, members: usize) -> Client {
    let client = builder.connect().await.unwrap();
    until("all members are ready", || {
        ready_members(&client) == members
    })
    .await;
    client
}

/// How many reads each member got for that many calls of each caller, by its own count: the proxies also see probes.
async fn spread_of(cluster: &Cluster, client: &Client, callers: usize, calls: usize) -> Vec<u64> {
    let before = started(cluster, READS).await;
    let call = move |client: Client| async move {
        for _ in 0..calls {
            client.get("k").await.unwrap();
        }
    };
    let callers: Vec<_> = (0..callers)
        .map(|_| tokio::spawn(call(client.clone())))
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    less(&started(cluster, READS).await, &before)
}

/// The same of a window in which nothing else happened, and in which no call was made twice.
async fn spread(cluster: &Cluster, client: &Client, members: usize, calls: usize) -> Vec<u64> {
    in_quiet_window(cluster, client, members, async || {
        let spread = spread_of(cluster, client, 1, calls).await;
        (spread.iter().sum::<u64>() == calls as u64).then_some(spread)
    })
    .await
}

fn less(after: &[u64], before: &[u64]) -> Vec<u64> {
    let pairs = after.iter().zip(before);
    pairs.map(|(after, before)| after - before).collect()
}

const READS: &str = r#"grpc_server_started_total{grpc_method="Range"}"#;
const REQUESTS: &str = "grpc_server_started_total";

/// How many requests of a kind each member has seen.
async fn started(cluster: &Cluster, requests: &str) -> Vec<u64> {
    let mut reads = Vec::new();
    for member in cluster.members() {
        let count = member.metric(requests).await;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count"
        )]
        reads.push(count.unwrap_or(0.0) as u64);
    }
    reads
}

#[tokio::test]
async fn round_robin_is_exactly_even() {
    let cluster = Cluster::start(3).await;
    let client = all_ready(Client::builder(cluster.endpoints()), 3).await;
    assert_eq!(spread(&cluster, &client, 3, 300).await, [100, 100, 100]);
    let uneven = spread(&cluster, &client, 3, 100).await;
    assert!(
        uneven.iter().all(|calls| (33..=34).contains(calls)),
        "{uneven:?}"
    );

    cluster.member(1).client_link().set(Fault::Refuse);
    until("a member is out", || ready_members(&client) == 2).await;
    assert_eq!(spread(&cluster, &client, 2, 100).await, [50, 0, 50]);
    cluster.member(1).client_link().heal();
    assert_eq!(spread(&cluster, &client, 3, 30).await, [10, 10, 10]);
}

#[tokio::test]
async fn round_robin_is_exactly_even_for_callers_at_once() {
    let cluster = Cluster::start(3).await;
    let client = all_ready(Client::builder(cluster.endpoints()), 3).await;
    let spread = in_quiet_window(&cluster, &client, 3, async || {
        let spread = spread_of(&cluster, &client, 20, 31).await;
        (spread.iter().sum::<u64>() == 20 * 31).then_some(spread)
    })
    .await;
    assert!(
        spread.iter().all(|calls| (206..=207).contains(calls)),
        "{spread:?}"
    );
}

#[tokio::test]
async fn the_spread_is_even_at_the_proxies() {
    let cluster = Cluster::start(3).await;
    let client = all_ready(Client::builder(cluster.endpoints()), 3).await;
    let at_proxies = || -> Vec<u64> {
        let members = cluster.members();
        let links = members.iter().map(Member::client_link);
        links.map(testbed::Link::streams_opened).collect()
    };
    let seen = in_quiet_window(&cluster, &client, 3, async || {
        let before = (at_proxies(), started(&cluster, REQUESTS).await);
        let reads = spread_of(&cluster, &client, 1, 300).await;
        let requests = less(&started(&cluster, REQUESTS).await, &before.1);
        let seen = less(&at_proxies(), &before.0);
        // What else the client asked meanwhile, such as how a member is, the member itself has counted.
        let others = less(&requests, &reads);
        // A member that was slow to answer is asked more: that is not the time to count.
        let calm = reads.iter().sum::<u64>() == 300 && others.iter().all(|others| *others < 10);
        calm.then_some((seen, others))
    })
    .await;
    for (seen, others) in seen.0.into_iter().zip(seen.1) {
        assert!(
            (100..=100 + others).contains(&seen),
            "{seen} through the proxy, {others} of them no reads"
        );
    }
}

#[tokio::test]
async fn a_pinned_cold_client_keeps_one_connection_and_moves_when_it_fails() {
    let cluster = Cluster::start(3).await;
    let client = Client::builder(cluster.endpoints())
        .balance(Pinned::cold())
        .connect()
        .await
        .unwrap();
    let open = || -> Vec<usize> {
        cluster
            .members()
            .iter()
            .map(|member| member.client_link().connections())
            .collect()
    };
    until("one connection is left", || {
        open().iter().sum::<usize>() == 1
    })
    .await;
    let first = open().iter().position(|count| *count == 1).unwrap();
    let calls = spread(&cluster, &client, 1, 50).await;
    assert_eq!(calls[first], 50, "{calls:?}");

    cluster.member(first).client_link().set(Fault::Refuse);
    for _ in 0..20 {
        client.get("k").await.unwrap();
    }
    until("one other connection is left", || {
        let open = open();
        open[first] == 0 && open.iter().sum::<usize>() == 1
    })
    .await;
}

#[tokio::test]
async fn a_pinned_cold_client_reaches_the_other_members_by_name() {
    let cluster = Cluster::start(3).await;
    let client = Client::builder(cluster.endpoints())
        .balance(Pinned::cold())
        .connect()
        .await
        .unwrap();
    let is_idle = |member: &Member| {
        let known = client.connectivity();
        let mut known = known.iter();
        let known = known.find(|known| known.endpoint == member.endpoint());
        known.is_some_and(|known| known.state == ConnectivityState::Idle)
    };
    let resting = || cluster.members().into_iter().filter(is_idle);
    until("two members rest", || resting().count() == 2).await;
    let resting = resting().next().unwrap();
    let dialled = resting.client_link().accepted();
    for _ in 0..20 {
        let status = client.maintenance().status().at(resting.endpoint());
        assert_eq!(status.await.unwrap().header.member_id, resting.id());
    }
    // One for all of them; an attempt from before may have been late.
    assert!(resting.client_link().accepted() - dialled <= 2);
    for member in client.versions().await {
        member.version.unwrap();
    }
    // All others go where they went before.
    let calls = spread_of(&cluster, &client, 1, 50).await;
    assert!(calls.contains(&50), "{calls:?}");
    assert_eq!(calls[resting.index()], 0, "{calls:?}");
}

#[tokio::test]
async fn a_pinned_warm_client_keeps_the_others_ready() {
    let cluster = Cluster::start(3).await;
    let client = all_ready(
        Client::builder(cluster.endpoints()).balance(Pinned::warm()),
        3,
    )
    .await;
    let calls = spread(&cluster, &client, 3, 60).await;
    let pinned = calls
        .iter()
        .position(|calls| *calls == 60)
        .expect("all calls go to one member");
    cluster.member(pinned).client_link().set(Fault::Refuse);
    until("the pinned one is out", || ready_members(&client) == 2).await;
    let calls = spread(&cluster, &client, 2, 60).await;
    assert!(calls.contains(&60) && calls[pinned] == 0, "{calls:?}");
}

#[tokio::test]
async fn power_of_two_leaves_a_slow_member_alone() {
    let cluster = Cluster::start(3).await;
    let client = all_ready(
        Client::builder(cluster.endpoints()).balance(PowerOfTwo::new()),
        3,
    )
    .await;
    // Far slower than the others ever are, and still too quick to be taken for silent.
    let slow = Fault::Delay(Duration::from_millis(90));
    cluster.member(2).client_link().set(slow);
    let calls = in_quiet_window(&cluster, &client, 3, async || {
        Some(spread_of(&cluster, &client, 16, 20).await)
    })
    .await;
    let all: u64 = calls.iter().sum();
    assert!(calls[2] * 4 < all, "less than by turns: {calls:?}");
}

#[tokio::test]
async fn leader_first_follows_the_leader() {
    let cluster = Cluster::start(3).await;
    let client = all_ready(
        Client::builder(cluster.endpoints()).balance(LeaderFirst::new()),
        3,
    )
    .await;
    // Who leads changes by itself, if rarely: what counts is that calls and leader agree.
    let follow = async || {
        let leader = cluster.leader().await;
        until("the leader is known", || leads(&client, leader)).await;
        let calls = spread_of(&cluster, &client, 1, 40).await;
        (leads(&client, leader) && calls.iter().sum::<u64>() == 40).then_some((leader, calls))
    };
    let (leader, calls) = in_quiet_window(&cluster, &client, 3, follow).await;
    assert_eq!(calls[leader], 40, "{calls:?}");
    cluster.move_leader((leader + 1) % 3).await;
    let (next, calls) = in_quiet_window(&cluster, &client, 3, follow).await;
    assert_ne!(next, leader);
    assert_eq!(calls[next], 40, "{calls:?}");
}

/// Whether the client takes this member, and no other, for the leader.
fn leads(client: &Client, leader: usize) -> bool {
    let members = client.connectivity();
    let mut members = members.iter().enumerate();
    members.all(|(index, member)| member.is_leader == Some(index == leader))
}

#[tokio::test]
async fn a_policy_of_the_users_own_is_asked() {
    #[derive(Debug)]
    struct Last;
    impl BalancePolicy for Last {
        fn pick(&self, candidates: &Candidates<'_>) -> usize {
            assert!(
                candidates
                    .iter()
                    .all(|candidate| candidate.endpoint().starts_with("http://"))
            );
            candidates.len() - 1
        }
    }
    let cluster = Cluster::start(3).await;
    let client = all_ready(Client::builder(cluster.endpoints()).balance(Last), 3).await;
    assert_eq!(spread(&cluster, &client, 3, 20).await, [0, 0, 20]);
}
