//! Singletons: an actor that runs on one node at a time.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message, Running};
use actix_etcd::{
    Client, ErrorKind,
    recipes::{
        election::Ownership,
        singleton::{Singleton, SingletonEvent},
    },
};
use testbed::{Cluster, Fault};
use tokio::time::timeout;

use crate::support::{
    message_recorder::record_messages,
    wait::{until, until_async},
};

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(3);

#[derive(Debug)]
struct ActorLife {
    node: &'static str,
    started: Instant,
    ended: Option<Instant>,
}

type Lives = Arc<Mutex<Vec<ActorLife>>>;

/// Records when it is started and when it is dropped.
struct RecordedActor {
    node: &'static str,
    lives: Lives,
    /// Index of its entry in `lives`.
    index: usize,
    token: i64,
    /// Time it takes to stop.
    stop_delay: Option<Duration>,
}

impl Actor for RecordedActor {
    type Context = Context<Self>;

    fn started(&mut self, _: &mut Self::Context) {
        let mut lives = self.lives.lock().unwrap();
        self.index = lives.len();
        lives.push(ActorLife {
            node: self.node,
            started: Instant::now(),
            ended: None,
        });
    }

    fn stopping(&mut self, ctx: &mut Self::Context) -> Running {
        let Some(delay) = self.stop_delay.take() else {
            return Running::Stop;
        };
        ctx.run_later(delay, |_, ctx| ctx.stop());
        Running::Continue
    }
}

impl Drop for RecordedActor {
    fn drop(&mut self) {
        self.lives.lock().unwrap()[self.index].ended = Some(Instant::now());
    }
}

#[derive(Message)]
#[rtype(result = "i64")]
struct GetToken;

impl Handler<GetToken> for RecordedActor {
    type Result = i64;

    fn handle(&mut self, _: GetToken, _: &mut Self::Context) -> i64 {
        self.token
    }
}

#[derive(Message)]
#[rtype(result = "()")]
struct Stop;

impl Handler<Stop> for RecordedActor {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        ctx.stop();
    }
}

fn start_node(etcd: &Client, name: &'static str, lives: &Lives) -> Singleton<RecordedActor> {
    let lives = lives.clone();
    let make = move |leadership: Ownership| RecordedActor {
        node: name,
        lives: lives.clone(),
        index: 0,
        token: leadership.token(),
        stop_delay: Some(SECOND / 5),
    };
    let singleton = etcd.singleton("only").value(name).ttl(TTL);
    singleton.start(make).unwrap()
}

/// Returns the nodes on which the actor ran, in order. Fails if two actors were alive at the same time.
fn nodes_in_order(lives: &Lives) -> Vec<&'static str> {
    let lives = lives.lock().unwrap();
    for pair in lives.windows(2) {
        let ended = pair[0].ended.expect("the earlier actor has ended");
        assert!(
            ended <= pair[1].started,
            "two actors were alive at the same time: {lives:?}"
        );
    }
    lives.iter().map(|life| life.node).collect()
}

#[actix::test]
async fn singleton_moves_when_its_node_stops() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let lives = Lives::default();
    let a = start_node(&etcd, "a", &lives);
    let addr = a.running().await.unwrap();
    let b = start_node(&etcd, "b", &lives);
    until_async("both nodes are candidates", async || {
        etcd.get("only/").prefix().await.unwrap().count == 2
    })
    .await;
    assert!(b.addr().is_none());
    let leader = etcd.leader("only").await.unwrap().unwrap();
    assert_eq!(leader.value, "a");
    assert_eq!(addr.send(GetToken).await.unwrap(), leader.token);
    a.stop().await;
    assert!(!addr.connected());
    let addr = b.running().await.unwrap();
    assert!(addr.send(GetToken).await.unwrap() > leader.token);
    // Dropping a node stops its actor, too.
    drop(b);
    until("the second actor has ended", || {
        let lives = lives.lock().unwrap();
        lives.iter().all(|life| life.ended.is_some())
    })
    .await;
    assert_eq!(nodes_in_order(&lives), ["a", "b"]);
    until_async("no candidate is left", async || {
        etcd.get("only/").prefix().await.unwrap().count == 0
    })
    .await;
}

