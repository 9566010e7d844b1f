//! Merges the events of a second stream of the same watch into a cursor.
//!
//! Both streams of a hedged watch deliver complete revisions, in order and without a gap from a revision that the cursor
//! had reached when the stream was opened. So a revision is new if and only if it is above the last delivered one,
//! whichever stream sends it.

use super::{Cursor, ProgressOrder, Revisioned};

impl<E: Revisioned> Cursor<E> {
    /// Accepts complete revisions, in order, from the cursor of the other stream. Returns the events that were never
    /// delivered, or `None` if there are none.
    pub(crate) fn merge_events(&mut self, mut events: Vec<E>) -> Option<Vec<E>> {
        let repeats = events.partition_point(|event| event.mod_revision() < self.first_undelivered);
        events.drain(..repeats);
        let last = events.last()?.mod_revision();
        self.first_undelivered = last.saturating_add(1);
        self.highest_seen = self.highest_seen.max(last);
        Some(events)
    }

    /// Accepts progress that the cursor of the other stream has accepted. Returns whether it is not behind this cursor.
    pub(crate) fn merge_progress(&mut self, revision: i64, order: ProgressOrder) -> bool {
        let is_current = revision >= self.next_revision() - 1;
        if is_current {
            if order == ProgressOrder::AfterEvents {
                self.complete = revision;
            }
            self.highest_seen = self.highest_seen.max(revision);
        }
        is_current
    }

    /// Moves a cursor without a stream to the revision from which the other stream's cursor continues.
    pub(crate) fn move_to(&mut self, next_revision: i64) {
        self.stream_ended();
        self.first_undelivered = next_revision;
        self.complete = 0;
    }

