//! The faults of one member.

use std::time::Duration;

use testbed::{Cluster, Fault};
use tokio::time::{Instant, sleep, sleep_until};

const RESET_INTERVAL: Duration = Duration::from_millis(300);

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
}

impl MemberFault {
    pub const DURATION: Duration = Duration::from_secs(4);

    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "kill" => Self::Kill,
            "stop" => Self::Stop,
            "freeze" => Self::Freeze,
            "isolate" => Self::Isolate,
            "reset" => Self::Reset,
            _ => return None,
        })
    }

    pub fn describe(self) -> &'static str {
        match self {
            Self::Kill => "kill -9, restart",
            Self::Stop => "SIGSTOP",
            Self::Freeze => "client link frozen",
            Self::Isolate => "isolated from peers",
            Self::Reset => "reset every 300 ms",
        }
    }

    /// Injects the fault and waits for [`Self::DURATION`]. Does not remove the fault.
    pub async fn inject(self, cluster: &Cluster, index: usize) {
        let member = cluster.member(index);
        let until = Instant::now() + Self::DURATION;
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
        }
        sleep_until(until).await;
    }
}
