//! All candidates of an election, and the leader among them.
//!
//! A watch on the leader's key alone misses leaders of short duration, and a read after its deletion may return a later
//! leader first. The list therefore follows all candidates and derives the leader at each revision.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

use super::{Leader, LeaderEvent};
use crate::{
    proto::{Event, KeyValue},
    recipes::lock_queue::is_contender,
};

#[derive(Debug)]
pub(super) struct CandidateList {
    prefix: Bytes,
    /// Candidates by create revision. The first one leads. Includes keys that were not put by candidates: while one of
    /// them is the first, no candidate can lead.
    candidates: BTreeMap<(i64, Bytes), Leader>,
    /// Create revision of each key, since delete events do not contain it.
    create_revisions: HashMap<Bytes, i64>,
    last_reported: ReportedLeader,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum ReportedLeader {
    #[default]
    NothingYet,
    NoLeader,
    Leads(Leader),
}

impl CandidateList {
    pub(super) fn new(prefix: Bytes) -> Self {
        Self {
            prefix,
            candidates: BTreeMap::new(),
            create_revisions: HashMap::new(),
            last_reported: ReportedLeader::default(),
        }
    }

    /// Replaces all candidates and returns the change of the leader, if any.
    pub(super) fn replace(&mut self, kvs: &[KeyValue]) -> Option<LeaderEvent> {
        self.candidates.clear();
        self.create_revisions.clear();
        for kv in kvs {
            self.insert(kv);
        }
        self.leader_change()
    }

    /// Applies all events of one revision and returns the change of the leader, if any.
    pub(super) fn apply(&mut self, events: &[Event]) -> Option<LeaderEvent> {
        for event in events {
            let Some(kv) = &event.kv else { continue };
            let key: Bytes = kv.key.clone();
            if let Some(created) = self.create_revisions.remove(&key) {
                self.candidates.remove(&(created, key));
            }
            if event.is_put() {
                self.insert(kv);
            }
        }
        self.leader_change()
    }

    fn insert(&mut self, kv: &KeyValue) {
        let candidate = Leader::from(kv);
        self.create_revisions
            .insert(candidate.key.clone(), candidate.token);
        let order = (candidate.token, candidate.key.clone());
        self.candidates.insert(order, candidate);
    }

    fn leader_change(&mut self) -> Option<LeaderEvent> {
        let is_candidate = |oldest: &&Leader| is_contender(&self.prefix, &oldest.key, oldest.lease);
        let leader = self.candidates.values().next();
        let leader = leader.filter(is_candidate).cloned();
        let now = leader
            .clone()
            .map_or(ReportedLeader::NoLeader, ReportedLeader::Leads);
        if self.last_reported == now {
            return None;
        }
        self.last_reported = now;
        Some(leader.map_or(LeaderEvent::NoLeader, LeaderEvent::Leads))
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
            lease: 7,
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

    /// Returns the key and revision of the leader; an empty key if there is none.
    fn key_and_revision(event: Option<LeaderEvent>) -> Option<(Bytes, i64)> {
        match event? {
            LeaderEvent::Leads(leader) => Some((leader.key, leader.revision)),
            LeaderEvent::NoLeader => Some((Bytes::new(), 0)),
            LeaderEvent::Ended(error) => panic!("{error}"),
        }
    }

    fn leads(key: &'static str, revision: i64) -> (Bytes, i64) {
        (Bytes::from_static(key.as_bytes()), revision)
    }

    fn candidate_list() -> CandidateList {
        CandidateList::new(Bytes::from_static(b"e/"))
    }

    #[test]
    fn key_of_no_candidate_blocks_the_election() {
        let mut list = candidate_list();
        let data = KeyValue {
            lease: 0,
            ..kv("e/count", 2, 2)
        };
        let nested = kv("e/nested/7", 3, 3);
        let keys = [data, nested, kv("e/a", 4, 4)];
        assert_eq!(key_and_revision(list.replace(&keys)), Some(leads("", 0)));
        assert_eq!(key_and_revision(list.apply(&[delete("e/count", 5)])), None);
        assert_eq!(
            key_and_revision(list.apply(&[delete("e/nested/7", 6)])),
            Some(leads("e/a", 4))
        );
    }

    #[test]
    fn first_event_reports_even_no_leader() {
        let mut list = candidate_list();
        assert_eq!(key_and_revision(list.replace(&[])), Some(leads("", 0)));
        assert_eq!(key_and_revision(list.replace(&[])), None);
    }

    #[test]
    fn oldest_candidate_leads_and_proclamations_are_reported() {
        let mut list = candidate_list();
        assert_eq!(
            key_and_revision(list.replace(&[kv("e/b", 5, 5), kv("e/a", 3, 3)])),
            Some(leads("e/a", 3))
        );
        assert_eq!(key_and_revision(list.apply(&[put(kv("e/b", 5, 6))])), None);
        assert_eq!(
            key_and_revision(list.apply(&[put(kv("e/a", 3, 7))])),
            Some(leads("e/a", 7))
        );
        assert_eq!(
            key_and_revision(list.apply(&[delete("e/a", 8)])),
            Some(leads("e/b", 6))
        );
        assert_eq!(
            key_and_revision(list.apply(&[delete("e/b", 9)])),
            Some(leads("", 0))
        );
        assert_eq!(
            key_and_revision(list.apply(&[put(kv("e/a", 10, 10))])),
            Some(leads("e/a", 10))
        );
    }

    #[test]
    fn key_recreated_in_one_revision_goes_last() {
        let mut list = candidate_list();
        list.replace(&[kv("e/a", 3, 3), kv("e/b", 5, 5)]);
        let events = [delete("e/a", 8), put(kv("e/a", 8, 8))];
        assert_eq!(key_and_revision(list.apply(&events)), Some(leads("e/b", 5)));
    }

    #[test]
    fn new_snapshot_reports_missed_change() {
        let mut list = candidate_list();
        list.replace(&[kv("e/a", 3, 3)]);
        assert_eq!(key_and_revision(list.replace(&[kv("e/a", 3, 3)])), None);
        assert_eq!(
            key_and_revision(list.replace(&[kv("e/c", 20, 20)])),
            Some(leads("e/c", 20))
        );
    }
}
