//! Who leads an election, seen from outside: every change of it, from a watch on all candidates.
//!
//! A watch on the leader's key alone misses who led for a moment in between, and a read of the first key after its
//! deletion can show a later leader first. So all candidates are followed, and who leads is worked out at each revision.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use actix::Message;
use bytes::Bytes;
use tokio_stream::Stream;

use super::follow::{Follow, Seen};
use crate::{
    client::Client,
    error::Error,
    proto::{Event, KeyValue},
};

/// Who leads an election, and what they proclaim.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The leader's key.
    pub key: Bytes,
    /// What it proclaims.
    pub value: Bytes,
    /// The fencing token of the leadership: the create revision of its key.
    pub token: i64,
    /// The lease of the leader's session.
    pub lease: i64,
    /// The revision of the last proclamation.
    pub revision: i64,
}

impl From<&KeyValue> for Leader {
    fn from(kv: &KeyValue) -> Self {
        Self {
            key: kv.key.clone(),
            value: kv.value.clone(),
            token: kv.create_revision,
            lease: kv.lease,
            revision: kv.mod_revision,
        }
    }
}

/// What an observer of an election is told.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub enum LeaderEvent {
    /// This one leads, or proclaims something new.
    Leads(Leader),
    /// Nobody leads.
    NoLeader,
    /// Nothing follows, and this is why.
    Ended(Error),
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Told {
    #[default]
    Nothing,
    NoLeader,
    Leads(Leader),
}

/// All candidates of an election.
#[derive(Debug, Default)]
struct Race {
    /// By create revision: the first one leads.
    candidates: BTreeMap<(i64, Bytes), Leader>,
    /// The create revision of a key, as its deletion does not tell it.
    created: HashMap<Bytes, i64>,
    /// The first one when it was last told.
    told: Told,
}

impl Race {
    /// The state was read anew.
    fn replace(&mut self, found: &[KeyValue]) -> Option<LeaderEvent> {
        self.candidates.clear();
        self.created.clear();
        for kv in found {
            self.put(kv);
        }
        self.news()
    }

    /// Everything that happened at one revision.
    fn apply(&mut self, events: &[Event]) -> Option<LeaderEvent> {
        for event in events {
            let Some(kv) = &event.kv else { continue };
            let key: Bytes = kv.key.clone();
            if let Some(created) = self.created.remove(&key) {
                self.candidates.remove(&(created, key));
            }
            if event.is_put() {
                self.put(kv);
            }
        }
        self.news()
    }

    fn put(&mut self, kv: &KeyValue) {
        let leader = Leader::from(kv);
        self.created.insert(leader.key.clone(), leader.token);
        let place = (leader.token, leader.key.clone());
        self.candidates.insert(place, leader);
    }

    fn news(&mut self) -> Option<LeaderEvent> {
        let leader = self.candidates.values().next().cloned();
        let now = leader.clone().map_or(Told::NoLeader, Told::Leads);
        if self.told == now {
            return None;
        }
        self.told = now;
        Some(leader.map_or(LeaderEvent::NoLeader, LeaderEvent::Leads))
    }
}

/// The observer again, with its next event.
type Next = Pin<Box<dyn Future<Output = (Observer, LeaderEvent)> + Send>>;

/// Every change of who leads an election, from the state it is in now: a stream that ends after
/// [`LeaderEvent::Ended`]. Where history was compacted away during an outage, it goes on with what it came to.
#[must_use = "an election is observed while this is read"]
pub struct Leaders {
    next: Option<Next>,
}

impl Leaders {
    pub(super) fn new(client: Client, prefix: Bytes) -> Self {
        let observer = Observer {
            follow: Follow::prefix(client, prefix),
            race: Race::default(),
        };
        Self {
            next: Some(Box::pin(observer.next())),
        }
    }

