//! Checks the guarantees of a watch, over all items that one logical watch delivered.
//!
//! The guarantees are those that etcd documents: ordered, unique, atomic, reliable, resumable, bookmarkable. etcd's
//! robustness tests check them for one request on one stream. Here a record spans all streams of a watch, so they also
//! verify that no reconnect lost, repeated or split an event. The reference is a history recorded on an undisturbed
//! connection.
//!
//! A validator returns the first violation as text. [`all`] runs these six and [`truthful`].

use std::collections::{HashMap, HashSet};

mod record;

pub use record::{EventKind, History, KeyEvent, Previous, Record, Request};

/// Runs all validators and returns the first violation.
pub fn all(request: &Request, records: &[Record], history: &History) -> Result<(), String> {
    ordered(records)?;
    unique(records)?;
    atomic(records)?;
    bookmarkable(records)?;
    resumable(request, records, history)?;
    reliable(request, records, history)?;
    truthful(request, records, history)
}

/// **Ordered:** events arrive in the order of their revisions.
pub fn ordered(records: &[Record]) -> Result<(), String> {
    let mut last = 0;
    for (index, change) in changes(records) {
        if change.mod_revision < last {
            return Err(format!(
                "not ordered: item {index} has revision {} after {last}",
                change.mod_revision
            ));
        }
        last = change.mod_revision;
    }
    Ok(())
}

/// **Unique:** no event is delivered twice.
pub fn unique(records: &[Record]) -> Result<(), String> {
    let mut seen = HashMap::new();
    for (index, change) in changes(records) {
        if let Some(first) = seen.insert((change.mod_revision, &change.key), index) {
            return Err(format!(
                "not unique: item {index} repeats {} of item {first}",
                describe(change)
            ));
        }
    }
    Ok(())
}

/// **Atomic:** all events of a revision are in one item, and an item has only one revision.
pub fn atomic(records: &[Record]) -> Result<(), String> {
    let mut seen = HashSet::new();
    for (index, record) in records.iter().enumerate() {
        let Record::Events { revision, events } = record else {
            continue;
        };
        if events.is_empty() {
            return Err(format!(
                "not atomic: item {index} of revision {revision} is empty"
            ));
        }
        if let Some(other) = events
            .iter()
            .find(|change| change.mod_revision != *revision)
        {
            return Err(format!(
                "not atomic: item {index} of revision {revision} has {}",
                describe(other)
            ));
        }
        if !seen.insert(revision) {
            return Err(format!(
                "not atomic: item {index} continues revision {revision}"
            ));
        }
    }
    Ok(())
}

/// **Bookmarkable:** progress never decreases, and no event at or before it follows.
pub fn bookmarkable(records: &[Record]) -> Result<(), String> {
    let (mut bookmark, mut last_event) = (0, 0);
    for (index, record) in records.iter().enumerate() {
        match record {
            Record::Progress(revision) | Record::Resynced(revision) => {
                if *revision < bookmark {
                    return Err(format!(
                        "not bookmarkable: item {index} is progress {revision} after {bookmark}"
                    ));
                }
                if *revision < last_event {
                    return Err(format!(
                        "not bookmarkable: item {index} is progress {revision} after events of {last_event}"
                    ));
                }
                bookmark = *revision;
            }
            Record::Events { events, .. } => {
                for change in events {
                    if change.mod_revision <= bookmark {
                        return Err(format!(
                            "not bookmarkable: item {index} has {} after progress {bookmark}",
                            describe(change)
                        ));
                    }
                    last_event = last_event.max(change.mod_revision);
                }
            }
            Record::Disconnected | Record::Resumed | Record::Paused => {}
        }
    }
    Ok(())
}

/// **Resumable:** the first event is the first change at or after the start revision.
pub fn resumable(request: &Request, records: &[Record], history: &History) -> Result<(), String> {
    if request.start_revision == 0 {
        return Ok(());
    }
    let before_events = records
        .iter()
        .take_while(|record| !matches!(record, Record::Events { .. }));
    if before_events
        .clone()
        .any(|record| matches!(record, Record::Resynced(_)))
    {
        return Ok(());
    }
    let Some((_, first)) = changes(records).next() else {
        return Ok(());
    };
    let start = request.start_revision;
    match history.matching(request, start, i64::MAX).next() {
        Some(expected) if expected.mod_revision == first.mod_revision => Ok(()),
        Some(expected) => Err(format!(
            "not resumable: the first change from revision {start} is {}, got {}",
            describe(expected),
            describe(first)
        )),
        None => Err(format!(
            "not resumable: no change from revision {start}, got {}",
            describe(first)
        )),
    }
}

