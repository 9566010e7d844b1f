//! The leases a client keeps, each in a numbered place.
//!
//! A keepalive finds its lease by the number, without a search: with ten thousand of them, what is looked for in memory
//! is what a keepalive costs.

use std::{sync::Arc, time::Duration};

use actix::Addr;

use super::{actor::LeaseActor, cell::LeaseCell, deadline::Deadline};
use crate::connection::EndpointId;

/// Where a lease is found. A place that was left has another generation for the next lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    index: u32,
    generation: u32,
}

impl Place {
    pub(crate) fn index(self) -> u32 {
        self.index
    }
}

/// A lease that is kept.
pub(crate) struct Kept {
    pub(crate) deadline: Deadline,
    pub(crate) asked: Asked,
    pub(crate) cell: Arc<LeaseCell>,
    pub(crate) actor: Addr<LeaseActor>,
}

/// Where the last keepalive of a lease went.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Asked {
    pub(crate) stream: u64,
    pub(crate) member: Option<EndpointId>,
    /// It did not: it waits for a member that can be asked.
    pub(crate) parked: bool,
}

/// A keepalive that is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Renewal {
    pub(crate) lease: i64,
    /// Of a lease that is kept.
    pub(crate) place: Option<Place>,
    /// Not by the member that was asked last: it has been silent for longer than `patience`.
    pub(crate) elsewhere: bool,
    pub(crate) patience: Duration,
}

/// All of them.
pub(crate) struct Places<T = Kept> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

struct Entry<T> {
    generation: u32,
    lease: Option<T>,
}

impl<T> Places<T> {
    /// The first index is nobody's: it is left to who keeps the places.
    pub(crate) fn new() -> Self {
        Self {
            entries: vec![Entry {
                generation: 0,
                lease: None,
            }],
            free: Vec::new(),
        }
    }

    /// Takes a place; what comes to be there may know where it is.
    pub(crate) fn enter(&mut self, lease: impl FnOnce(Place) -> T) -> Place {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry {
                generation: 0,
                lease: None,
            });
            u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
        });
        let entry = &mut self.entries[index as usize];
        let place = Place {
            index,
            generation: entry.generation,
        };
        entry.lease = Some(lease(place));
        place
    }

    pub(crate) fn leave(&mut self, place: Place) -> Option<T> {
        let entry = self.entries.get_mut(place.index as usize)?;
        if entry.generation != place.generation {
            return None;
        }
        let left = entry.lease.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(place.index);
        Some(left)
    }

    pub(crate) fn get_mut(&mut self, place: Place) -> Option<&mut T> {
        let entry = self.entries.get_mut(place.index as usize)?;
        let is_meant = entry.generation == place.generation;
        entry.lease.as_mut().filter(|_| is_meant)
    }

    /// Who is at an index now.
    pub(crate) fn at(&mut self, index: u32) -> Option<(Place, &mut T)> {
        let entry = self.entries.get_mut(index as usize)?;
        let place = Place {
            index,
            generation: entry.generation,
        };
        entry.lease.as_mut().map(|lease| (place, lease))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let entries = (0..).zip(&self.entries);
        entries.filter_map(|(index, entry)| Some((index, entry.lease.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_was_left_does_not_lead_to_the_next_lease_there() {
        let mut places = Places::new();
        let first = places.enter(|_| "first");
        assert!(first.index() > 0, "the first index is nobody's");
        assert_eq!(places.leave(first), Some("first"));
        let second = places.enter(|_| "second");
        assert_eq!(second.index(), first.index(), "places are used again");
        assert_eq!(places.get_mut(first), None);
        assert_eq!(places.leave(first), None);
        assert_eq!(places.get_mut(second), Some(&mut "second"));
        assert_eq!(places.at(second.index()), Some((second, &mut "second")));
    }

    #[test]
    fn everybody_is_found_but_who_left() {
        let mut places = Places::new();
        let all: Vec<_> = (0..5).map(|n| places.enter(|_| n)).collect();
        places.leave(all[2]);
        let found: Vec<_> = places.iter().map(|(_, n)| *n).collect();
        assert_eq!(found, [0, 1, 3, 4]);
    }
}