#[actix::test]
async fn cut_off_node_ends_actor_before_takeover() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let direct = Client::connect(cluster.direct_endpoints()).await.unwrap();
    let lives = Lives::default();
    let a = start_node(&etcd, "a", &lives);
    a.running().await.unwrap();
    let b = start_node(&direct, "b", &lives);
    cluster.member(0).client_link().set(Fault::Freeze);
    timeout(20 * SECOND, b.running()).await.unwrap().unwrap();
    assert!(a.addr().is_none());
    assert_eq!(nodes_in_order(&lives), ["a", "b"]);
    cluster.heal();
    // The node becomes a candidate again when it is reconnected.
    until_async("both nodes are candidates", async || {
        direct.get("only/").prefix().await.unwrap().count == 2
    })
    .await;
    b.stop().await;
    timeout(20 * SECOND, a.running()).await.unwrap().unwrap();
    assert_eq!(nodes_in_order(&lives), ["a", "b", "a"]);
    a.stop().await;
}

#[actix::test]
async fn stopped_actor_is_started_again() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let lives = Lives::default();
    let a = start_node(&etcd, "a", &lives);
    let first = a.running().await.unwrap();
    first.send(Stop).await.unwrap();
    a.not_running().await;
    a.running().await.unwrap();
    assert_eq!(nodes_in_order(&lives), ["a", "a"]);
    a.stop().await;
}

/// Stops only when the test allows it.
struct BlockedStop {
    may_stop: Arc<AtomicBool>,
    /// Its reference count shows whether the actor is alive.
    _alive: Arc<()>,
}

impl Actor for BlockedStop {
    type Context = Context<Self>;

    fn stopping(&mut self, ctx: &mut Self::Context) -> Running {
        if self.may_stop.load(Ordering::SeqCst) {
            return Running::Stop;
        }
        ctx.run_later(SECOND / 100, |_, ctx| ctx.stop());
        Running::Continue
    }
}

#[actix::test]
async fn singleton_runs_here_until_actor_is_dropped() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let (may_stop, alive) = (Arc::<AtomicBool>::default(), Arc::new(()));
    let (actor_may_stop, actor_alive) = (may_stop.clone(), alive.clone());
    let make = move |_| BlockedStop {
        may_stop: actor_may_stop.clone(),
        _alive: actor_alive.clone(),
    };
    let singleton = etcd.singleton("only").ttl(TTL).start(make).unwrap();
    singleton.running().await.unwrap();
    let (events, recipient) = record_messages::<SingletonEvent<BlockedStop>>();
    let _subscription = singleton.deliver_to(recipient);
    until("the singleton runs here", || {
        matches!(events.lock().unwrap()[..], [SingletonEvent::RunsHere(_)])
    })
    .await;
    let references = Arc::strong_count(&alive);
    cluster.member(0).client_link().set(Fault::Freeze);
    until("the actor is stopping", || singleton.addr().is_none()).await;
    let not_running = timeout(SECOND / 2, singleton.not_running()).await;
    assert!(not_running.is_err(), "the actor has not stopped yet");
    assert_eq!(events.lock().unwrap().len(), 1);
    may_stop.store(true, Ordering::SeqCst);
    singleton.not_running().await;
    assert_eq!(Arc::strong_count(&alive), references - 1);
    until("the end is received", || {
        matches!(events.lock().unwrap()[1..], [SingletonEvent::RunsElsewhere])
    })
    .await;
}

#[actix::test]
async fn panicking_factory_is_retried_with_new_leadership() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let lives = Lives::default();
    let actor_lives = lives.clone();
    let mut tokens = Vec::new();
    let make = move |leadership: Ownership| {
        tokens.push(leadership.token());
        assert!(tokens.len() > 2, "the factory fails twice");
        assert!(tokens.is_sorted_by(|a, b| a < b));
        RecordedActor {
            node: "a",
            lives: actor_lives.clone(),
            index: 0,
            token: leadership.token(),
            stop_delay: None,
        }
    };
    let singleton = etcd.singleton("only").ttl(TTL).start(make).unwrap();
    timeout(20 * SECOND, singleton.running())
        .await
        .unwrap()
        .unwrap();
    singleton.stop().await;
}

#[tokio::test]
async fn singleton_requires_an_arbiter() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let started = etcd
        .singleton("only")
        .start(|_| -> RecordedActor { unreachable!() });
    assert_eq!(started.unwrap_err().kind(), ErrorKind::InvalidArgument);
}
