//! Decides which watch of a shared stream a response belongs to.
//!
//! etcd uses the watch ids that the client chooses and responds to creates in order. So creates are pipelined, and a
//! refusal, which has watch id −1, belongs to the oldest create in flight. etcd's gRPC proxy ignores the client's ids:
//! it numbers the watches of a stream from 0 upward and responds to creates in any order. There a response can belong
//! to any create in flight, so only one is.
//!
//! Which of the two a server does is unknown until it has created the first watch of the stream. Until then one create
//! is in flight. The client's ids start at [`FIRST_ID`], far from the ids of any proxy, so that an id shows
//! which side chose it. Ids are never reused on a stream, so a late response cannot reach a wrong watch.
//!
//! [`progress_coverage`] decides which watches a progress response covers.

mod progress_coverage;

use std::collections::{HashMap, HashSet, VecDeque};

use crate::proto::WatchResponse;

/// Watch id of refused creates and of progress for the whole stream.
pub(super) const NO_WATCH: i64 = -1;

/// First watch id that the client chooses.
const FIRST_ID: i64 = 1 << 32;

/// Number of unknown watch ids that are cancelled before the stream is closed.
const MAX_UNKNOWN_IDS: usize = 64;

/// The watch that a response belongs to, and what to do with the response.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ResponseTarget<'a, W> {
    /// The server created the watch under this id.
    Created { id: i64, watch: &'a mut W },
    /// The server refused the create: the watch left the stream.
    Refused { watch: W },
    /// The server cancelled the watch: it left the stream. With `send_cancel`, send a cancel for it: the server removes
    /// a compacted watch only then, and responds to no progress request on the stream before.
    Canceled {
        id: i64,
        watch: W,
        send_cancel: bool,
    },
    /// Events or progress of one watch.
    Watch { watch: &'a mut W },
    /// Progress for the stream: [`CreatePairing::covered_by_progress`] returns the watches it covers.
    Stream,
    /// The server has a watch that this client does not: send a cancel.
    Unknown { id: i64 },
    /// The response concerns a watch that was cancelled already.
    Ignored,
    /// Responses and creates cannot be paired any more: close the stream and resume all its watches.
    OutOfStep,
}

/// The side that chooses the watch ids on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdSource {
    /// The server has created no watch on this stream yet. One create is in flight.
    Unknown,
    /// The client. Creates are pipelined.
    Client,
    /// The server. One create is in flight.
    Server,
}

/// A watch that has to be created.
#[derive(Debug)]
struct WaitingCreate<W> {
    id: i64,
    start_revision: i64,
    watch: W,
}

#[derive(Debug)]
struct InFlightCreate<W> {
    id: i64,
    start_revision: i64,
    /// `None` if the watch was cancelled before the response arrived.
    watch: Option<W>,
}

/// A create to send now.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CreateToSend<'a, W> {
    pub(super) id: i64,
    pub(super) start_revision: i64,
    pub(super) watch: &'a W,
}

#[derive(Debug)]
struct LiveWatch<W> {
    watch: W,
    /// Header revision of the response to the create.
    created_at: i64,
    /// Progress requests sent before that response, whose responses may still arrive and would mislead the watch.
    earlier_progress_requests: u32,
}

/// A watch that was removed from the stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Removed<W> {
    /// Its create was sent: send a cancel. It may directly follow the create, as the server handles them in order.
    Sent(W),
    /// Its create was not sent.
    Unsent(W),
    /// There is no such watch, or it was removed before.
    Nothing,
}

/// The watches of one stream.
#[derive(Debug)]
pub(super) struct CreatePairing<W> {
    next_id: i64,
    id_source: IdSource,
    /// Creates that were not sent yet.
    waiting: VecDeque<WaitingCreate<W>>,
    in_flight: VecDeque<InFlightCreate<W>>,
    /// Number of creates in flight that are not cancelled. Counted, because a reconnect queues thousands of creates.
    in_flight_wanted: usize,
    live: HashMap<i64, LiveWatch<W>>,
    /// Ids whose cancel was sent and has no response yet.
    canceling: HashSet<i64>,
    unknown_ids: Vec<i64>,
    /// Number of progress requests without a response. The server never responds to some of them.
    progress_requests: u32,
}

