//! The cursor of one logical watch: what of a stream is new and complete, and where to resume.
//!
//! Three sources say how far a watch has come, and only two are believed. Delivered events are
//! (their `mod_revision`), and progress is, if it can't have overtaken events. The header of an event
//! batch is not: while a watcher catches up it carries the member's *current* revision, and after a
//! congestion on the server an older one than the batch before. So batches come in without it.
//!
//! A revision is delivered whole or not at all. Only the last revision of a fragment can go on in the
//! next one; it alone is held back, so a fragmented replay of any length costs the memory of one
//! revision. A stream that ends between two fragments drops what is held: the cursor still points at
//! that revision, and the next stream sends it from its first event.

/// Something that happened at a revision.
pub(crate) trait Revisioned {
    /// The revision of the change; 0 or less is not a change and is dropped.
    fn mod_revision(&self) -> i64;
}

/// Events in order, every revision among them complete. Never empty.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Batch<E> {
    events: Vec<E>,
}

impl<E: Revisioned> Batch<E> {
    /// The events, in the order of their revisions.
    #[cfg(test)]
    pub(crate) fn events(&self) -> &[E] {
        &self.events
    }

    pub(crate) fn into_events(self) -> Vec<E> {
        self.events
    }

    /// The events of each revision, without moving them.
    #[cfg(test)]
    pub(crate) fn revisions(&self) -> impl Iterator<Item = (i64, &[E])> {
        self.events
            .chunk_by(|a, b| a.mod_revision() == b.mod_revision())
            .map(|events| (events[0].mod_revision(), events))
    }
}

/// What the answer to a create says of the member behind the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attached {
    /// The stream goes on where the last one ended.
    InStep,
    /// The member has not reached what this watch has seen. A follower that lags does so for a moment,
    /// a member restored from a backup for good; events will flow once it has passed `seen`.
    RevisionRegressed { seen: i64, told: i64 },
    /// Another cluster: its revisions mean nothing here. The stream is not listened to.
    ClusterChanged { was: u64, is: u64 },
}

/// The position of one logical watch. It outlives streams and restarts of its actor.
///
/// [`Cursor::next_revision`] moves when a batch is returned, so what was returned has to reach the
/// consumer, or the buffer before it, even if the stream ends.
#[derive(Debug)]
pub(crate) struct Cursor<E> {
    /// The first revision not delivered yet; 0 until a watch "from now" was first created.
    next: i64,
    /// The highest revision any member has shown this watch.
    seen: i64,
    /// 0: not known yet.
    cluster: u64,
    /// Created was received on the current stream.
    attached: bool,
    /// More fragments of the same response follow.
    joining: bool,
    /// Events of the one revision that may go on in the next fragment.
    held: Vec<E>,
}

impl<E: Revisioned> Cursor<E> {
    /// A cursor before `start_revision`; 0 (or less, which etcd refuses) means from now on.
    pub(crate) fn new(start_revision: i64) -> Self {
        Self {
            next: start_revision.max(0),
            seen: 0,
            cluster: 0,
            attached: false,
            joining: false,
            held: Vec::new(),
        }
    }

    /// The start revision for the next create; 0 means from now on.
    pub(crate) fn next_revision(&self) -> i64 {
        self.next
    }

    /// Whether events of the current stream are listened to.
    #[cfg(test)]
    pub(crate) fn is_attached(&self) -> bool {
        self.attached
    }

    /// Events held back because their revision may go on in the next fragment.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// The server has created the watch on the current stream. The first answer to a watch from now on
    /// fixes where "now" was: etcd may still send an event of that very revision, which happened
    /// while the watch was being created, and dropping it keeps the start the same on every resume.
    pub(crate) fn created(&mut self, revision: i64, cluster_id: u64) -> Attached {
        if self.cluster != 0 && cluster_id != 0 && cluster_id != self.cluster {
            self.broken();
            return Attached::ClusterChanged {
                was: self.cluster,
                is: cluster_id,
            };
        }
        if cluster_id != 0 {
            self.cluster = cluster_id;
        }
        if self.next == 0 {
            self.next = revision + 1;
        }
        self.attached = true;
        let seen = self.seen;
        self.seen = seen.max(revision);
        if revision < seen {
            return Attached::RevisionRegressed {
                seen,
                told: revision,
            };
        }
        Attached::InStep
    }

    /// Events arrived; `fragment` says that more of the same response follow. Gives what is now
    /// complete and was never delivered. A clean batch passes through without a copy.
    pub(crate) fn events(&mut self, events: Vec<E>, fragment: bool) -> Option<Batch<E>> {
        if !self.attached {
            return None;
        }
        self.joining = fragment;
        let mut events = if self.held.is_empty() {
            events
        } else {
            let mut joined = std::mem::take(&mut self.held);
            joined.extend(events);
            joined
        };
        // etcd sends them in order; a server that does not must still not make us lose one.
        if !events.is_sorted_by_key(E::mod_revision) {
            events.sort_by_key(E::mod_revision);
        }
        // Delivered revisions were complete, so whatever is below the cursor is a repeat.
        let first_wanted = self.next.max(1);
        if events
            .first()
            .is_some_and(|event| event.mod_revision() < first_wanted)
        {
            let repeats = events.partition_point(|event| event.mod_revision() < first_wanted);
            events.drain(..repeats);
        }
        if fragment && let Some(open) = events.last().map(E::mod_revision) {
            let complete = events.partition_point(|event| event.mod_revision() < open);
            if complete == 0 {
                self.held = events;
                return None;
            }
            self.held = events.split_off(complete);
        }
        let last = events.last()?.mod_revision();
        self.next = last.saturating_add(1);
        self.seen = self.seen.max(last);
        Some(Batch { events })
    }

    /// The server says that everything up to `revision` has been sent; gives the revision if that can
    /// be believed. It can't while a revision is being joined, before the watch was created on this
    /// stream, or if it is behind the cursor: a watch of the future, or a message that was overtaken on
    /// the server, where progress and created take different queues. For a broadcast (watch id −1),
    /// [`super::creates::Creates`] first decides whether it is about this watch at all.
    pub(crate) fn progress(&mut self, revision: i64) -> Option<i64> {
        if !self.attached || self.joining || revision < self.next - 1 {
            return None;
        }
        self.next = revision.saturating_add(1);
        self.seen = self.seen.max(revision);
        Some(revision)
    }

    /// The consumer was given the whole range as it was at `revision`.
    pub(crate) fn resynced(&mut self, revision: i64) {
        self.next = self.next.max(revision.saturating_add(1));
        self.seen = self.seen.max(revision);
    }

    /// The stream ended, or the watch on it. A revision that was not complete will be sent again.
    pub(crate) fn broken(&mut self) {
        self.attached = false;
        self.joining = false;
        self.held = Vec::new();
    }
}

#[cfg(test)]
mod tests;
