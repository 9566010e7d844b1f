//! An actor that runs on exactly one node, whatever happens to the others.

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

use crate::{
    actor::requests::ear,
    support::wait::{until, until_async},
};

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(3);

type Lives = Arc<Mutex<Vec<(&'static str, Instant, Option<Instant>)>>>;

/// Notes when it began and when it was gone.
struct Only {
    node: &'static str,
    lives: Lives,
    number: usize,
    token: i64,
    dies_slowly: Option<Duration>,
}

impl Actor for Only {
    type Context = Context<Self>;

    fn started(&mut self, _: &mut Self::Context) {
        let mut lives = self.lives.lock().unwrap();
        self.number = lives.len();
        lives.push((self.node, Instant::now(), None));
    }

    fn stopping(&mut self, ctx: &mut Self::Context) -> Running {
        let Some(last_words) = self.dies_slowly.take() else {
            return Running::Stop;
        };
        ctx.run_later(last_words, |_, ctx| ctx.stop());
        Running::Continue
    }
}

impl Drop for Only {
    fn drop(&mut self) {
        self.lives.lock().unwrap()[self.number].2 = Some(Instant::now());
    }
}

#[derive(Message)]
#[rtype(result = "i64")]
struct Token;

impl Handler<Token> for Only {
    type Result = i64;

    fn handle(&mut self, _: Token, _: &mut Self::Context) -> i64 {
        self.token
    }
}

#[derive(Message)]
#[rtype(result = "()")]
struct End;

impl Handler<End> for Only {
    type Result = ();

    fn handle(&mut self, _: End, ctx: &mut Self::Context) {
        ctx.stop();
    }
}

fn node(etcd: &Client, name: &'static str, lives: &Lives) -> Singleton<Only> {
    let lives = lives.clone();
    let make = move |leadership: Ownership| Only {
        node: name,
        lives: lives.clone(),
        number: 0,
        token: leadership.token(),
        dies_slowly: Some(SECOND / 5),
    };
    let singleton = etcd.singleton("only").value(name).ttl(TTL);
    singleton.start(make).unwrap()
}

/// Who lived, in order; fails where two did at once.
fn one_at_a_time(lives: &Lives) -> Vec<&'static str> {
    let lives = lives.lock().unwrap();
    for pair in lives.windows(2) {
        let ended = pair[0].2.expect("the one before has ended");
        assert!(ended <= pair[1].1, "two were alive at once: {lives:?}");
    }
    lives.iter().map(|life| life.0).collect()
}

#[actix::test]
async fn an_actor_runs_on_one_node_and_moves_when_that_is_stopped() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let lives = Lives::default();
    let a = node(&etcd, "a", &lives);
    let addr = a.running().await.unwrap();
    let b = node(&etcd, "b", &lives);
    until_async("both are candidates", async || {
        etcd.get("only/").prefix().await.unwrap().count == 2
    })
    .await;
    assert!(b.addr().is_none());
    let leader = etcd.leader("only").await.unwrap().unwrap();
    assert_eq!(leader.value, "a");
    assert_eq!(addr.send(Token).await.unwrap(), leader.token);
    a.stop().await;
    assert!(!addr.connected());
    let addr = b.running().await.unwrap();
    assert!(addr.send(Token).await.unwrap() > leader.token);
    // Dropped is stopped, too.
    drop(b);
    until("the second has ended", || {
        lives.lock().unwrap().iter().all(|life| life.2.is_some())
    })
    .await;
    assert_eq!(one_at_a_time(&lives), ["a", "b"]);
    until_async("no candidate is left", async || {
        etcd.get("only/").prefix().await.unwrap().count == 0
    })
    .await;
}

