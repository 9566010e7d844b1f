//! What is done to a member, and for how long.

use std::time::Duration;

use testbed::{Cluster, Fault as LinkFault};
use tokio::time::{Instant, sleep, sleep_until};

const LASTS: Duration = Duration::from_secs(4);
const DOWN: Duration = Duration::from_secs(5);
const BETWEEN: Duration = Duration::from_secs(2);
const RESET_EVERY: Duration = Duration::from_millis(300);

/// A way to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// kill -9, started again at the end.
    Kill,
    /// SIGSTOP, SIGCONT at the end.
    Stop,
    /// No byte moves between the member and its clients; TCP stays up.
    Freeze,
    /// No byte moves between the member and its peers; clients reach it.
    Isolate,
    /// The connections of its clients are reset again and again.
    Reset,
    /// All members are killed, and started again.
    Down,
}

impl Fault {
    pub fn named(name: &str) -> Self {
        match name {
            "kill" => Self::Kill,
            "stop" => Self::Stop,
            "freeze" => Self::Freeze,
            "isolate" => Self::Isolate,
            "reset" => Self::Reset,
            "down" => Self::Down,
            _ => panic!("FAILOVER_FAULTS={name}: kill, stop, freeze, isolate, reset, down"),
        }
    }

    pub fn describe(self) -> &'static str {
        match self {
            Self::Kill => "kill -9, restart",
            Self::Stop => "SIGSTOP",
            Self::Freeze => "client link frozen",
            Self::Isolate => "cut off from peers",
            Self::Reset => "reset every 300 ms",
            Self::Down => "all down for 5 s",
        }
    }

    /// How much longer than the ideal nothing may succeed, in seconds.
    pub fn excess(self) -> f64 {
        match self {
            Self::Kill | Self::Stop | Self::Freeze => 1.0,
            Self::Isolate => 2.0,
            Self::Reset => 0.1,
            Self::Down => 0.3,
        }
    }

    /// Whether a write may fail like this.
    pub fn excuses(self, kind: &str, outcome: &str) -> bool {
        match self {
            Self::Kill | Self::Stop | Self::Freeze | Self::Isolate => true,
            Self::Reset => outcome == "unknown",
            Self::Down => {
                outcome == "unknown" || matches!(kind, "DeadlineExceeded" | "Unavailable")
            }
        }
    }

    /// How many calls a caller may have that wait for longer than a client would that always knows who serves, where
    /// that is promised: a member that is there and silent costs one call, not one in three for as long as it lasts.
    pub fn slow_calls(self) -> Option<usize> {
        match self {
            Self::Stop | Self::Freeze => Some(1),
            Self::Kill | Self::Isolate | Self::Reset | Self::Down => None,
        }
    }

    pub fn is_for_all(self) -> bool {
        self == Self::Down
    }

    /// Makes it so, undoes it, and waits for the cluster to be well again.
    pub async fn work(self, cluster: &Cluster, index: usize) {
        let member = cluster.member(index);
        let until = Instant::now() + if self == Self::Down { DOWN } else { LASTS };
        match self {
            Self::Kill => member.kill(),
            Self::Stop => member.freeze(),
            Self::Freeze => member.client_link().set(LinkFault::Freeze),
            Self::Isolate => cluster.isolate(index),
            Self::Reset => {
                while Instant::now() < until {
                    member.client_link().reset_now();
                    sleep(RESET_EVERY).await;
                }
            }
            Self::Down => cluster.members().iter().for_each(testbed::Member::kill),
        }
        sleep_until(until).await;
        let next = Instant::now() + BETWEEN;
        cluster.heal();
        cluster.start_all().await;
        sleep_until(next).await;
    }
}
