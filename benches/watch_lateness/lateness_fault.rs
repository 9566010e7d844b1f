//! The faults that delay events.

use std::time::Duration;

use testbed::{Cluster, Fault};
use tokio::time::sleep;

use crate::member_fault::MemberFault;

const LINK_DELAY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatenessFault {
    Member(MemberFault),
    /// Bytes between the member and its clients are delayed.
    Slow,
}

impl LatenessFault {
    pub fn parse(name: &str) -> Self {
        if name == "slow" {
            return Self::Slow;
        }
        let fault = MemberFault::parse(name).unwrap_or_else(|| {
            panic!(
                "unknown fault {name}: set LATENESS_FAULTS to kill, stop, freeze, isolate, reset, slow"
            )
        });
        Self::Member(fault)
    }

    pub fn describe(self) -> &'static str {
        match self {
            Self::Member(fault) => fault.describe(),
            Self::Slow => "client link delayed by 1 s",
        }
    }

    /// Returns whether only a probe shows that a member with an idle stream has this fault.
    pub fn is_silent(self) -> bool {
        matches!(
            self,
            Self::Member(MemberFault::Stop | MemberFault::Freeze | MemberFault::Isolate)
        )
    }

    /// Injects the fault and removes it.
    pub async fn inject(self, cluster: &Cluster, index: usize) {
        match self {
            Self::Member(fault) => fault.inject(cluster, index).await,
            Self::Slow => {
                let member = cluster.member(index);
                member.client_link().set(Fault::Delay(LINK_DELAY));
                sleep(MemberFault::DURATION).await;
            }
        }
        cluster.heal();
        cluster.start_all().await;
    }
}
