//! The faults, their durations, and the bounds that the client must keep during each.

use std::time::Duration;

use testbed::{Cluster, Fault as LinkFault};
use tokio::time::{Instant, sleep, sleep_until};

const FAULT_DURATION: Duration = Duration::from_secs(4);
const DOWN_DURATION: Duration = Duration::from_secs(5);
const PAUSE_AFTER_FAULT: Duration = Duration::from_secs(2);
const RESET_INTERVAL: Duration = Duration::from_millis(300);

/// Fault of one member, or of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterFault {
    /// SIGKILL; restarted at the end.
    Kill,
    /// SIGSTOP; SIGCONT at the end.
    Stop,
    /// No bytes are transferred between the member and its clients; connections stay open.
    Freeze,
    /// No bytes are transferred between the member and its peers; clients still reach it.
    Isolate,
    /// Client connections are reset repeatedly.
    Reset,
    /// All members are killed and restarted at the end.
    Down,
}

impl ClusterFault {
    pub fn parse(name: &str) -> Self {
        match name {
            "kill" => Self::Kill,
            "stop" => Self::Stop,
            "freeze" => Self::Freeze,
            "isolate" => Self::Isolate,
            "reset" => Self::Reset,
            "down" => Self::Down,
            _ => panic!(
                "unknown fault {name}: set FAILOVER_FAULTS to kill, stop, freeze, isolate, reset, down"
            ),
        }
    }

    pub fn describe(self) -> &'static str {
        match self {
            Self::Kill => "kill -9, restart",
            Self::Stop => "SIGSTOP",
            Self::Freeze => "client link frozen",
            Self::Isolate => "isolated from peers",
            Self::Reset => "reset every 300 ms",
            Self::Down => "all down for 5 s",
        }
    }

    /// Bound of the excess: the longest allowed gap between successes beyond that of the baseline, in seconds.
    pub fn max_excess_secs(self) -> f64 {
        match self {
            Self::Kill | Self::Stop | Self::Freeze => 1.0,
            Self::Isolate => 2.0,
            Self::Reset => 0.1,
            Self::Down => 0.3,
        }
    }

    /// Returns whether a write may fail with this error kind and outcome.
    pub fn allows_write_error(self, kind: &str, outcome: &str) -> bool {
        match self {
            Self::Kill | Self::Stop | Self::Freeze | Self::Isolate => true,
            Self::Reset => outcome == "unknown",
            Self::Down => {
                outcome == "unknown" || matches!(kind, "DeadlineExceeded" | "Unavailable")
            }
        }
    }

    /// Bound of the calls per caller that take longer than the baseline, if there is one. A member that accepts
    /// connections without responding may delay one call per caller, not every third call during the fault.
    pub fn max_slow_calls(self) -> Option<usize> {
        match self {
            Self::Stop | Self::Freeze => Some(1),
            Self::Kill | Self::Isolate | Self::Reset | Self::Down => None,
        }
    }

    pub fn affects_all_members(self) -> bool {
        self == Self::Down
    }

    /// Injects the fault, removes it, and waits until the cluster is healthy.
    pub async fn inject(self, cluster: &Cluster, index: usize) {
        let member = cluster.member(index);
        let until = Instant::now()
            + if self == Self::Down {
                DOWN_DURATION
            } else {
                FAULT_DURATION
            };
        match self {
            Self::Kill => member.kill(),
            Self::Stop => member.freeze(),
            Self::Freeze => member.client_link().set(LinkFault::Freeze),
            Self::Isolate => cluster.isolate(index),
            Self::Reset => {
                while Instant::now() < until {
                    member.client_link().reset_now();
                    sleep(RESET_INTERVAL).await;
                }
            }
            Self::Down => cluster.members().iter().for_each(testbed::Member::kill),
        }
        sleep_until(until).await;
        let next = Instant::now() + PAUSE_AFTER_FAULT;
        cluster.heal();
        cluster.start_all().await;
        sleep_until(next).await;
    }
}