#[actix::test]
async fn a_node_that_is_cut_off_has_ended_its_actor_before_another_starts_it() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let direct = Client::connect(cluster.direct_endpoints()).await.unwrap();
    let lives = Lives::default();
    let a = node(&etcd, "a", &lives);
    a.running().await.unwrap();
    let b = node(&direct, "b", &lives);
    cluster.member(0).client_link().set(Fault::Freeze);
    timeout(20 * SECOND, b.running()).await.unwrap().unwrap();
    assert!(a.addr().is_none());
    assert_eq!(one_at_a_time(&lives), ["a", "b"]);
    cluster.heal();
    // Back again, it is a candidate like any other.
    until_async("both are candidates", async || {
        direct.get("only/").prefix().await.unwrap().count == 2
    })
    .await;
    b.stop().await;
    timeout(20 * SECOND, a.running()).await.unwrap().unwrap();
    assert_eq!(one_at_a_time(&lives), ["a", "b", "a"]);
    a.stop().await;
}

#[actix::test]
async fn an_actor_that_ends_by_itself_is_made_again() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let lives = Lives::default();
    let a = node(&etcd, "a", &lives);
    let first = a.running().await.unwrap();
    first.send(End).await.unwrap();
    a.not_running().await;
    a.running().await.unwrap();
    assert_eq!(one_at_a_time(&lives), ["a", "a"]);
    a.stop().await;
}

/// Ends when the test lets it.
struct Reluctant {
    may_end: Arc<AtomicBool>,
    /// Has one owner more while it lives.
    _alive: Arc<()>,
}

impl Actor for Reluctant {
    type Context = Context<Self>;

    fn stopping(&mut self, ctx: &mut Self::Context) -> Running {
        if self.may_end.load(Ordering::SeqCst) {
            return Running::Stop;
        }
        ctx.run_later(SECOND / 100, |_, ctx| ctx.stop());
        Running::Continue
    }
}

#[actix::test]
async fn it_is_not_here_any_more_only_when_it_has_ended() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let (may_end, alive) = (Arc::<AtomicBool>::default(), Arc::new(()));
    let (gate, owner) = (may_end.clone(), alive.clone());
    let make = move |_| Reluctant {
        may_end: gate.clone(),
        _alive: owner.clone(),
    };
    let singleton = etcd.singleton("only").ttl(TTL).start(make).unwrap();
    singleton.running().await.unwrap();
    let (heard, recipient) = ear::<SingletonEvent<Reluctant>>();
    let _told = singleton.deliver_to(recipient);
    until("it runs here", || {
        matches!(heard.lock().unwrap()[..], [SingletonEvent::RunsHere(_)])
    })
    .await;
    let owners = Arc::strong_count(&alive);
    cluster.member(0).client_link().set(Fault::Freeze);
    until("it is told to stop", || singleton.addr().is_none()).await;
    let not_running = timeout(SECOND / 2, singleton.not_running()).await;
    assert!(not_running.is_err(), "it is still here");
    assert_eq!(heard.lock().unwrap().len(), 1);
    may_end.store(true, Ordering::SeqCst);
    singleton.not_running().await;
    assert_eq!(Arc::strong_count(&alive), owners - 1);
    until("that is told", || {
        matches!(heard.lock().unwrap()[1..], [SingletonEvent::RunsElsewhere])
    })
    .await;
}

#[actix::test]
async fn a_factory_that_panics_costs_the_leadership_and_no_more() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let lives = Lives::default();
    let noted = lives.clone();
    let mut tokens = Vec::new();
    let make = move |leadership: Ownership| {
        tokens.push(leadership.token());
        assert!(tokens.len() > 2, "it can't be made yet");
        assert!(tokens.is_sorted_by(|a, b| a < b));
        Only {
            node: "a",
            lives: noted.clone(),
            number: 0,
            token: leadership.token(),
            dies_slowly: None,
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
async fn a_singleton_needs_an_arbiter() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let made = etcd.singleton("only").start(|_| -> Only { unreachable!() });
    assert_eq!(made.unwrap_err().kind(), ErrorKind::InvalidArgument);
}