    /// The next event; `None` after the last one.
    pub async fn next(&mut self) -> Option<LeaderEvent> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<LeaderEvent>> {
        let Some(next) = &mut self.next else {
            return Poll::Ready(None);
        };
        let (observer, event) = ready!(next.as_mut().poll(cx));
        let ended = matches!(event, LeaderEvent::Ended(_));
        self.next = (!ended).then(|| -> Next { Box::pin(observer.next()) });
        Poll::Ready(Some(event))
    }
}

impl Stream for Leaders {
    type Item = LeaderEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<LeaderEvent>> {
        self.poll(cx)
    }
}

impl fmt::Debug for Leaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaders").finish_non_exhaustive()
    }
}

struct Observer {
    follow: Follow,
    race: Race,
}

impl Observer {
    async fn next(mut self) -> (Self, LeaderEvent) {
        loop {
            let news = match self.follow.next().await {
                Ok(Seen::All(found)) => self.race.replace(&found.kvs),
                Ok(Seen::Events(events)) => self.race.apply(&events),
                Err(error) => Some(LeaderEvent::Ended(error)),
            };
            if let Some(event) = news {
                return (self, event);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::event::EventType;

    fn kv(key: &'static str, created: i64, revision: i64) -> KeyValue {
        KeyValue {
            key: Bytes::from_static(key.as_bytes()),
            create_revision: created,
            mod_revision: revision,
            ..KeyValue::default()
        }
    }

    fn put(kv: KeyValue) -> Event {
        Event {
            kv: Some(kv),
            ..Event::default()
        }
    }

    fn delete(key: &'static str, revision: i64) -> Event {
        Event {
            r#type: EventType::Delete.into(),
            kv: Some(kv(key, 0, revision)),
            ..Event::default()
        }
    }

    fn told(event: Option<LeaderEvent>) -> Option<(Bytes, i64)> {
        match event? {
            LeaderEvent::Leads(leader) => Some((leader.key, leader.revision)),
            LeaderEvent::NoLeader => Some((Bytes::new(), 0)),
            LeaderEvent::Ended(error) => panic!("{error}"),
        }
    }

    fn leads(key: &'static str, revision: i64) -> (Bytes, i64) {
        (Bytes::from_static(key.as_bytes()), revision)
    }

    #[test]
    fn the_first_event_is_told_even_if_it_is_that_nobody_leads() {
        let mut race = Race::default();
        assert_eq!(told(race.replace(&[])), Some(leads("", 0)));
        assert_eq!(told(race.replace(&[])), None);
    }

    #[test]
    fn the_oldest_candidate_leads_and_its_proclamations_are_told() {
        let mut race = Race::default();
        assert_eq!(
            told(race.replace(&[kv("e/b", 5, 5), kv("e/a", 3, 3)])),
            Some(leads("e/a", 3))
        );
        assert_eq!(told(race.apply(&[put(kv("e/b", 5, 6))])), None);
        assert_eq!(
            told(race.apply(&[put(kv("e/a", 3, 7))])),
            Some(leads("e/a", 7))
        );
        assert_eq!(told(race.apply(&[delete("e/a", 8)])), Some(leads("e/b", 6)));
        assert_eq!(told(race.apply(&[delete("e/b", 9)])), Some(leads("", 0)));
        assert_eq!(
            told(race.apply(&[put(kv("e/a", 10, 10))])),
            Some(leads("e/a", 10))
        );
    }

    #[test]
    fn a_key_deleted_and_created_in_one_revision_goes_to_the_end() {
        let mut race = Race::default();
        race.replace(&[kv("e/a", 3, 3), kv("e/b", 5, 5)]);
        let events = [delete("e/a", 8), put(kv("e/a", 8, 8))];
        assert_eq!(told(race.apply(&events)), Some(leads("e/b", 5)));
    }

    #[test]
    fn what_was_missed_shows_in_what_is_read_anew() {
        let mut race = Race::default();
        race.replace(&[kv("e/a", 3, 3)]);
        assert_eq!(told(race.replace(&[kv("e/a", 3, 3)])), None);
        assert_eq!(
            told(race.replace(&[kv("e/c", 20, 20)])),
            Some(leads("e/c", 20))
        );
    }
}
