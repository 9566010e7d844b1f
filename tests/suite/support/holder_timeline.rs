//! Checks from the outside that the holders in several processes never worked at the same time.
//!
//! A paused process cannot give the lock up in time, but its holder does nothing during the pause. After the pause it
//! may at most finish the one step it was paused in.

use std::{collections::BTreeMap, fmt, time::Duration};

use crate::support::node_process::{EventKind, NodeEvent};

/// Times at which one holder did something.
#[derive(Debug)]
pub struct HolderLife {
    pub token: i64,
    pub actions: Vec<Duration>,
}

/// A pause of a node's process.
pub struct Pause {
    pub node: usize,
    pub start: Duration,
    pub end: Duration,
}

/// Actions of the holders, in the order of their fencing tokens.
#[derive(Debug)]
pub struct HolderTimeline {
    pub holders: usize,
    /// Descriptions of holders that acted after the next one had started, except for the one step they were paused in.
    pub overlaps: Vec<String>,
    /// Steps that were finished after a pause, although the next holder had started.
    pub finished_steps: usize,
    /// Actions that began after the deadline of the holder's lease.
    pub late_beats: usize,
}

/// Returns the actions of every holder, ordered by fencing token.
pub fn holder_lives(events_by_node: &[Vec<NodeEvent>]) -> Vec<HolderLife> {
    let actions = [EventKind::Started, EventKind::Beat, EventKind::LateBeat];
    let is_action = |event: &&NodeEvent| actions.contains(&event.kind);
    let mut lives = BTreeMap::<i64, Vec<Duration>>::new();
    for event in events_by_node.iter().flatten().filter(is_action) {
        lives.entry(event.token).or_default().push(event.at);
    }
    let life = |(token, actions)| HolderLife { token, actions };
    lives.into_iter().map(life).collect()
}

impl HolderTimeline {
    pub fn new(events_by_node: &[Vec<NodeEvent>], pauses: &[Pause]) -> Self {
        let lives = holder_lives(events_by_node);
        let (mut overlaps, mut finished_steps) = (Vec::new(), 0);
        for pair in lives.windows(2) {
            let (older, newer) = (&pair[0], &pair[1]);
            let newer_start = newer.actions[0];
            let late = older.actions.iter();
            let late: Vec<_> = late.filter_map(|at| at.checked_sub(newer_start)).collect();
            let ran_older =
                |events: &Vec<NodeEvent>| events.iter().any(|event| event.token == older.token);
            let node = events_by_node.iter().position(ran_older).unwrap();
            let paused = pauses.iter().any(|pause| {
                pause.node == node && (pause.start..=pause.end).contains(&newer_start)
            });
            if late.len() > usize::from(paused) {
                overlaps.push(format!(
                    "holder {} acted {} times after holder {} had started (paused: {paused}): {:?}",
                    older.token,
                    late.len(),
                    newer.token,
                    &late[..late.len().min(20)]
                ));
            } else {
                finished_steps += late.len();
            }
        }
        let is_late = |event: &&NodeEvent| event.kind == EventKind::LateBeat;
        Self {
            holders: lives.len(),
            overlaps,
            finished_steps,
            late_beats: events_by_node.iter().flatten().filter(is_late).count(),
        }
    }

    /// Fails if there is an overlap.
    pub fn check_one_at_a_time(&self) {
        assert!(self.overlaps.is_empty(), "{}", self.overlaps.join("\n"));
    }
}

impl fmt::Display for HolderTimeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} holders, {} overlaps, {} steps finished after a pause, {} polls after the deadline",
            self.holders,
            self.overlaps.len(),
            self.finished_steps,
            self.late_beats
        )
    }
}

#[test]
fn timeline_finds_actions_after_next_start() {
    let secs = Duration::from_secs;
    let event = |kind, at, token| NodeEvent {
        kind,
        at: secs(at),
        token,
    };
    let older = |last_beats: &[u64]| {
        let beats = last_beats.iter().map(|at| event(EventKind::Beat, *at, 7));
        [event(EventKind::Started, 1, 7)]
            .into_iter()
            .chain(beats)
            .collect::<Vec<_>>()
    };
    let newer = vec![
        event(EventKind::Started, 5, 9),
        event(EventKind::LateBeat, 6, 9),
    ];
    let pauses = [Pause {
        node: 0,
        start: secs(4),
        end: secs(8),
    }];
    let summary = |last_beats: &[u64], pauses: &[Pause]| {
        let timeline = HolderTimeline::new(&[older(last_beats), newer.clone()], pauses);
        (timeline.overlaps.len(), timeline.finished_steps)
    };
    assert_eq!(summary(&[3], &[]), (0, 0));
    assert_eq!(summary(&[3, 6], &[]), (1, 0));
    assert_eq!(summary(&[3, 8], &pauses), (0, 1), "the step of the pause");
    assert_eq!(summary(&[3, 8, 9], &pauses), (1, 0));
    let timeline = HolderTimeline::new(&[older(&[3]), newer.clone()], &[]);
    assert_eq!((timeline.holders, timeline.late_beats), (2, 1));
}
