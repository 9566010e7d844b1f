//! Random faults for a while, from a seed that can be given again.

use std::env;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::{Instant, timeout};

use crate::cluster::Cluster;
use crate::link::{Direction, Fault};
use crate::runtime;

/// How long a member may take for a graceful stop before it is killed.
const GRACE: Duration = Duration::from_secs(3);

/// A kind of fault that chaos may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChaosKind {
    /// kill -9, started again later.
    Kill,
    /// A graceful stop, started again later.
    Stop,
    /// SIGSTOP, SIGCONT later.
    Freeze,
    /// The connections of a member's clients are reset, once.
    ClientReset,
    /// No byte moves between a member and its clients.
    ClientFreeze,
    /// A member's clients are refused.
    ClientRefuse,
    /// Only one direction between a member and its clients works.
    ClientHalfOpen,
    /// A member is cut off from its peers.
    Isolate,
    /// Another member is made the leader.
    MoveLeader,
}

impl ChaosKind {
    /// All of them.
    pub const ALL: [ChaosKind; 9] = [
        ChaosKind::Kill,
        ChaosKind::Stop,
        ChaosKind::Freeze,
        ChaosKind::ClientReset,
        ChaosKind::ClientFreeze,
        ChaosKind::ClientRefuse,
        ChaosKind::ClientHalfOpen,
        ChaosKind::Isolate,
        ChaosKind::MoveLeader,
    ];
}

/// Random faults: how long, and from which seed.
#[derive(Clone, Debug)]
pub struct Chaos {
    name: String,
    seed: u64,
    length: Duration,
    max_faulty_members: Option<usize>,
    lasts: (Duration, Duration),
    pauses: (Duration, Duration),
}

impl Chaos {
    /// For `CHAOS_SECS` seconds (10 by default) from `CHAOS_SEED` (a new one by default), both printed.
    pub fn from_env(name: &str) -> Self {
        let given = |variable: &str| env::var(variable).ok().filter(|text| !text.is_empty());
        let parsed = |variable: &str| {
            given(variable).map(|text| {
                text.parse::<u64>()
                    .unwrap_or_else(|why| panic!("{variable}={text}: {why}"))
            })
        };
        let length = Duration::from_secs(parsed("CHAOS_SECS").unwrap_or(10));
        Self::new(
            name,
            parsed("CHAOS_SEED").unwrap_or_else(|| fastrand::u64(..)),
            length,
        )
    }

    /// For this long from this seed.
    pub fn new(name: &str, seed: u64, length: Duration) -> Self {
        println!("chaos {name}: {length:?} from CHAOS_SEED={seed}");
        Self {
            name: name.to_owned(),
            seed,
            length,
            max_faulty_members: None,
            lasts: (Duration::from_millis(200), Duration::from_secs(3)),
            pauses: (Duration::from_millis(50), Duration::from_secs(1)),
        }
    }

    /// For this long at the least, whatever the environment says.
    pub fn min_duration(mut self, length: Duration) -> Self {
        self.length = self.length.max(length);
        self
    }

    /// How many members may be bad at once. Default: a minority, so that the cluster can serve.
    pub fn max_faulty_members(mut self, members: usize) -> Self {
        self.max_faulty_members = Some(members);
        self
    }

    /// How long one fault lasts. Default: 0.2 to 3 s.
    pub fn fault_duration(mut self, shortest: Duration, longest: Duration) -> Self {
        self.lasts = (shortest, longest);
        self
    }

    /// How long it is between two faults. Default: 0.05 to 1 s.
    pub fn pause_between_faults(mut self, shortest: Duration, longest: Duration) -> Self {
        self.pauses = (shortest, longest);
        self
    }

    /// How long it goes on.
    pub fn duration(&self) -> Duration {
        self.length
    }

    /// Its seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Makes things fail until the time is over, then heals everything and waits until the cluster is healthy. Tells
    /// what it did.
    pub async fn run(&self, cluster: &Cluster, kinds: &[ChaosKind]) -> Vec<(usize, ChaosKind)> {
        assert!(!kinds.is_empty(), "chaos needs a kind of fault");
        let (chaos, cluster, kinds) = (self.clone(), cluster.clone(), kinds.to_vec());
        runtime::run(async move { chaos.run_here(&cluster, &kinds).await }).await
    }

