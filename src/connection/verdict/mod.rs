//! What a probe's answer says of a member. Pure: times are part of what was seen.

use std::time::Duration;

use tokio::time::Instant;

/// A member that lacks what others committed that long ago, and does not move, is cut off from them. Longer than
/// several heartbeats: a follower learns of a commit with the next one.
pub(crate) const STALLED_AFTER: Duration = Duration::from_millis(500);

/// How long a member that was away waits for others to say what it may have missed.
const WITNESS_PATIENCE: Duration = Duration::from_millis(600);

/// What a member said of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub(crate) at: Instant,
    pub(crate) cluster: u64,
    pub(crate) member: u64,
    pub(crate) leader: u64,
    pub(crate) term: u64,
    /// The index up to which the member knows entries to be committed.
    pub(crate) index: u64,
    pub(crate) learner: bool,
}

/// Whether a member can be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It answers and is not known to be cut off.
    Fine,
    /// It says itself that it has no leader.
    NoLeader,
    /// It answers, but others have moved on without it.
    CutOff,
    /// It was away, answers again, and has not shown yet that it has what happened meanwhile.
    Returning,
    /// It takes no part in the quorum and serves only serializable reads.
    Learner,
    /// It said that it does not serve now (health service).
    NotServing,
    /// It does not answer.
    Unresponsive,
    /// The connection ended.
    Closed,
}

impl Verdict {
    /// Whether requests that need the cluster's consent can be sent to it.
    pub(crate) fn is_fine(self) -> bool {
        self == Self::Fine
    }

    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Fine => "it answers",
            Self::NoLeader => "it has no leader",
            Self::CutOff => "it is cut off: other members have moved on without it",
            Self::Returning => "it was away and has not shown yet that it has caught up",
            Self::Learner => "it is a learner and serves serializable reads only",
            Self::NotServing => "it reports that it is not serving now",
            Self::Unresponsive => "it does not answer",
            Self::Closed => "its connection ended",
        }
    }
}

/// The newest known state of a member behind a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Health {
    pub(crate) verdict: Verdict,
    pub(crate) sighting: Option<Sighting>,
}

/// Follows whether a member moves while others do.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// What it showed last, and since when it shows that.
    shows: Option<Sighting>,
    /// Since when others are known to be ahead of it while it stands still.
    behind_since: Option<Instant>,
    /// It was away, and has not shown yet that it missed nothing.
    returning: Option<Returning>,
}

/// A member that was away. A frozen one wakes with what had still reached its machine, and believes in its leader for a
/// while: what it has to catch up with is what the others have since it is back.
#[derive(Debug)]
struct Returning {
    since: Instant,
    /// How far the others were when they were first heard of since then.
    missed: Option<Reach>,
}

type Reach = (u64, u64);

impl Returning {
    /// Whether there is nothing more to wait for.
    fn is_over(&mut self, now: &Sighting, witnesses: &[Sighting], others_serve: bool) -> bool {
        let fresh = witnesses.iter().filter(|other| other.at >= self.since);
        self.missed = self.missed.or(fresh.map(Sighting::reach).max());
        if let Some(missed) = self.missed {
            return now.reach() >= missed;
        }
        let waited_in_vain = self.since + WITNESS_PATIENCE <= now.at;
        waited_in_vain || witnesses.is_empty() || !others_serve
    }
}

/// What is known of the other members.
#[derive(Debug, Default)]
pub(crate) struct Others {
    /// What each said last.
    pub(crate) sightings: Vec<Sighting>,
    /// Whether one of them serves now, and can tell what happens.
    pub(crate) serve: bool,
}

impl Progress {
    /// Of a member that was away until now.
    pub(crate) fn returning(now: Instant) -> Self {
        Self {
            returning: Some(Returning {
                since: now,
                missed: None,
            }),
            ..Self::default()
        }
    }

    /// Whether it was away and has not caught up.
    pub(crate) fn is_returning(&self) -> bool {
        self.returning.is_some()
    }

    /// The member answers, but may not tell how far it is: there is nothing to wait for.
    pub(crate) fn untold(&mut self) {
        self.returning = None;
    }

    /// Judges a new look at the member by what it showed before and by what others show.
    pub(crate) fn look(&mut self, now: &Sighting, others: Others) -> Verdict {
        let shown = self.shows.filter(|shown| shown.reach() == now.reach());
        // On the first look nobody knows for how long it has stood still: what it lacks counts.
        let since = match (shown, self.shows) {
            (Some(shown), _) => Some(shown.at),
            (None, Some(_)) => Some(now.at),
            (None, None) => None,
        };
        self.shows = shown.or(Some(*now));
        let witnesses: Vec<_> = others
            .sightings
            .into_iter()
            .filter(|other| other.cluster == now.cluster && other.member != now.member)
            .filter(|other| other.leader != 0)
            .collect();
        let ahead = witnesses
            .iter()
            .filter(|other| other.reach() > now.reach())
            .map(|other| other.at)
            .min();
        self.behind_since = ahead.map(|ahead| match self.behind_since {
            Some(known) if shown.is_some() => known,
            _ => since.map_or(ahead, |since| ahead.max(since)),
        });
        if now.learner {
            return Verdict::Learner;
        }
        if now.leader == 0 {
            return Verdict::NoLeader;
        }
        let stalled = |behind: Instant| behind + STALLED_AFTER <= now.at;
        if self.behind_since.is_some_and(stalled) {
            return Verdict::CutOff;
        }
        let returns = |returning: &mut Returning| !returning.is_over(now, &witnesses, others.serve);
        if self.returning.as_mut().is_some_and(returns) {
            return Verdict::Returning;
        }
        self.returning = None;
        Verdict::Fine
    }
}

impl Sighting {
    /// How far the member knows the cluster's history.
    fn reach(&self) -> Reach {
        (self.term, self.index)
    }
}

/// Whether a write that waits since it was sent under `sent_term` can still be answered: a leader that changed in
/// between has lost it silently, and the member answers only after its own time-out.
pub(crate) fn leader_changed(
    sent_term: Option<u64>,
    first_look: Option<&Sighting>,
    now: &Sighting,
) -> bool {
    match (sent_term, first_look) {
        (Some(term), _) => now.leader != 0 && now.term > term,
        (None, Some(first)) => {
            now.leader != 0 && (now.term > first.term || now.leader != first.leader)
        }
        (None, None) => false,
    }
}

#[cfg(test)]
mod tests;
