//! Random faults for a limited time, repeatable from a seed.

use std::env;
use std::fmt;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::{Instant, timeout};

use crate::cluster::Cluster;
use crate::link::{Direction, Fault};
use crate::runtime;

/// How long a graceful stop may take before the member is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// Kind of a random fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChaosKind {
    /// SIGKILL; the member is restarted at the end of the fault.
    Kill,
    /// Graceful stop; the member is restarted at the end of the fault.
    Stop,
    /// SIGSTOP; SIGCONT at the end of the fault.
    Freeze,
    /// Resets the client connections of a member, once.
    ClientReset,
    /// Transfers no bytes between a member and its clients.
    ClientFreeze,
    /// Refuses client connections to a member.
    ClientRefuse,
    /// Transfers bytes in only one direction between a member and its clients.
    ClientHalfOpen,
    /// Cuts a member off from its peers.
    Isolate,
    /// Makes the member the leader.
    MoveLeader,
}

impl ChaosKind {
    /// All kinds.
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

/// A run of random faults: its seed, its duration, and how often faults occur.
#[derive(Clone, Debug)]
pub struct Chaos {
    pub(crate) name: String,
    pub(crate) seed: u64,
    pub(crate) duration: Duration,
    max_faulty_members: Option<usize>,
    pub(crate) fault_duration: (Duration, Duration),
    pub(crate) pause_between_faults: (Duration, Duration),
}

/// Returns the length of a test under load: `CHAOS_SECS`, 10 s by default.
pub fn chaos_duration() -> Duration {
    Duration::from_secs(number_from_env("CHAOS_SECS").unwrap_or(10))
}

fn number_from_env(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok().filter(|text| !text.is_empty())?;
    let number = text.parse();
    Some(number.unwrap_or_else(|error| panic!("{variable}={text}: {error}")))
}

impl Chaos {
    /// Reads the duration from `CHAOS_SECS` (default: 10) and the seed from `CHAOS_SEED` (default: random), and
    /// prints both.
    pub fn from_env(name: &str) -> Self {
        let seed = number_from_env("CHAOS_SEED").unwrap_or_else(|| fastrand::u64(..));
        Self::new(name, seed, chaos_duration())
    }

    /// Faults for `duration`, chosen from `seed`.
    pub fn new(name: &str, seed: u64, duration: Duration) -> Self {
        println!("chaos {name}: {duration:?}, CHAOS_SEED={seed}");
        Self {
            name: name.to_owned(),
            seed,
            duration,
            max_faulty_members: None,
            fault_duration: (Duration::from_millis(200), Duration::from_secs(3)),
            pause_between_faults: (Duration::from_millis(50), Duration::from_secs(1)),
        }
    }

    /// Minimum duration of the run; overrides a shorter `CHAOS_SECS`. Default: none.
    pub fn min_duration(mut self, duration: Duration) -> Self {
        self.duration = self.duration.max(duration);
        self
    }

    /// Maximum number of members with a fault at the same time. Default: a minority, which keeps the cluster available.
    pub fn max_faulty_members(mut self, members: usize) -> Self {
        self.max_faulty_members = Some(members);
        self
    }

    /// Duration of one fault. Default: 0.2 to 3 s.
    pub fn fault_duration(mut self, shortest: Duration, longest: Duration) -> Self {
        self.fault_duration = (shortest, longest);
        self
    }

    /// Pause between two faults. Default: 0.05 to 1 s.
    pub fn pause_between_faults(mut self, shortest: Duration, longest: Duration) -> Self {
        self.pause_between_faults = (shortest, longest);
        self
    }

    /// Returns the duration of the run.
    pub fn duration(&self) -> Duration {
        self.duration
    }

    /// Returns the seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Injects faults for the duration of the run, then heals everything and waits until the cluster is healthy.
    /// Returns the injected faults, in order.
    pub async fn run(&self, cluster: &Cluster, kinds: &[ChaosKind]) -> Vec<(usize, ChaosKind)> {
        assert!(!kinds.is_empty(), "chaos needs at least one kind of fault");
        let (chaos, cluster, kinds) = (self.clone(), cluster.clone(), kinds.to_vec());
        runtime::run(async move { chaos.inject_faults(&cluster, &kinds).await }).await
    }

