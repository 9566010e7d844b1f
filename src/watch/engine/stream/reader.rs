//! The receiving side of a stream: answers as they come, and every reason to expect no more of them.

use std::{
    collections::HashSet,
    future::{Future, poll_fn},
    ops::Range,
    pin::pin,
    sync::Arc,
    task::Poll,
};

use actix::WeakAddr;
use bytes::Bytes;
use tokio::time::Instant;

use super::{Broken, Received, StreamActor};
use crate::{
    connection::{Connection, Verdict},
    error::{Error, ErrorKind, Outcome},
    proto::{Event, WatchResponse},
    transport::{channel::StreamReceiver, grpc::RpcFailure},
    watch::engine::events,
};

/// How many answers are handed on in one message, if so many are there already.
const AT_ONCE: usize = 64;
/// No more than fit into what a queue of the usual size still has free when its stream waits for it; and a list of so
/// many is memory that the allocator has at hand.
const EVENTS_AT_ONCE: usize = 256;

/// The task that reads; it ends with this.
pub(super) struct Reader(tokio::task::JoinHandle<()>);

impl Reader {
    pub(super) fn start(
        receiver: StreamReceiver<WatchResponse>,
        actor: WeakAddr<StreamActor>,
        connection: Arc<Connection>,
        leader_wanted: bool,
    ) -> Self {
        Self(actix_rt::spawn(async move {
            let broken = tokio::select! {
                biased;
                broken = read(receiver, &actor, &connection) => broken,
                error = unfit(&connection, leader_wanted) => Some(error.into()),
            };
            if let (Some(broken), Some(actor)) = (broken, actor.upgrade()) {
                actor.do_send(broken);
            }
        }))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Self {
            error,
            too_large_for: None,
        }
    }
}

/// Answers that are handed on in one message.
#[derive(Default)]
struct Gathered {
    responses: Vec<WatchResponse>,
    events: usize,
    /// For how many events the first list had better have room: as many as the last one had.
    room: usize,
    /// The newest revision in the last of them.
    newest: i64,
    /// The watches that have a fragment without its last one.
    open: HashSet<i64>,
}

impl Gathered {
    fn is_enough(&self) -> bool {
        self.responses.len() >= AT_ONCE || self.events >= EVENTS_AT_ONCE
    }

    /// Takes in what is there already as far as it can be joined; says whether the next answer is worth a try.
    fn join_arrived(&mut self, receiver: &mut StreamReceiver<WatchResponse>) -> bool {
        while !self.is_enough() {
            let Some((frame, message)) = receiver.peek() else {
                return true;
            };
            let end = message.end;
            if !self.join(frame, message) {
                return false;
            }
            receiver.consume(end);
        }
        true
    }

    /// Takes in what was read; gives why nothing more can be.
    fn take(
        &mut self,
        read: Result<Option<Bytes>, RpcFailure>,
        receiver: &mut StreamReceiver<WatchResponse>,
        joinable: bool,
        connection: &Connection,
    ) -> Option<Broken> {
        let message = match read {
            Ok(Some(message)) => message,
            Ok(None) => {
                let ended = protocol("the member ended the watch stream");
                return Some(ended.with_endpoint(connection.endpoint.name()).into());
            }
            Err(RpcFailure { error, .. }) => {
                let too_large = error.kind() == ErrorKind::ResponseTooLarge;
                return Some(Broken {
                    error,
                    too_large_for: too_large
                        .then(|| events::addressee(receiver.oversized_start()))
                        .flatten(),
                });
            }
        };
        if joinable && self.join(&message, 0..message.len()) {
            return None;
        }
        let read = match events::read(&message, std::mem::take(&mut self.room)) {
            Some(response) => Ok(response),
            None => receiver.decode(message),
        };
        match read {
            Ok(response) => self.add(response),
            Err(failure) => return Some(failure.error.into()),
        }
        None
    }

