//! Which watch of a shared stream an answer is about.
//!
//! Creates are sent without waiting for each other, with ids chosen here, and answered in order. That
//! order matters for one answer only: a refused create comes back as watch −1, and is the oldest one
//! not answered yet. Ids are never used twice on a stream, so a late message can't find a wrong watch.
//!
//! A progress message to watch −1 is about every watch that existed on the server when the request
//! was handled. It and the answer to a create take different queues there, so it can arrive *after* the
//! answer to a create that was handled later, and then says nothing about that watch. Taking it for
//! progress would skip everything the watch still has to catch up with. A watch that has nothing to catch
//! up with, as it starts after all there was, can't be misled: such progress is before its start.

use std::collections::{HashMap, HashSet, VecDeque};

/// The id of refused creates and of progress about a whole stream.
pub(crate) const NO_WATCH: i64 = -1;

/// How many ids that nobody here knows are answered with a cancel before the stream is given up.
const MAX_STRAYS: usize = 64;

/// What of a response says whom it is about.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Envelope {
    pub(crate) watch_id: i64,
    pub(crate) created: bool,
    pub(crate) canceled: bool,
    pub(crate) compact_revision: i64,
    /// The revision of the response's header.
    pub(crate) revision: i64,
}

/// What a response is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer<'a, W> {
    /// The watch exists on the server, under this id.
    Created { id: i64, who: &'a mut W },
    /// The create was refused: the watch is not on this stream any more.
    Refused { who: W },
    /// The server ended the watch. It forgets a compacted one only when told to, and answers no
    /// progress request on the stream until then: send a cancel if `forget` is set.
    Canceled { id: i64, who: W, forget: bool },
    /// Events, or progress of this watch alone.
    For { who: &'a mut W },
    /// Progress about the stream: [`Creates::broadcast`] says who is meant.
    Broadcast,
    /// The server has a watch that nobody wants: send a cancel.
    Unwanted { id: i64 },
    /// The echo of something already done.
    Nobody,
    /// The server chose the id itself, and more than one create may be meant: give up the stream, and create watches
    /// on this server one a stream.
    Ambiguous,
    /// Answers and creates can't be paired any more: give up the stream and resume all its watches.
    OutOfStep,
}

#[derive(Debug)]
struct Waiting<W> {
    id: i64,
    start_revision: i64,
    /// `None`: cancelled before the answer came.
    who: Option<W>,
}

#[derive(Debug)]
struct Live<W> {
    who: W,
    /// The header revision of the answer to the create.
    created_at: i64,
    /// Progress requests sent before that answer, whose own answers may still be on their way and would mislead it.
    asked_before: u32,
}

/// The watches of one stream.
#[derive(Debug)]
pub(crate) struct Creates<W> {
    last_id: i64,
    waiting: VecDeque<Waiting<W>>,
    /// How many of those are still wanted: thousands wait at once after a reconnect.
    wanted: usize,
    live: HashMap<i64, Live<W>>,
    /// A cancel was sent, and its answer has not come.
    closing: HashSet<i64>,
    strays: Vec<i64>,
    /// Progress requests not answered; the server leaves some unanswered for good.
    asked: u32,
}

impl<W> Default for Creates<W> {
    fn default() -> Self {
        Self {
            last_id: 0,
            waiting: VecDeque::new(),
            wanted: 0,
            live: HashMap::new(),
            closing: HashSet::new(),
            strays: Vec::new(),
            asked: 0,
        }
    }
}

impl<W> Creates<W> {
    /// The watches that want this stream.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.live.len() + self.wanted
    }

    /// Creates that are not answered yet.
    #[cfg(test)]
    pub(crate) fn unanswered(&self) -> usize {
        self.waiting.len()
    }

    /// The id of the oldest create that is not answered yet.
    pub(crate) fn oldest_unanswered(&self) -> Option<i64> {
        self.waiting.front().map(|create| create.id)
    }

    /// The id for a create from `start_revision` (0: from now on), which has to be sent before any later one. It
    /// is never 0: that asks the server to choose.
    pub(crate) fn create(&mut self, who: W, start_revision: i64) -> i64 {
        self.last_id += 1;
        self.wanted += 1;
        self.waiting.push_back(Waiting {
            id: self.last_id,
            start_revision,
            who: Some(who),
        });
        self.last_id
    }

    /// The watch is not wanted any more. Gives it back if a cancel has to be sent; one can follow its
    /// create at once, the server handles them in order.
    pub(crate) fn cancel(&mut self, id: i64) -> Option<W> {
        if let Some(live) = self.live.remove(&id) {
            self.closing.insert(id);
            return Some(live.who);
        }
        let index = self.position(id)?;
        let who = self.waiting.get_mut(index)?.who.take()?;
        self.wanted -= 1;
        Some(who)
    }

    /// Where a create waits for its answer.
    fn position(&self, id: i64) -> Option<usize> {
        self.waiting
            .binary_search_by_key(&id, |create| create.id)
            .ok()
    }

    /// Pairs a response with its watch.
    pub(crate) fn answer(&mut self, envelope: Envelope) -> Answer<'_, W> {
        match (envelope.created, envelope.canceled) {
            (true, false) => self.created(envelope),
            (true, true) => self.refused(envelope),
            (false, true) => self.canceled(envelope),
            (false, false) if envelope.watch_id == NO_WATCH => Answer::Broadcast,
            (false, false) => self.message(envelope.watch_id),
        }
    }

    fn created(
        &mut self,
        Envelope {
            watch_id: id,
            revision,
            ..
        }: Envelope,
    ) -> Answer<'_, W> {
        if self.live.contains_key(&id) || self.closing.contains(&id) {
            return Answer::Nobody;
        }
        // A proxy may choose ids of its own. With one create under way there is no doubt whose it is.
        let ours = self.waiting.front().map(|create| create.id);
        if id == NO_WATCH || ours.is_none() {
            return Answer::OutOfStep;
        }
        if ours != Some(id) && self.waiting.len() > 1 {
            return match self.position(id) {
                Some(_) => Answer::OutOfStep,
                None => Answer::Ambiguous,
            };
        }
        let create = self.waiting.pop_front();
        let start = create.as_ref().map_or(0, |create| create.start_revision);
        let Some(who) = create.and_then(|create| create.who) else {
            self.closing.insert(id);
            // The cancel that followed the create named our id, which the server did not take.
            return if ours == Some(id) {
                Answer::Nobody
            } else {
                Answer::Unwanted { id }
            };
        };
        self.wanted -= 1;
        if self.waiting.is_empty() {
            // A reconnect makes it long, and then nothing may come for days.
            self.waiting = VecDeque::new();
        }
        // From 0 it starts at the next revision.
        let behind = start != 0 && start <= revision;
        let asked_before = if behind { self.asked } else { 0 };
        let live = self.live.entry(id).or_insert(Live {
            who,
            created_at: revision,
            asked_before,
        });
        Answer::Created {
            id,
            who: &mut live.who,
        }
    }

    fn refused(&mut self, envelope: Envelope) -> Answer<'_, W> {
        let ours = self.waiting.front().map(|create| create.id);
        if envelope.watch_id != NO_WATCH && ours != Some(envelope.watch_id) {
            return Answer::OutOfStep;
        }
        match self.waiting.pop_front() {
            Some(Waiting { who: Some(who), .. }) => {
                self.wanted -= 1;
                Answer::Refused { who }
            }
            Some(Waiting { who: None, .. }) => Answer::Nobody,
            None => Answer::OutOfStep,
        }
    }

    fn canceled(&mut self, envelope: Envelope) -> Answer<'_, W> {
        let id = envelope.watch_id;
        self.closing.remove(&id);
        let Some(Live { who, .. }) = self.live.remove(&id) else {
            return Answer::Nobody;
        };
        let forget = envelope.compact_revision != 0;
        if forget {
            self.closing.insert(id);
        }
        Answer::Canceled { id, who, forget }
    }

    fn message(&mut self, id: i64) -> Answer<'_, W> {
        if self.closing.contains(&id) || self.strays.contains(&id) {
            return Answer::Nobody;
        }
        match self.live.get_mut(&id) {
            Some(live) => {
                // It comes the same way as answers to progress requests, so all older ones have come.
                live.asked_before = 0;
                Answer::For { who: &mut live.who }
            }
            None if self.strays.len() == MAX_STRAYS => Answer::OutOfStep,
            None => {
                self.strays.push(id);
                Answer::Unwanted { id }
            }
        }
    }

    /// A progress request was sent.
    pub(crate) fn progress_asked(&mut self) {
        self.asked = self.asked.saturating_add(1);
    }

    /// The watches that stream-wide progress at `revision` is about. A request whose answer turns out
    /// not to be about the watch that asked is to be sent again.
    pub(crate) fn broadcast(&mut self, revision: i64) -> impl Iterator<Item = &mut W> {
        self.asked = self.asked.saturating_sub(1);
        self.live.values_mut().filter_map(move |live| {
            // Beyond the create's own revision it was surely made after it. Up to that revision, only
            // if every request sent before that could mislead is accounted for.
            if revision <= live.created_at && live.asked_before > 0 {
                live.asked_before -= 1;
                return None;
            }
            Some(&mut live.who)
        })
    }

    /// The stream ended: the watches that have to go on elsewhere.
    pub(crate) fn into_watches(self) -> impl Iterator<Item = W> {
        let waiting = self.waiting.into_iter().filter_map(|create| create.who);
        waiting.chain(self.live.into_values().map(|live| live.who))
    }
}

#[cfg(test)]
mod tests;