    async fn inject_faults(
        &self,
        cluster: &Cluster,
        kinds: &[ChaosKind],
    ) -> Vec<(usize, ChaosKind)> {
        let mut rng = Rng::with_seed(self.seed);
        let members: Vec<usize> = cluster.members().iter().map(crate::Member::index).collect();
        let limit = self
            .max_faulty_members
            .unwrap_or((members.len() - 1) / 2)
            .max(1);
        let end = Instant::now() + self.duration;
        let mut active: Vec<ActiveFault> = Vec::new();
        let mut injected = Vec::new();
        while Instant::now() < end {
            if active.len() < limit {
                let is_healthy =
                    |member: &&usize| active.iter().all(|fault| fault.member != **member);
                let healthy: Vec<usize> = members.iter().filter(is_healthy).copied().collect();
                let (member, kind) = (
                    healthy[rng.usize(..healthy.len())],
                    kinds[rng.usize(..kinds.len())],
                );
                let duration = random_between(&mut rng, self.fault_duration);
                self.print_fault(end, format_args!("{kind:?} on member {member}"), duration);
                Self::inject(cluster, member, kind, &mut rng).await;
                injected.push((member, kind));
                active.push(ActiveFault {
                    member,
                    kind,
                    until: Instant::now() + duration,
                });
            }
            // At the limit, the next fault also waits for the first active one to end.
            let mut next = Instant::now() + random_between(&mut rng, self.pause_between_faults);
            if active.len() >= limit {
                next = active
                    .iter()
                    .map(|fault| fault.until)
                    .fold(end, Instant::min)
                    .max(next);
            }
            tokio::time::sleep_until(next.min(end)).await;
            let now = Instant::now();
            let (ended, remaining) = active
                .into_iter()
                .partition(|fault: &ActiveFault| fault.until <= now);
            active = remaining;
            let ended: Vec<ActiveFault> = ended;
            for fault in ended {
                recover(cluster, fault.member, &active).await;
            }
            // A restarted member that has not rejoined counts as faulty: one more fault would cost the quorum, and
            // then failing calls would not be the client's fault.
            if self.max_faulty_members.is_none() && active.is_empty() {
                cluster.wait_healthy().await;
            }
        }
        cluster.heal();
        cluster.start_all().await;
        injected
    }

    /// Prints a fault and the time since the start of the run, which ends at `end`.
    pub(crate) fn print_fault(&self, end: Instant, fault: fmt::Arguments<'_>, duration: Duration) {
        let elapsed = self.duration.saturating_sub(end - Instant::now());
        println!(
            "chaos {}, {:.1} s: {fault} for {:.1} s",
            self.name,
            elapsed.as_secs_f64(),
            duration.as_secs_f64()
        );
    }

    async fn inject(cluster: &Cluster, index: usize, kind: ChaosKind, rng: &mut Rng) {
        let member = cluster.member(index);
        match kind {
            ChaosKind::Kill => member.kill(),
            // A graceful stop may wait long for faulty peers.
            ChaosKind::Stop => {
                if timeout(STOP_TIMEOUT, member.stop()).await.is_err() {
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
                // Fails while too many other members are faulty.
                let _ = timeout(Duration::from_secs(2), cluster.move_leader(index)).await;
            }
        }
    }
}

/// A fault that has not ended yet.
struct ActiveFault {
    member: usize,
    kind: ChaosKind,
    until: Instant,
}

/// Removes all faults of one member, but not the isolation of its peers.
async fn recover(cluster: &Cluster, index: usize, active: &[ActiveFault]) {
    let member = cluster.member(index);
    member.thaw();
    member.client_link().heal();
    let isolated = |other: usize| {
        active
            .iter()
            .any(|fault| fault.member == other && fault.kind == ChaosKind::Isolate)
    };
    for other in (0..cluster.len()).filter(|other| *other != index && !isolated(*other)) {
        cluster.peer_link(index, other).heal();
        cluster.peer_link(other, index).heal();
    }
    member.start().await;
}

pub(crate) fn random_between(rng: &mut Rng, (shortest, longest): (Duration, Duration)) -> Duration {
    shortest + (longest.saturating_sub(shortest)).mul_f64(rng.f64())
}