    /// Events of one watch that follow each other become one answer: a busy watch is made of small ones, and each
    /// costs a message. Their headers say nothing (see the cursor). What repeats a revision stays apart: the cursor
    /// drops repeats of earlier answers, and within one takes them for what else happened at that revision.
    fn join(&mut self, frame: &Bytes, message: Range<usize>) -> bool {
        let Some(last) = self.responses.last_mut().filter(|last| only_events(last)) else {
            return false;
        };
        let before = last.events.len();
        if !events::append(frame, message, last.watch_id, &mut last.events) {
            return false;
        }
        let added = last.events[before..].iter().map(Event::revision);
        let (oldest, newest) = added.fold((i64::MAX, self.newest), |(oldest, newest), revision| {
            (oldest.min(revision), newest.max(revision))
        });
        if oldest <= self.newest {
            last.events.truncate(before);
            return false;
        }
        self.newest = newest;
        self.events += last.events.len() - before;
        true
    }

    fn add(&mut self, response: WatchResponse) {
        self.events += response.events.len();
        self.newest = response
            .events
            .iter()
            .map(Event::revision)
            .fold(0, i64::max);
        if response.fragment {
            self.open.insert(response.watch_id);
        } else if self.open.remove(&response.watch_id) {
            // It goes on with what the fragments before it began, which may be newer.
            self.newest = i64::MAX;
        }
        self.responses.push(response);
    }
}

fn only_events(response: &WatchResponse) -> bool {
    !response.created
        && !response.canceled
        && !response.fragment
        && response.compact_revision == 0
        && !response.events.is_empty()
}

/// Reads answers and hands them over; the next ones are read when the last have been handled. Gives why it
/// ended, unless the actor is the reason.
async fn read(
    mut receiver: StreamReceiver<WatchResponse>,
    actor: &WeakAddr<StreamActor>,
    connection: &Connection,
) -> Option<Broken> {
    let mut open = HashSet::new();
    let mut room = 0;
    loop {
        let mut gathered = Gathered {
            room,
            open,
            ..Gathered::default()
        };
        let first = receiver.next_encoded().await;
        let mut ended = gathered.take(first, &mut receiver, false, connection);
        while ended.is_none() {
            let joinable = gathered.join_arrived(&mut receiver);
            if gathered.is_enough() {
                break;
            }
            let next = poll_fn(|cx| match pin!(receiver.next_encoded()).poll(cx) {
                Poll::Ready(next) => Poll::Ready(Some(next)),
                Poll::Pending => Poll::Ready(None),
            });
            let Some(next) = next.await else { break };
            ended = gathered.take(next, &mut receiver, joinable, connection);
        }
        let responses = gathered.responses;
        open = gathered.open;
        let last = responses.last().map_or(0, |last| last.events.len());
        room = last.min(EVENTS_AT_ONCE);
        if !responses.is_empty() {
            let crowded = actor.upgrade()?.send(Received(responses)).await.ok()?;
            // All of them are read at the same time, so one time has to do for all.
            let since = Instant::now();
            for queue in crowded {
                queue.relieved(since).await;
            }
        }
        if ended.is_some() {
            return ended;
        }
    }
}

pub(super) fn protocol(text: &'static str) -> Error {
    Error::new(ErrorKind::Protocol, Outcome::Unknown, text)
}

