//! The position of one watch: which events of a stream are new and complete, and where the next stream resumes.
//!
//! Two positions are kept apart. *Delivered* advances only by delivered events (their `mod_revision`): an event is a
//! repeat if its revision was delivered, and for no other reason. *Complete* also advances by progress notifications
//! that are known to arrive after the events they cover; the next stream resumes after it. A progress notification that
//! overtook events, as some releases of etcd send, therefore hides no event.
//!
//! No position advances by the header of an event response: while a watch catches up, that header carries the member's
//! *current* revision, and after congestion on the server an older one than the response before. So this module does
//! not receive the header.
//!
//! A revision is delivered complete or not at all. Only the last revision of a fragment can continue in the next
//! fragment, so only that one is held back: a fragmented replay of any length needs memory for one revision. If the
//! stream ends between two fragments, the held events are dropped; the cursor still points at their revision, and the
//! next stream sends that revision from its first event.

mod merging;

/// An event that happened at a revision.
pub(crate) trait Revisioned {
    /// Returns the revision of the change. Events with 0 or less are dropped.
    fn mod_revision(&self) -> i64;
}

/// How a new stream relates to the events that the watch has received so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamPosition {
    /// The stream continues where the last one ended.
    Continues,
    /// The member is behind a revision that this watch has received: for a moment if it is a lagging follower,
    /// permanently if the cluster was restored from a backup. Events continue once the member has passed `seen`, or
    /// after [`Cursor::restored`].
    RevisionRegressed { seen: i64, current: i64 },
    /// The member belongs to another cluster, whose revisions are unrelated. Events of the stream are ignored.
    ClusterChanged { previous: u64, current: u64 },
}

/// Whether a progress notification can have overtaken events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgressOrder {
    /// It arrived after all events that it covers.
    AfterEvents,
    /// Events that it covers may still arrive on the same stream.
    Unknown,
}

/// The position of one watch. It outlives streams and restarts of the watch's actor.
///
/// [`Cursor::next_revision`] advances when [`Cursor::events`] returns events, so the caller has to buffer them for the
/// consumer even if the stream ends.
#[derive(Debug)]
pub(crate) struct Cursor<E> {
    /// First revision not delivered yet; 0 until a watch "from now on" was created for the first time.
    first_undelivered: i64,
    /// Revision up to which the server has sent everything; 0 until there was progress.
    complete: i64,
    /// Highest revision that this watch has received from any member.
    highest_seen: i64,
    /// 0 until the first response with a cluster id.
    cluster_id: u64,
    /// Whether the watch was created on the current stream.
    attached: bool,
    /// Whether more fragments of the same response follow.
    in_fragments: bool,
    /// Events of the one revision that may continue in the next fragment.
    held: Vec<E>,
}

impl<E: Revisioned> Cursor<E> {
    /// Creates a cursor at `start_revision`; 0 (or less, which etcd refuses) means from now on. `read_revision` is the
    /// revision of an earlier read of the range, or 0.
    pub(crate) fn new(start_revision: i64, read_revision: i64) -> Self {
        Self {
            first_undelivered: start_revision.max(0),
            complete: 0,
            highest_seen: read_revision,
            cluster_id: 0,
            attached: false,
            in_fragments: false,
            held: Vec::new(),
        }
    }

    /// Returns the start revision for the next create; 0 means from now on.
    pub(crate) fn next_revision(&self) -> i64 {
        match self.first_undelivered {
            0 => 0,
            first => first.max(self.complete.saturating_add(1)),
        }
    }

    /// Returns the last revision up to which all events were delivered.
    pub(crate) fn delivered(&self) -> i64 {
        self.first_undelivered - 1
    }

    #[cfg(test)]
    pub(crate) fn is_attached(&self) -> bool {
        self.attached
    }

