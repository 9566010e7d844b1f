//! The promises of a watch, checked over everything one logical watch delivered.
//!
//! etcd's own robustness tests check one request on one stream. Here the record spans all streams
//! of a watch, so the same six promises also say that no reconnect lost, repeated or split anything:
//! ordered, unique, atomic, reliable, resumable, bookmarkable. The truth is a history recorded on an
//! undisturbed connection.
//!
//! A validator gives the first violation as text. [`all`] runs the six and the check of each event.

use std::collections::{HashMap, HashSet};

mod record;

pub use record::{EventKind, History, KeyEvent, Previous, Record, Request};

/// Runs every validator and gives the first violation.
pub fn all(request: &Request, records: &[Record], history: &History) -> Result<(), String> {
    ordered(records)?;
    unique(records)?;
    atomic(records)?;
    bookmarkable(records)?;
    resumable(request, records, history)?;
    reliable(request, records, history)?;
    truthful(request, records, history)
}

/// **Ordered:** events come in the order of their revisions.
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

/// **Unique:** no event comes twice.
pub fn unique(records: &[Record]) -> Result<(), String> {
    let mut seen = HashMap::new();
    for (index, change) in changes(records) {
        if let Some(first) = seen.insert((change.mod_revision, &change.key), index) {
            return Err(format!(
                "not unique: item {index} repeats {} of item {first}",
                name(change)
            ));
        }
    }
    Ok(())
}

/// **Atomic:** a revision is never spread over two items, and an item is one revision.
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
                name(other)
            ));
        }
        if !seen.insert(revision) {
            return Err(format!(
                "not atomic: item {index} goes on with revision {revision}"
            ));
        }
    }
    Ok(())
}

/// **Bookmarkable:** progress never goes back, and nothing up to it comes after it.
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
                            name(change)
                        ));
                    }
                    last_event = last_event.max(change.mod_revision);
                }
            }
            Record::Disconnected | Record::Resumed | Record::Lagging => {}
        }
    }
    Ok(())
}

/// **Resumable:** the first event is the first one there is from the start revision on.
pub fn resumable(request: &Request, records: &[Record], history: &History) -> Result<(), String> {
    if request.start_revision == 0 {
        return Ok(());
    }
    let resynced = records
        .iter()
        .take_while(|record| !matches!(record, Record::Events { .. }));
    if resynced
        .clone()
        .any(|record| matches!(record, Record::Resynced(_)))
    {
        return Ok(());
    }
    let Some((_, first)) = changes(records).next() else {
        return Ok(());
    };
    let start = request.start_revision;
    match history.wanted(request, start, i64::MAX).next() {
        Some(expected) if expected.mod_revision == first.mod_revision => Ok(()),
        Some(expected) => Err(format!(
            "not resumable: from revision {start} on the first is {}, got {}",
            name(expected),
            name(first)
        )),
        None => Err(format!(
            "not resumable: nothing happened from revision {start} on, got {}",
            name(first)
        )),
    }
}

/// **Reliable:** between the start and the last thing told, nothing is missing and nothing is made up.
/// Progress counts: what lies before it has to be there although no event followed.
pub fn reliable(request: &Request, records: &[Record], history: &History) -> Result<(), String> {
    let told = |record: &Record| match record {
        Record::Events { events, .. } => events.last().map(|change| change.mod_revision),
        Record::Progress(revision) | Record::Resynced(revision) => Some(*revision),
        Record::Disconnected | Record::Resumed | Record::Lagging => None,
    };
    let Some(last) = records.iter().filter_map(told).max() else {
        return Ok(());
    };
    // A watch from now on begins where it first says that it is.
    let first = match (
        request.start_revision,
        records.iter().find(|record| told(record).is_some()),
    ) {
        (0, Some(Record::Progress(revision) | Record::Resynced(revision))) => revision + 1,
        (0, Some(Record::Events { revision, .. })) => *revision,
        (start, _) => start,
    };
    let expected = history
        .wanted(request, first, last)
        .filter(|change| !read_anew(records, change.mod_revision));
    let mut expected: Vec<&KeyEvent> = expected.collect();
    let mut got: Vec<&KeyEvent> = changes(records).map(|(_, change)| change).collect();
    // Within a revision the order is the server's own.
    expected.sort_by_key(|change| (change.mod_revision, &change.key));
    got.sort_by_key(|change| (change.mod_revision, &change.key));
    let position = |change: &KeyEvent| (change.mod_revision, change.key.clone());
    for (index, wanted) in expected.iter().enumerate() {
        match got.get(index) {
            Some(change) if position(change) == position(wanted) => {}
            Some(change) if position(change) < position(wanted) => {
                return Err(format!(
                    "not reliable: {} never happened or was not asked for",
                    name(change)
                ));
            }
            _ => return Err(format!("not reliable: {} is missing", name(wanted))),
        }
    }
    match got.get(expected.len()) {
        Some(change) => Err(format!(
            "not reliable: {} never happened or was not asked for",
            name(change)
        )),
        None => Ok(()),
    }
}

/// **Truthful:** every event says what happened, and before it only what was.
pub fn truthful(request: &Request, records: &[Record], history: &History) -> Result<(), String> {
    let mut truth = HashMap::new();
    let mut state: HashMap<&[u8], Previous> = HashMap::new();
    for changes in history.revisions() {
        for change in changes {
            let key = change.key.as_slice();
            truth.insert(
                (change.mod_revision, key),
                (change, state.get(key).cloned()),
            );
            match change.kind {
                EventKind::Put => {
                    let now = Previous {
                        value: change.value.clone(),
                        mod_revision: change.mod_revision,
                    };
                    state.insert(key, now);
                }
                EventKind::Delete => {
                    state.remove(key);
                }
            }
        }
    }
    for (index, got) in changes(records) {
        let Some((was, before)) = truth.get(&(got.mod_revision, got.key.as_slice())) else {
            return Err(format!(
                "not truthful: item {index} has {}, which never happened",
                name(got)
            ));
        };
        if (KeyEvent {
            previous: None,
            ..got.clone()
        }) != (KeyEvent {
            previous: None,
            ..(*was).clone()
        }) {
            return Err(format!(
                "not truthful: item {index} has {got:?}, but it was {was:?}"
            ));
        }
        match (&got.previous, before) {
            // The server may have compacted it away.
            (None, _) => {}
            (Some(_), _) if !request.prev_kv => {
                return Err(format!(
                    "not truthful: item {index}, {}: nobody asked for the state before",
                    name(got)
                ));
            }
            (Some(told), Some(before)) if told == before => {}
            (Some(told), before) => {
                return Err(format!(
                    "not truthful: item {index}, {}: before it was {before:?}, told {told:?}",
                    name(got)
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

/// Whether a revision lies between what was told before a resync and the revision of its read.
fn read_anew(records: &[Record], revision: i64) -> bool {
    let mut last = 0;
    for record in records {
        match record {
            Record::Resynced(read) if last < revision && revision <= *read => return true,
            Record::Resynced(told)
            | Record::Progress(told)
            | Record::Events { revision: told, .. } => {
                last = last.max(*told);
            }
            Record::Disconnected | Record::Resumed | Record::Lagging => {}
        }
    }
    false
}

fn name(change: &KeyEvent) -> String {
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
