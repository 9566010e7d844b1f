//! Decides from probe results whether a member can be used. Pure: every status contains the time of its receipt.
//!
//! A member that was cut off from the others, or frozen, keeps responding and still trusts its old leader for a while.
//! So the raft position (term and commit index) of a member is compared with the positions of the other members.

use std::time::Duration;

use tokio::time::Instant;

use super::server_version::ServerVersion;

/// Time for which a member may lack entries that other members have committed. Several heartbeats long, because a
/// follower learns of a commit with the next heartbeat.
pub(super) const STALLED_AFTER: Duration = Duration::from_millis(500);

/// Time for which a member that was unreachable waits for the status of another member to compare with.
const COMPARISON_TIMEOUT: Duration = Duration::from_millis(600);

/// A member's response to a `Status` request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RaftStatus {
    /// Time at which the response was received.
    pub(crate) at: Instant,
    /// Time at which the request was sent.
    pub(crate) requested_at: Instant,
    pub(crate) cluster: u64,
    pub(crate) member: u64,
    /// Member id of the leader, or zero if the member has none.
    pub(crate) leader: u64,
    pub(crate) term: u64,
    /// Commit index of the member.
    pub(crate) index: u64,
    pub(crate) learner: bool,
    /// Current revision of the member's store, or zero if the member did not report it.
    pub(crate) revision: i64,
    /// `None` if the member sent no version that can be parsed.
    pub(crate) version: Option<ServerVersion>,
}

impl RaftStatus {
    fn position(&self) -> RaftPosition {
        (self.term, self.index)
    }

    /// Returns whether the member was the leader.
    pub(crate) fn is_leader(&self) -> bool {
        self.leader != 0 && self.leader == self.member
    }
}

/// Term and commit index. A member with a greater position has more of the cluster's history.
type RaftPosition = (u64, u64);

/// Whether a member can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It responds, has a leader and is not known to be cut off.
    Fine,
    /// It reports that it has no leader.
    NoLeader,
    /// It responds, but other members have committed entries that it does not receive.
    CutOff,
    /// It was unreachable and has not yet received what the others committed in the meantime.
    Returning,
    /// It is a learner, which does not vote and serves serializable reads only.
    Learner,
    /// Its health service reports that it is not serving.
    NotServing,
    /// It sends data, but no response to probes.
    Late,
    /// A proxy responds with errors, or requests on the connection are reset.
    Unreachable,
    /// It does not respond.
    Unresponsive,
    /// Its connection was closed.
    Closed,
}

impl Verdict {
    /// Returns whether the member receives all requests.
    pub(crate) fn is_fine(self) -> bool {
        self == Self::Fine
    }

    /// Returns whether another connection to the same endpoint may be better: behind a load balancer it may lead to
    /// another member.
    pub(super) fn calls_for_replacement(self) -> bool {
        match self {
            Self::NoLeader
            | Self::CutOff
            | Self::Learner
            | Self::NotServing
            | Self::Late
            | Self::Unreachable => true,
            Self::Fine | Self::Returning | Self::Unresponsive | Self::Closed => false,
        }
    }

    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Fine => "the member responds",
            Self::NoLeader => "the member has no leader",
            Self::CutOff => {
                "the member is cut off: it does not receive what other members have committed"
            }
            Self::Returning => "the member was unreachable and has not caught up yet",
            Self::Learner => "the member is a learner and serves serializable reads only",
            Self::NotServing => "the member reports that it is not serving",
            Self::Late => "the member sends data but does not respond to probes",
            Self::Unreachable => "requests to the member fail",
            Self::Unresponsive => "the member does not respond",
            Self::Closed => "the connection was closed",
        }
    }
}

/// Last known health of the member behind a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemberHealth {
    pub(crate) verdict: Verdict,
    /// Last status the member sent, if it sent one.
    pub(crate) status: Option<RaftStatus>,
    /// The status before the last one. Members are probed together, so the last status of another member may be as new
    /// as the status that is compared with it, and cannot show for how long that member has been ahead.
    pub(super) earlier_status: Option<RaftStatus>,
}

impl MemberHealth {
    pub(crate) fn new(verdict: Verdict, status: Option<RaftStatus>) -> Self {
        Self {
            verdict,
            status,
            earlier_status: None,
        }
    }

    /// Returns the health after a new verdict, and a new status if the member sent one.
    pub(super) fn updated(&self, verdict: Verdict, status: Option<RaftStatus>) -> Self {
        match status {
            Some(_) => Self {
                verdict,
                status,
                earlier_status: self.status,
            },
            None => Self {
                verdict,
                ..self.clone()
            },
        }
    }