    async fn run_here(&self, cluster: &Cluster, kinds: &[ChaosKind]) -> Vec<(usize, ChaosKind)> {
        let mut rng = Rng::with_seed(self.seed);
        let members: Vec<usize> = cluster.present().iter().map(crate::Member::index).collect();
        let most = self
            .max_faulty_members
            .unwrap_or((members.len() - 1) / 2)
            .max(1);
        let end = Instant::now() + self.length;
        let mut bad: Vec<Struck> = Vec::new();
        let mut done = Vec::new();
        while Instant::now() < end {
            if bad.len() < most {
                let is_well = |member: &&usize| bad.iter().all(|struck| struck.member != **member);
                let well: Vec<usize> = members.iter().filter(is_well).copied().collect();
                let (member, kind) = (
                    well[rng.usize(..well.len())],
                    kinds[rng.usize(..kinds.len())],
                );
                let lasts = between(&mut rng, self.lasts);
                println!(
                    "chaos {}: {kind:?} on member {member} for {lasts:?}",
                    self.name
                );
                Self::strike(cluster, member, kind, &mut rng).await;
                done.push((member, kind));
                bad.push(Struck {
                    member,
                    kind,
                    until: Instant::now() + lasts,
                });
            }
            // Either there is room for the next fault after a pause, or the first of those at work must end.
            let mut next = Instant::now() + between(&mut rng, self.pauses);
            if bad.len() >= most {
                next = bad
                    .iter()
                    .map(|struck| struck.until)
                    .fold(end, Instant::min)
                    .max(next);
            }
            tokio::time::sleep_until(next.min(end)).await;
            let now = Instant::now();
            let (over, still) = bad
                .into_iter()
                .partition(|struck: &Struck| struck.until <= now);
            bad = still;
            let over: Vec<Struck> = over;
            for struck in over {
                recover(cluster, struck.member, &bad).await;
            }
            // A member that has started but not joined is still bad: with the next fault there would be no quorum, and
            // what a client then cannot do would say nothing of the client.
            if self.max_faulty_members.is_none() && bad.is_empty() {
                cluster.wait_healthy().await;
            }
        }
        cluster.heal();
        cluster.start_all().await;
        done
    }

    async fn strike(cluster: &Cluster, index: usize, kind: ChaosKind, rng: &mut Rng) {
        let member = cluster.member(index);
        match kind {
            ChaosKind::Kill => member.kill(),
            // While its peers are at fault it may wait for them for long.
            ChaosKind::Stop => {
                if timeout(GRACE, member.stop()).await.is_err() {
                    member.kill();
                }
            }
            ChaosKind::Freeze => member.freeze(),
            ChaosKind::ClientReset => member.client_link().reset_now(),
            ChaosKind::ClientFreeze => member.client_link().set(Fault::Freeze),
            ChaosKind::ClientRefuse => member.client_link().set(Fault::Refuse),
            ChaosKind::ClientHalfOpen => {
                let stopped = if rng.bool() {
                    Direction::ToServer
                } else {
                    Direction::ToClient
                };
                member.client_link().set(Fault::HalfOpen(stopped));
            }
            ChaosKind::Isolate => cluster.isolate(index),
            ChaosKind::MoveLeader => {
                // With others at fault it may not be possible at all.
                let _ = timeout(Duration::from_secs(2), cluster.move_leader(index)).await;
            }
        }
    }
}

/// A fault at work.
struct Struck {
    member: usize,
    kind: ChaosKind,
    until: Instant,
}

/// Undoes whatever was done to this member, and leaves alone what is being done to others.
async fn recover(cluster: &Cluster, index: usize, bad: &[Struck]) {
    let member = cluster.member(index);
    member.thaw();
    member.client_link().heal();
    let isolated = |other: usize| {
        bad.iter()
            .any(|struck| struck.member == other && struck.kind == ChaosKind::Isolate)
    };
    for other in (0..cluster.len()).filter(|other| *other != index && !isolated(*other)) {
        cluster.peer_link(index, other).heal();
        cluster.peer_link(other, index).heal();
    }
    member.start().await;
}

fn between(rng: &mut Rng, (shortest, longest): (Duration, Duration)) -> Duration {
    shortest + (longest.saturating_sub(shortest)).mul_f64(rng.f64())
}