    /// Returns the number of events held back for the next fragment.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// Records that the server created the watch on the current stream.
    ///
    /// The first call fixes the start of a watch "from now on". etcd may still send an event of that very revision,
    /// which happened during the create; it is dropped so that the start is the same after every resume.
    pub(crate) fn created(&mut self, revision: i64, cluster_id: u64) -> StreamPosition {
        if self.cluster_id != 0 && cluster_id != 0 && cluster_id != self.cluster_id {
            self.stream_ended();
            return StreamPosition::ClusterChanged {
                previous: self.cluster_id,
                current: cluster_id,
            };
        }
        if cluster_id != 0 {
            self.cluster_id = cluster_id;
        }
        if self.first_undelivered == 0 {
            self.first_undelivered = revision.saturating_add(1);
        }
        self.attached = true;
        if cluster_id == 0 {
            // etcd's gRPC proxy answers some creates itself. Such a header has no ids, and the requested revision in
            // place of the current one.
            return StreamPosition::Continues;
        }
        let seen = self.highest_seen;
        self.highest_seen = seen.max(revision);
        if revision < seen {
            return StreamPosition::RevisionRegressed {
                seen,
                current: revision,
            };
        }
        StreamPosition::Continues
    }

    /// Accepts received events; `fragment` means that more events of the same response follow.
    ///
    /// Returns the events, in revision order, that are complete and were never delivered, or `None` if there are none.
    /// In the usual case it returns `events` itself, without a copy.
    pub(crate) fn events(&mut self, events: Vec<E>, fragment: bool) -> Option<Vec<E>> {
        if !self.attached {
            return None;
        }
        self.in_fragments = fragment;
        let mut events = if self.held.is_empty() {
            events
        } else {
            let mut joined = std::mem::take(&mut self.held);
            joined.extend(events);
            joined
        };
        // etcd sends events in order; a server that does not must not cause a lost event.
        if !events.is_sorted_by_key(E::mod_revision) {
            events.sort_by_key(E::mod_revision);
        }
        // Delivered revisions were complete, so every event up to the last one is a repeat.
        let first_wanted = self.first_undelivered.max(1);
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
        self.first_undelivered = last.saturating_add(1);
        self.highest_seen = self.highest_seen.max(last);
        Some(events)
    }

    /// Accepts a progress notification: the server has sent everything up to `revision`. Returns whether the
    /// notification applies to this watch. The next stream resumes after `revision` only if `order` is known.
    ///
    /// Ignores progress between fragments, before the watch was created on this stream, or if
    /// `revision` is behind the cursor: for a watch that starts in the future, or if the server sent the notification
    /// before the response to the create. The caller drops stream-wide notifications (watch id −1) that do not concern
    /// this watch, see `CreatePairing`.
    pub(crate) fn progress(&mut self, revision: i64, order: ProgressOrder) -> bool {
        if !self.attached || self.in_fragments || revision < self.next_revision() - 1 {
            return false;
        }
        if order == ProgressOrder::AfterEvents {
            self.complete = revision;
        }
        self.highest_seen = self.highest_seen.max(revision);
        true
    }

    /// Records that the consumer received the whole range as of `revision`.
    pub(crate) fn resynced(&mut self, revision: i64) {
        self.first_undelivered = self.first_undelivered.max(revision.saturating_add(1));
        self.highest_seen = self.highest_seen.max(revision);
    }

    /// Records that the cluster was restored from a backup, and that the consumer received the whole range as of
    /// `revision`.
    pub(crate) fn restored(&mut self, revision: i64) {
        self.first_undelivered = revision.saturating_add(1);
        self.complete = 0;
        self.highest_seen = revision;
    }

    /// Returns the highest revision that this watch has received from any member.
    pub(crate) fn highest_seen(&self) -> i64 {
        self.highest_seen
    }

    /// Records that the stream, or the watch on it, ended. The next stream sends an incomplete revision again.
    pub(crate) fn stream_ended(&mut self) {
        self.attached = false;
        self.in_fragments = false;
        self.held = Vec::new();
    }
}

#[cfg(test)]
mod tests;