    /// Returns the last two statuses of the member.
    pub(crate) fn statuses(&self) -> impl Iterator<Item = RaftStatus> + use<> {
        self.status.into_iter().chain(self.earlier_status)
    }
}

/// The client's other members, for comparison.
#[derive(Debug, Default)]
pub(crate) struct OtherMembers {
    /// Last two statuses of each.
    pub(crate) statuses: Vec<RaftStatus>,
    /// Whether at least one of them is ready.
    pub(crate) any_ready: bool,
}

/// Follows the raft position of one member.
#[derive(Debug, Default)]
pub(super) struct ProgressTracker {
    /// First status with the member's current position.
    current: Option<RaftStatus>,
    /// Time since which the member lacks entries of other members and has not moved.
    behind_since: Option<Instant>,
    /// Present until a member that was unreachable has caught up.
    catch_up: Option<CatchUp>,
}

impl ProgressTracker {
    /// Follows a member that was unreachable until now.
    pub(super) fn after_outage(now: Instant) -> Self {
        Self {
            catch_up: Some(CatchUp {
                since: now,
                target: None,
            }),
            ..Self::default()
        }
    }

    /// Returns whether the member was unreachable and has not caught up yet.
    pub(super) fn is_catching_up(&self) -> bool {
        self.catch_up.is_some()
    }

    /// Stops waiting for the member to catch up: it responds, but its status cannot be read.
    pub(super) fn status_unavailable(&mut self) {
        self.catch_up = None;
    }

    /// Returns the verdict for a new status, given the earlier ones and the status of other members.
    pub(super) fn evaluate(&mut self, status: &RaftStatus, others: OtherMembers) -> Verdict {
        let others_ready = others.any_ready;
        let others = comparable(status, others.statuses);
        self.update_position(status, &others);
        if status.learner {
            return Verdict::Learner;
        }
        if status.leader == 0 {
            return Verdict::NoLeader;
        }
        // The response may have been on its way for long, so it shows the position at the time of the request.
        let stalled = |behind: Instant| behind + STALLED_AFTER <= status.requested_at;
        if self.behind_since.is_some_and(stalled) {
            return Verdict::CutOff;
        }
        if let Some(catch_up) = &mut self.catch_up
            && !catch_up.is_complete(status, &others, others_ready)
        {
            return Verdict::Returning;
        }
        self.catch_up = None;
        Verdict::Fine
    }

    fn update_position(&mut self, status: &RaftStatus, others: &[RaftStatus]) {
        let unmoved = self
            .current
            .filter(|current| current.position() == status.position());
        // Before the first status it is unknown how long the member has been at its position.
        let at_position_since = match (unmoved, self.current) {
            (Some(first), _) => Some(first.at),
            (None, Some(_)) => Some(status.at),
            (None, None) => None,
        };
        self.current = unmoved.or(Some(*status));
        let others_ahead_since = others
            .iter()
            .filter(|other| other.position() > status.position())
            .map(|other| other.at)
            .min();
        self.behind_since = others_ahead_since.map(|ahead| match self.behind_since {
            Some(known) if unmoved.is_some() => known,
            _ => at_position_since.map_or(ahead, |since| ahead.max(since)),
        });
    }
}

/// Returns the members with which this one can be compared: those of the same cluster that have a leader.
fn comparable(status: &RaftStatus, others: Vec<RaftStatus>) -> Vec<RaftStatus> {
    others
        .into_iter()
        .filter(|other| other.cluster == status.cluster && other.member != status.member)
        .filter(|other| other.leader != 0)
        .collect()
}

/// A member that was unreachable. After a freeze it first processes messages from before the freeze and still trusts
/// its old leader, so it has to reach a position that another member had after the outage.
#[derive(Debug)]
struct CatchUp {
    since: Instant,
    /// Position of the most advanced other member when one first responded after `since`.
    target: Option<RaftPosition>,
}

impl CatchUp {
    /// Returns whether the member has reached its target, or there is no other member to compare with.
    fn is_complete(
        &mut self,
        status: &RaftStatus,
        others: &[RaftStatus],
        others_ready: bool,
    ) -> bool {
        let after_outage = others.iter().filter(|other| other.at >= self.since);
        self.target = self
            .target
            .or_else(|| after_outage.map(RaftStatus::position).max());
        if let Some(target) = self.target {
            return status.position() >= target;
        }
        let timed_out = self.since + COMPARISON_TIMEOUT <= status.at;
        timed_out || others.is_empty() || !others_ready
    }
}

#[cfg(test)]
mod tests;