/// **Reliable:** from the start to the last reported revision, no event is missing and none is invented.
/// Progress counts as reported: the events before it must have been delivered even if no event followed.
pub fn reliable(request: &Request, records: &[Record], history: &History) -> Result<(), String> {
    let reported_revision = |record: &Record| match record {
        Record::Events { events, .. } => events.last().map(|change| change.mod_revision),
        Record::Progress(revision) | Record::Resynced(revision) => Some(*revision),
        Record::Disconnected | Record::Resumed | Record::Paused => None,
    };
    let Some(last) = records.iter().filter_map(reported_revision).max() else {
        return Ok(());
    };
    // A watch without a start revision begins at its first reported revision.
    let first = match (
        request.start_revision,
        records
            .iter()
            .find(|record| reported_revision(record).is_some()),
    ) {
        (0, Some(Record::Progress(revision) | Record::Resynced(revision))) => revision + 1,
        (0, Some(Record::Events { revision, .. })) => *revision,
        (start, _) => start,
    };
    let expected = history
        .matching(request, first, last)
        .filter(|change| !covered_by_resync(records, change.mod_revision));
    let mut expected: Vec<&KeyEvent> = expected.collect();
    let mut got: Vec<&KeyEvent> = changes(records).map(|(_, change)| change).collect();
    // The order within a revision is not specified.
    expected.sort_by_key(|change| (change.mod_revision, &change.key));
    got.sort_by_key(|change| (change.mod_revision, &change.key));
    let position = |change: &KeyEvent| (change.mod_revision, change.key.clone());
    for (index, missing) in expected.iter().enumerate() {
        match got.get(index) {
            Some(change) if position(change) == position(missing) => {}
            Some(change) if position(change) < position(missing) => {
                return Err(format!(
                    "not reliable: {} never happened or was not requested",
                    describe(change)
                ));
            }
            _ => return Err(format!("not reliable: {} is missing", describe(missing))),
        }
    }
    match got.get(expected.len()) {
        Some(change) => Err(format!(
            "not reliable: {} never happened or was not requested",
            describe(change)
        )),
        None => Ok(()),
    }
}

/// **Truthful:** the content of each event, and its previous state if present, match the history.
pub fn truthful(request: &Request, records: &[Record], history: &History) -> Result<(), String> {
    let mut expected = HashMap::new();
    let mut state: HashMap<&[u8], Previous> = HashMap::new();
    for revision in history.revisions() {
        for change in revision {
            let key = change.key.as_slice();
            expected.insert(
                (change.mod_revision, key),
                (change, state.get(key).cloned()),
            );
            match change.kind {
                EventKind::Put => {
                    let current = Previous {
                        value: change.value.clone(),
                        mod_revision: change.mod_revision,
                    };
                    state.insert(key, current);
                }
                EventKind::Delete => {
                    state.remove(key);
                }
            }
        }
    }
    for (index, got) in changes(records) {
        let Some((actual, before)) = expected.get(&(got.mod_revision, got.key.as_slice())) else {
            return Err(format!(
                "not truthful: item {index} has {}, which never happened",
                describe(got)
            ));
        };
        if (KeyEvent {
            previous: None,
            ..got.clone()
        }) != (KeyEvent {
            previous: None,
            ..(*actual).clone()
        }) {
            return Err(format!(
                "not truthful: item {index} has {got:?}, but the history has {actual:?}"
            ));
        }
        match (&got.previous, before) {
            // The server may have compacted the previous state.
            (None, _) => {}
            (Some(_), _) if !request.prev_kv => {
                return Err(format!(
                    "not truthful: item {index}, {}: the previous state was not requested",
                    describe(got)
                ));
            }
            (Some(previous), Some(before)) if previous == before => {}
            (Some(previous), before) => {
                return Err(format!(
                    "not truthful: item {index}, {}: the previous state was {before:?}, got {previous:?}",
                    describe(got)
                ));
            }
        }
    }
    Ok(())
}

fn changes(records: &[Record]) -> impl Iterator<Item = (usize, &KeyEvent)> {
    records.iter().enumerate().flat_map(|(index, record)| {
        let events = match record {
            Record::Events { events, .. } => events.as_slice(),
            _ => &[],
        };
        events.iter().map(move |change| (index, change))
    })
}

/// Returns whether a revision is after the last one reported before a resync, and at or before the resync's own.
fn covered_by_resync(records: &[Record], revision: i64) -> bool {
    let mut last = 0;
    for record in records {
        match record {
            Record::Resynced(resync) if last < revision && revision <= *resync => return true,
            Record::Resynced(reported)
            | Record::Progress(reported)
            | Record::Events {
                revision: reported, ..
            } => {
                last = last.max(*reported);
            }
            Record::Disconnected | Record::Resumed | Record::Paused => {}
        }
    }
    false
}

fn describe(change: &KeyEvent) -> String {
    let kind = match change.kind {
        EventKind::Put => "put",
        EventKind::Delete => "delete",
    };
    format!(
        "{kind} of {:?} at revision {}",
        String::from_utf8_lossy(&change.key),
        change.mod_revision
    )
}

#[cfg(test)]
mod tests;