impl<W> Default for CreatePairing<W> {
    fn default() -> Self {
        Self {
            next_id: FIRST_ID,
            id_source: IdSource::Unknown,
            waiting: VecDeque::new(),
            in_flight: VecDeque::new(),
            in_flight_wanted: 0,
            live: HashMap::new(),
            canceling: HashSet::new(),
            unknown_ids: Vec::new(),
            progress_requests: 0,
        }
    }
}

impl<W> CreatePairing<W> {
    /// Returns the number of watches that use this stream.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.live.len() + self.in_flight_wanted + self.waiting.len()
    }

    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns the id of the oldest create without a response.
    pub(super) fn oldest_in_flight(&self) -> Option<i64> {
        self.in_flight.front().map(|create| create.id)
    }

    pub(super) fn id_source(&self) -> IdSource {
        self.id_source
    }

    /// Adds a watch from `start_revision` (0: from now on) and returns the id for its create. The id is never 0: that
    /// would let the server choose.
    pub(super) fn create(&mut self, watch: W, start_revision: i64) -> i64 {
        let id = self.next_id;
        self.next_id += 1;
        self.waiting.push_back(WaitingCreate {
            id,
            start_revision,
            watch,
        });
        id
    }

    /// Returns the next create if it may be sent now. It counts as sent.
    pub(super) fn next_to_send(&mut self) -> Option<CreateToSend<'_, W>> {
        if self.id_source != IdSource::Client && !self.in_flight.is_empty() {
            return None;
        }
        let WaitingCreate {
            id,
            start_revision,
            watch,
        } = self.waiting.pop_front()?;
        if self.waiting.is_empty() {
            // A reconnect makes the queue long; its memory is released as the next one may be days away.
            self.waiting = VecDeque::new();
        }
        self.in_flight_wanted += 1;
        self.in_flight.push_back(InFlightCreate {
            id,
            start_revision,
            watch: Some(watch),
        });
        let watch = self.in_flight.back()?.watch.as_ref()?;
        Some(CreateToSend {
            id,
            start_revision,
            watch,
        })
    }

    /// Removes all watches whose creates were not sent, except for the first `kept` ones.
    pub(super) fn take_waiting(&mut self, kept: usize) -> impl Iterator<Item = W> + use<W> {
        let taken = self.waiting.split_off(kept.min(self.waiting.len()));
        taken.into_iter().map(|create| create.watch)
    }

    /// Removes a watch.
    pub(super) fn cancel(&mut self, id: i64) -> Removed<W> {
        if let Some(live) = self.live.remove(&id) {
            self.canceling.insert(id);
            return Removed::Sent(live.watch);
        }
        if let Ok(index) = self.waiting.binary_search_by_key(&id, |create| create.id) {
            let create = self.waiting.remove(index);
            return create.map_or(Removed::Nothing, |create| Removed::Unsent(create.watch));
        }
        let create = self.in_flight_index(id);
        let create = create.and_then(|index| self.in_flight.get_mut(index));
        match create.and_then(|create| create.watch.take()) {
            Some(watch) => {
                self.in_flight_wanted -= 1;
                Removed::Sent(watch)
            }
            None => Removed::Nothing,
        }
    }

    fn in_flight_index(&self, id: i64) -> Option<usize> {
        self.in_flight
            .binary_search_by_key(&id, |create| create.id)
            .ok()
    }

    /// Pairs a response with its watch.
    pub(super) fn pair(&mut self, response: &WatchResponse) -> ResponseTarget<'_, W> {
        match (response.created, response.canceled) {
            (true, false) => self.created(response),
            (true, true) => self.refused(response.watch_id),
            (false, true) => self.canceled(response),
            (false, false) if response.watch_id == NO_WATCH => ResponseTarget::Stream,
            (false, false) => self.message(response.watch_id),
        }
    }

    fn created(&mut self, response: &WatchResponse) -> ResponseTarget<'_, W> {
        let id = response.watch_id;
        if self.live.contains_key(&id) || self.canceling.contains(&id) {
            return ResponseTarget::Ignored;
        }
        let Some(oldest) = self.oldest_in_flight() else {
            return ResponseTarget::OutOfStep;
        };
        if id == NO_WATCH {
            return ResponseTarget::OutOfStep;
        }
        let chosen_by = if id == oldest {
            IdSource::Client
        } else {
            IdSource::Server
        };
        if self.id_source == IdSource::Unknown {
            self.id_source = chosen_by;
        } else if self.id_source != chosen_by {
            return ResponseTarget::OutOfStep;
        }
        let create = self.in_flight.pop_front();
        let start = create.as_ref().map_or(0, |create| create.start_revision);
        let Some(watch) = create.and_then(|create| create.watch) else {
            self.canceling.insert(id);
            // The cancel that followed the create named the client's id, which this server does not use.
            return if id == oldest {
                ResponseTarget::Ignored
            } else {
                ResponseTarget::Unknown { id }
            };
        };
        self.in_flight_wanted -= 1;
        if self.in_flight.is_empty() {
            self.in_flight = VecDeque::new();
        }
        let created_at = response.header.as_ref().map_or(0, |header| header.revision);
        // A start revision of 0 means the next revision, which is not behind.
        let is_behind = start != 0 && start <= created_at;
        let earlier_progress_requests = if is_behind { self.progress_requests } else { 0 };
        let live = self.live.entry(id).or_insert(LiveWatch {
            watch,
            created_at,
            earlier_progress_requests,
        });
        ResponseTarget::Created {
            id,
            watch: &mut live.watch,
        }
    }

    fn refused(&mut self, watch_id: i64) -> ResponseTarget<'_, W> {
        if watch_id != NO_WATCH && self.oldest_in_flight() != Some(watch_id) {
            return ResponseTarget::OutOfStep;
        }
        match self.in_flight.pop_front() {
            Some(InFlightCreate {
                watch: Some(watch), ..
            }) => {
                self.in_flight_wanted -= 1;
                ResponseTarget::Refused { watch }
            }
            Some(InFlightCreate { watch: None, .. }) => ResponseTarget::Ignored,
            None => ResponseTarget::OutOfStep,
        }
    }

    fn canceled(&mut self, response: &WatchResponse) -> ResponseTarget<'_, W> {
        let id = response.watch_id;
        self.canceling.remove(&id);
        let Some(LiveWatch { watch, .. }) = self.live.remove(&id) else {
            return ResponseTarget::Ignored;
        };
        let send_cancel = response.compact_revision != 0;
        if send_cancel {
            self.canceling.insert(id);
        }
        ResponseTarget::Canceled {
            id,
            watch,
            send_cancel,
        }
    }

    fn message(&mut self, id: i64) -> ResponseTarget<'_, W> {
        if self.canceling.contains(&id) || self.unknown_ids.contains(&id) {
            return ResponseTarget::Ignored;
        }
        match self.live.get_mut(&id) {
            Some(live) => {
                // It passed through the same queue as progress responses, so all earlier ones have arrived.
                live.earlier_progress_requests = 0;
                ResponseTarget::Watch {
                    watch: &mut live.watch,
                }
            }
            None if self.unknown_ids.len() == MAX_UNKNOWN_IDS => ResponseTarget::OutOfStep,
            None => {
                self.unknown_ids.push(id);
                ResponseTarget::Unknown { id }
            }
        }
    }

    /// Returns the ids of the watches on the server that match.
    pub(super) fn find_live(&self, is_match: impl Fn(&W) -> bool) -> Vec<i64> {
        let matching = self.live.iter().filter(|(_, live)| is_match(&live.watch));
        matching.map(|(id, _)| *id).collect()
    }

    /// Returns a watch that the server has created.
    pub(super) fn live_watch(&mut self, id: i64) -> Option<&mut W> {
        self.live.get_mut(&id).map(|live| &mut live.watch)
    }

    /// Returns the watches that have to resume on another stream.
    pub(super) fn into_watches(self) -> impl Iterator<Item = W> {
        let in_flight = self.in_flight.into_iter();
        let in_flight = in_flight.filter_map(|create| create.watch);
        let waiting = self.waiting.into_iter().map(|create| create.watch);
        let unanswered = in_flight.chain(waiting);
        unanswered.chain(self.live.into_values().map(|live| live.watch))
    }
}

#[cfg(test)]
mod modelled_servers;
#[cfg(test)]
mod tests;
