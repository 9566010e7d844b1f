//! The faults of one member.

use std::time::Duration;

use testbed::{Cluster, Fault};
use tokio::time::{Instant, sleep, sleep_until};

const FAULT_DURATION: Duration = Duration::from_secs(4);
const RESET_INTERVAL: Duration = Duration::from_millis(300);
const LINK_DELAY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberFault {
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
    /// Bytes between the member and its clients are delayed.
    Slow,
}

impl MemberFault {
    pub fn parse(name: &str) -> Self {
        match name {
            "kill" => Self::Kill,
            "stop" => Self::Stop,
            "freeze" => Self::Freeze,
            "isolate" => Self::Isolate,
            "reset" => Self::Reset,
            "slow" => Self::Slow,
            _ => panic!(
                "unknown fault {name}: set LATENESS_FAULTS to kill, stop, freeze, isolate, reset, slow"
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
            Self::Slow => "client link delayed by 1 s",
        }
    }

    /// Returns whether only a probe shows that a member with an idle stream has this fault.
    pub fn is_silent(self) -> bool {
        matches!(self, Self::Stop | Self::Freeze | Self::Isolate)
    }

    /// Injects the fault and removes it.
    pub async fn inject(self, cluster: &Cluster, index: usize) {
        let member = cluster.member(index);
        let until = Instant::now() + FAULT_DURATION;
        match self {
            Self::Kill => member.kill(),
            Self::Stop => member.freeze(),
            Self::Freeze => member.client_link().set(Fault::Freeze),
            Self::Isolate => cluster.isolate(index),
            Self::Reset => {
                while Instant::now() < until {
                    member.client_link().reset_now();
                    sleep(RESET_INTERVAL).await;
                }
            }
            Self::Slow => member.client_link().set(Fault::Delay(LINK_DELAY)),
        }
        sleep_until(until).await;
        cluster.heal();
        cluster.start_all().await;
    }
}