/// Resolves when the member should not carry streams any more.
async fn unfit(connection: &Connection, leader_wanted: bool) -> Error {
    let mut health = connection.watch_health();
    loop {
        let verdict = health.borrow_and_update().verdict;
        let kind = match verdict {
            Verdict::Fine => None,
            Verdict::NoLeader | Verdict::CutOff | Verdict::Returning => {
                leader_wanted.then_some(ErrorKind::NoLeader)
            }
            Verdict::Learner => Some(ErrorKind::NotSupportedForLearner),
            Verdict::NotServing => Some(ErrorKind::Unhealthy),
            Verdict::Unresponsive => Some(ErrorKind::MemberUnresponsive),
            Verdict::Closed => Some(ErrorKind::ConnectionLost),
        };
        if let Some(kind) = kind {
            return Error::new(kind, Outcome::Unknown, verdict.reason())
                .with_endpoint(connection.endpoint.name());
        }
        if health.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use prost::Message;

    use super::{
        super::super::cursor::{Batch, Cursor},
        *,
    };
    use crate::proto::KeyValue;

    fn event(mod_revision: i64) -> Event {
        Event {
            kv: Some(KeyValue {
                mod_revision,
                ..KeyValue::default()
            }),
            ..Event::default()
        }
    }

    fn at(watch_id: i64, revisions: impl IntoIterator<Item = i64>) -> WatchResponse {
        WatchResponse {
            watch_id,
            events: revisions.into_iter().map(event).collect(),
            ..WatchResponse::default()
        }
    }

    fn hear(gathered: &mut Gathered, response: WatchResponse) {
        let message = Bytes::from(response.encode_to_vec());
        if !gathered.join(&message, 0..message.len()) {
            gathered.add(response);
        }
    }

    #[test]
    fn only_events_of_one_watch_in_a_row_become_one_answer() {
        let fragment = WatchResponse {
            fragment: true,
            ..at(1, [7])
        };
        let canceled = WatchResponse {
            canceled: true,
            ..at(2, [])
        };
        let mut gathered = Gathered::default();
        let answers = [
            at(1, [1, 2]),
            at(1, [3, 4, 5]),
            at(2, [1]),
            at(1, [6]),
            fragment,
            at(1, [8]),
            at(1, []),
            at(1, [9]),
            at(2, [2]),
            canceled,
        ];
        for answer in answers {
            hear(&mut gathered, answer);
        }
        let told = gathered.responses.iter();
        let told: Vec<_> = told.map(|r| (r.watch_id, r.events.len())).collect();
        let apart = [(1, 1), (1, 1), (1, 1), (1, 0), (1, 1), (2, 1), (2, 0)];
        assert_eq!(told, [&[(1, 5), (2, 1)][..], &apart[..]].concat());
        assert_eq!(gathered.events, 11);
    }

    #[test]
    fn enough_is_a_number_of_answers_or_of_events() {
        let mut gathered = Gathered::default();
        for n in 0..EVENTS_AT_ONCE {
            assert!(!gathered.is_enough(), "after {n}");
            hear(&mut gathered, at(1, [1 + i64::try_from(n).unwrap()]));
        }
        assert!(gathered.is_enough());
        assert_eq!(gathered.responses.len(), 1);
    }

    #[test]
    fn answers_that_repeat_a_revision_stay_apart() {
        let mut gathered = Gathered::default();
        for answer in [at(1, [5, 6]), at(1, [6, 7]), at(1, [9, 8]), at(1, [9])] {
            hear(&mut gathered, answer);
        }
        let told = gathered.responses.iter().map(|r| r.events.len());
        assert_eq!(told.collect::<Vec<_>>(), [2, 4, 1]);
    }

    /// What the cursors of two watches make of answers.
    fn delivered(answers: Vec<WatchResponse>) -> BTreeMap<i64, Vec<i64>> {
        let mut cursors = BTreeMap::<i64, (Cursor<Event>, Vec<i64>)>::new();
        for answer in answers {
            let (cursor, told) = cursors.entry(answer.watch_id).or_insert_with(|| {
                let mut cursor = Cursor::new(1);
                cursor.created(0, 1);
                (cursor, Vec::new())
            });
            let batch = cursor.events(answer.events, answer.fragment);
            let events = batch.map_or_else(Vec::new, Batch::into_events);
            told.extend(events.iter().map(Event::revision));
        }
        let told = cursors.into_iter().map(|(watch, (_, told))| (watch, told));
        told.collect()
    }

    proptest! {
        #[test]
        fn what_is_handed_on_together_is_what_was_sent_apart(
            answers in prop::collection::vec(
                (1..3_i64, prop::collection::vec(0..12_i64, 0..4), 0..8_u8),
                0..20,
            ),
        ) {
            let answers = answers.into_iter().map(|(watch, revisions, fragment)| WatchResponse {
                fragment: fragment == 0,
                ..at(watch, revisions)
            });
            let answers: Vec<_> = answers.collect();
            let mut gathered = Gathered::default();
            for answer in &answers {
                hear(&mut gathered, answer.clone());
            }
            prop_assert_eq!(delivered(gathered.responses), delivered(answers));
        }
    }
}
