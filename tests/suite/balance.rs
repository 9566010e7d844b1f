//! Who gets the next request.

use std::time::Duration;

use actix_etcd::{
    BalancePolicy, Candidates, Client, ClientBuilder, ConnectivityState, LeaderFirst, Pinned,
    PowerOfTwo,
};
use testbed::{Cluster, Fault, Member};

use crate::wait::until;

async fn all_ready(builder: ClientBuilder, members: usize) -> Client {
    let client = builder.connect().await.unwrap();
    until("all members are ready", || ready(&client) == members).await;
    client
}

fn ready(client: &Client) -> usize {
    client
        .connectivity()
        .iter()
        .filter(|member| member.state == ConnectivityState::Ready)
        .count()
}

/// How many reads each member got for that many calls, by its own count: the proxies also see probes.
async fn spread(cluster: &Cluster, client: &Client, calls: usize) -> Vec<u64> {
    let before = reads(cluster).await;
    for _ in 0..calls {
        client.get("k").await.unwrap();
    }
    let after = reads(cluster).await;
    after
        .iter()
        .zip(before)
        .map(|(after, before)| after - before)
        .collect()
}

async fn reads(cluster: &Cluster) -> Vec<u64> {
    let mut reads = Vec::new();
    for member in cluster.members() {
        let count = member
            .metric(r#"grpc_server_started_total{grpc_method="Range"}"#)
            .await;
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
    let through_proxies = |cluster: &Cluster| -> Vec<u64> {
        cluster
            .members()
            .iter()
            .map(|member| member.client_link().streams_opened())
            .collect()
    };
    let before = through_proxies(&cluster);
    assert_eq!(spread(&cluster, &client, 300).await, [100, 100, 100]);
    let seen = through_proxies(&cluster);
    assert!(
        seen.iter()
            .zip(before)
            .all(|(after, before)| after - before >= 100),
        "{seen:?}"
    );
    let uneven = spread(&cluster, &client, 100).await;
    assert_eq!(uneven.iter().sum::<u64>(), 100);
    assert!(
        uneven.iter().all(|calls| (33..=34).contains(calls)),
        "{uneven:?}"
    );

    cluster.member(1).client_link().set(Fault::Refuse);
    until("a member is out", || ready(&client) == 2).await;
    assert_eq!(spread(&cluster, &client, 100).await, [50, 0, 50]);
    cluster.member(1).client_link().heal();
    until("it is back", || ready(&client) == 3).await;
    assert_eq!(spread(&cluster, &client, 30).await, [10, 10, 10]);
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
    let calls = spread(&cluster, &client, 50).await;
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
    let calls = spread(&cluster, &client, 50).await;
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
    let calls = spread(&cluster, &client, 60).await;
    let pinned = calls
        .iter()
        .position(|calls| *calls == 60)
        .expect("all calls go to one member");
    cluster.member(pinned).client_link().set(Fault::Refuse);
    until("the pinned one is out", || ready(&client) == 2).await;
    let calls = spread(&cluster, &client, 60).await;
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
    cluster
        .member(2)
        .client_link()
        .set(Fault::Delay(Duration::from_millis(30)));
    let before = reads(&cluster).await;
    let callers: Vec<_> = (0..16)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                for _ in 0..20 {
                    client.get("k").serializable().await.unwrap();
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    let after = reads(&cluster).await;
    let calls: Vec<u64> = after
        .iter()
        .zip(before)
        .map(|(after, before)| after - before)
        .collect();
    assert!(calls[2] < calls[0] && calls[2] < calls[1], "{calls:?}");
}

#[tokio::test]
async fn leader_first_follows_the_leader() {
    let cluster = Cluster::start(3).await;
    let client = all_ready(
        Client::builder(cluster.endpoints()).balance(LeaderFirst::new()),
        3,
    )
    .await;
    let leader = cluster.leader().await;
    assert_eq!(spread(&cluster, &client, 40).await[leader], 40);
    let next = (leader + 1) % 3;
    cluster.move_leader(next).await;
    let known = client.clone();
    until("the new leader is known", || {
        let leaders: Vec<bool> = known
            .connectivity()
            .iter()
            .map(|m| m.is_leader == Some(true))
            .collect();
        leaders[next] && !leaders[leader]
    })
    .await;
    assert!(spread(&cluster, &client, 40).await[next] >= 40);
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
    assert_eq!(spread(&cluster, &client, 20).await, [0, 0, 20]);
}