    /// Creates the cursor of another stream of the same watch.
    pub(crate) fn for_other_stream(&self) -> Self {
        Self {
            cluster_id: self.cluster_id,
            ..Self::new(self.next_revision(), self.highest_seen)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{ProgressOrder::AfterEvents, *};

    impl Revisioned for (i64, usize) {
        fn mod_revision(&self) -> i64 {
            self.0
        }
    }

    type Event = (i64, usize);

    /// A server with revisions of one to three events, and the cursors of both legs.
    struct Watch {
        history: Vec<Event>,
        first: Cursor<Event>,
        second: Cursor<Event>,
        /// Next event that each member sends.
        sent: [usize; 2],
        delivered: Vec<Event>,
        progress: i64,
    }

    #[derive(Debug, Clone)]
    enum Step {
        /// A member sends a number of events, as fragments of a response if `fragment`.
        Send {
            leg: usize,
            events: usize,
            fragment: bool,
        },
        /// A member sends its progress.
        Progress { leg: usize },
        /// A leg loses its stream and resumes at the merged cursor.
        Reconnect { leg: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..2usize, 1..6usize, any::<bool>())
                .prop_map(|(leg, events, fragment)| Step::Send { leg, events, fragment }),
            1 => (0..2usize).prop_map(|leg| Step::Progress { leg }),
            1 => (0..2usize).prop_map(|leg| Step::Reconnect { leg }),
        ]
    }

    impl Watch {
        fn new(sizes: &[usize]) -> Self {
            let revisions = (1..).zip(sizes);
            let history = revisions
                .flat_map(|(revision, size)| (0..*size).map(move |number| (revision, number)))
                .collect();
            let mut first = Cursor::new(1, 0);
            first.created(0, 7);
            let mut second = first.for_other_stream();
            second.created(0, 7);
            Self {
                history,
                first,
                second,
                sent: [0, 0],
                delivered: Vec::new(),
                progress: 0,
            }
        }

        fn step(&mut self, step: &Step) {
            match *step {
                Step::Send {
                    leg,
                    events,
                    fragment,
                } => {
                    let from = self.sent[leg];
                    let mut to = (from + events).min(self.history.len());
                    // Without a fragment that follows, a response ends with a complete revision.
                    while !fragment && to > from && to < self.history.len() {
                        if self.history[to - 1].0 != self.history[to].0 {
                            break;
                        }
                        to += 1;
                    }
                    self.sent[leg] = to;
                    let events = self.history[from..to].to_vec();
                    let fragment = fragment && to < self.history.len();
                    let new = if leg == 0 {
                        self.first.events(events, fragment)
                    } else {
                        let complete = self.second.events(events, fragment);
                        complete.and_then(|events| self.first.merge_events(events))
                    };
                    self.delivered.extend(new.into_iter().flatten());
                }
                Step::Progress { leg } => {
                    let sent = self.sent[leg].checked_sub(1);
                    let revision = sent.map_or(0, |last| self.history[last].0);
                    let accepted = if leg == 0 {
                        self.first.progress(revision, AfterEvents)
                    } else {
                        self.second.progress(revision, AfterEvents)
                            && self.first.merge_progress(revision, AfterEvents)
                    };
                    if accepted {
                        assert!(revision >= self.progress, "progress is monotonic");
                        self.progress = revision;
                        let complete = self.delivered.last().map_or(0, |event| event.0);
                        assert_eq!(revision, complete, "progress overtook an event");
                    }
                }
                Step::Reconnect { leg } => {
                    let next = self.first.next_revision();
                    if leg == 0 {
                        self.first.stream_ended();
                        self.first.created(next - 1, 7);
                    } else {
                        self.second.move_to(next);
                        self.second.created(next - 1, 7);
                    }
                    self.sent[leg] = self.history.partition_point(|event| event.0 < next);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn two_legs_deliver_each_revision_once_in_order(
            sizes in prop::collection::vec(1..4usize, 1..30),
            steps in prop::collection::vec(step(), 1..60),
        ) {
            let mut watch = Watch::new(&sizes);
            for step in &steps {
                watch.step(step);
                prop_assert_eq!(&watch.delivered[..], &watch.history[..watch.delivered.len()]);
                let (last, rest) = (watch.delivered.last(), &watch.history[watch.delivered.len()..]);
                let split = last.zip(rest.first()).is_some_and(|(last, next)| last.0 == next.0);
                prop_assert!(!split, "a revision was delivered in parts");
            }
            let all = Step::Send { leg: 1, events: usize::MAX / 2, fragment: false };
            watch.step(&Step::Reconnect { leg: 1 });
            watch.step(&all);
            prop_assert_eq!(watch.delivered, watch.history);
        }
    }

    #[test]
    fn merged_revision_replaces_held_fragments() {
        let mut cursor: Cursor<Event> = Cursor::new(1, 0);
        cursor.created(0, 7);
        assert_eq!(cursor.events(vec![(1, 0)], true), None);
        assert_eq!(
            cursor.merge_events(vec![(1, 0), (1, 1)]),
            Some(vec![(1, 0), (1, 1)])
        );
        assert_eq!(
            cursor.events(vec![(1, 1), (2, 0)], false),
            Some(vec![(2, 0)])
        );
    }

    #[test]
    fn progress_of_lagging_leg_is_ignored() {
        let mut cursor: Cursor<Event> = Cursor::new(1, 0);
        cursor.created(0, 7);
        cursor.events(vec![(5, 0)], false);
        assert!(!cursor.merge_progress(4, AfterEvents));
        assert!(cursor.merge_progress(5, AfterEvents) && cursor.merge_progress(9, AfterEvents));
        assert_eq!((cursor.next_revision(), cursor.highest_seen()), (10, 9));
    }

    #[test]
    fn progress_hides_no_event_of_other_leg() {
        let mut cursor: Cursor<Event> = Cursor::new(1, 0);
        cursor.created(0, 7);
        assert!(cursor.merge_progress(5, AfterEvents));
        assert_eq!(cursor.events(vec![(4, 0)], false), Some(vec![(4, 0)]));
        assert_eq!(cursor.merge_events(vec![(4, 0)]), None);
        assert_eq!(cursor.merge_events(vec![(5, 0)]), Some(vec![(5, 0)]));
        assert_eq!(cursor.next_revision(), 6);
    }
}
