//! The faults, their durations, and the bounds that the client must keep during each.

use std::time::Duration;

use testbed::Cluster;
use tokio::time::{Instant, sleep, sleep_until};

use crate::member_fault::MemberFault;

const DOWN_DURATION: Duration = Duration::from_secs(5);
const PAUSE_AFTER_FAULT: Duration = Duration::from_secs(2);

/// Fault of one member, or of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterFault {
    Member(MemberFault),
    /// All members are killed and restarted at the end.
    Down,
}

impl ClusterFault {
    pub fn parse(name: &str) -> Self {
        if name == "down" {
            return Self::Down;
        }
        let fault = MemberFault::parse(name).unwrap_or_else(|| {
            panic!(
                "unknown fault {name}: set FAILOVER_FAULTS to kill, stop, freeze, isolate, reset, down"
            )
        });
        Self::Member(fault)
    }

    pub fn describe(self) -> &'static str {
        match self {
            Self::Member(fault) => fault.describe(),
            Self::Down => "all down for 5 s",
        }
    }

    /// Bound of the excess: the longest allowed gap between successes beyond that of the baseline, in seconds.
    pub fn max_excess_secs(self) -> f64 {
        match self {
            Self::Member(MemberFault::Kill | MemberFault::Stop | MemberFault::Freeze) => 1.0,
            Self::Member(MemberFault::Isolate) => 2.0,
            Self::Member(MemberFault::Reset) => 0.1,
            Self::Down => 0.3,
        }
    }

    /// Returns whether a write may fail with this error kind and outcome.
    pub fn allows_write_error(self, kind: &str, outcome: &str) -> bool {
        match self {
            Self::Member(MemberFault::Reset) => outcome == "unknown",
            Self::Member(
                MemberFault::Kill | MemberFault::Stop | MemberFault::Freeze | MemberFault::Isolate,
            ) => true,
            Self::Down => {
                outcome == "unknown" || matches!(kind, "DeadlineExceeded" | "Unavailable")
            }
        }
    }

    /// Bound of the calls per caller that take longer than the baseline, if there is one. A member that accepts
    /// connections without responding may delay one call per caller, not every third call during the fault.
    pub fn max_slow_calls(self) -> Option<usize> {
        match self {
            Self::Member(MemberFault::Stop | MemberFault::Freeze) => Some(1),
            Self::Member(MemberFault::Kill | MemberFault::Isolate | MemberFault::Reset)
            | Self::Down => None,
        }
    }

    pub fn affects_all_members(self) -> bool {
        self == Self::Down
    }

    /// Injects the fault, removes it, and waits until the cluster is healthy.
    pub async fn inject(self, cluster: &Cluster, index: usize) {
        match self {
            Self::Member(fault) => fault.inject(cluster, index).await,
            Self::Down => {
                cluster.members().iter().for_each(testbed::Member::kill);
                sleep(DOWN_DURATION).await;
            }
        }
        let next = Instant::now() + PAUSE_AFTER_FAULT;
        cluster.heal();
        cluster.start_all().await;
        sleep_until(next).await;
    }
}
