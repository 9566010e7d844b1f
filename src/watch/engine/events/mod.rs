//! Events straight from the wire, for a busy watch.
//!
//! A watch that gets a write at a time gets an answer each, and to decode an answer costs more than to decode its event. So
//! an answer that is nothing but events is read here, and more events for the watch the last one was about go into the
//! same list. Whatever else it may be is left to the generated code.

use std::ops::Range;

use bytes::Bytes;
use prost::Message;

use crate::proto::{Event, KeyValue, ResponseHeader, WatchResponse};

/// A list that is full grows fourfold: to move events costs as much as to read them.
const GROWTH: usize = 3;
/// But not by more than this at once.
const GROWTH_AT_MOST: usize = 256;

/// Reads an answer that has nothing but events, into a list with room for so many at first.
pub(crate) fn read(answer: &Bytes, room: usize) -> Option<WatchResponse> {
    let mut wire = Reader::of(answer, 0..answer.len());
    let mut response = WatchResponse {
        events: Vec::with_capacity(room),
        ..WatchResponse::default()
    };
    while !wire.is_done() {
        match wire.varint()? {
            HEADER if response.header.is_none() => {
                response.header = Some(header(&mut wire)?);
            }
            WATCH_ID => response.watch_id = wire.number()?,
            EVENTS => push(&mut wire, &mut response.events)?,
            _ => return None,
        }
    }
    (!response.events.is_empty()).then_some(response)
}

/// Appends the events of an answer, which is a part of a frame, if it has nothing but events, and they are for this
/// watch. Otherwise nothing is appended.
pub(crate) fn append(
    frame: &Bytes,
    answer: Range<usize>,
    watch_id: i64,
    events: &mut Vec<Event>,
) -> bool {
    let before = events.len();
    let answer = Reader::of(frame, answer);
    let appended = answer_events(answer, watch_id, events).is_some() && events.len() > before;
    if !appended {
        events.truncate(before);
    }
    appended
}

/// The watch an answer is for, by its beginning.
pub(crate) fn addressee(beginning: &Bytes) -> Option<i64> {
    let mut wire = Reader::of(beginning, 0..beginning.len());
    loop {
        match wire.varint()? {
            HEADER => {
                wire.delimited()?;
            }
            WATCH_ID => return wire.number(),
            _ => return None,
        }
    }
}

fn answer_events(mut answer: Reader<'_>, watch_id: i64, events: &mut Vec<Event>) -> Option<()> {
    // The id comes before the events; where it does not, nothing is known of whose they are.
    let mut ours = false;
    while !answer.is_done() {
        match answer.varint()? {
            HEADER => skip_header(answer.nested()?)?,
            WATCH_ID => ours = answer.number()? == watch_id,
            EVENTS if ours => push(&mut answer, events)?,
            _ => return None,
        }
    }
    ours.then_some(())
}

/// Nothing of it is needed, but it has to be one. Four numbers are passed over in less time than they are decoded.
fn skip_header(mut header: Reader<'_>) -> Option<()> {
    while !header.is_done() {
        match header.varint()? {
            CLUSTER_ID | MEMBER_ID | REVISION | RAFT_TERM => header.skip_varint()?,
            _ => return None,
        }
    }
    Some(())
}

fn header(answer: &mut Reader<'_>) -> Option<ResponseHeader> {
    let (from, end) = answer.delimited()?;
    ResponseHeader::decode(&answer.wire[from..end]).ok()
}

fn push(answer: &mut Reader<'_>, events: &mut Vec<Event>) -> Option<()> {
    let wire = answer.nested()?;
    if events.len() == events.capacity() {
        let alike = answer.left() / wire.left().max(1);
        let grown = (events.len() * GROWTH).max(alike + 1).min(GROWTH_AT_MOST);
        events.reserve(grown);
    }
    events.push(event(wire)?);
    Some(())
}

fn event(mut wire: Reader<'_>) -> Option<Event> {
    let mut kind = 0;
    let mut kv = None;
    let mut prev_kv = None;
    while !wire.is_done() {
        match wire.varint()? {
            TYPE => kind = i32::try_from(wire.number()?).ok()?,
            KV if kv.is_none() => kv = Some(key_value(wire.nested()?)?),
            PREV_KV if prev_kv.is_none() => {
                prev_kv = Some(Box::new(key_value(wire.nested()?)?));
            }
            _ => return None,
        }
    }
    Some(Event {
        r#type: kind,
        kv,
        prev_kv,
    })
}

fn key_value(mut wire: Reader<'_>) -> Option<KeyValue> {
    let (mut key, mut value) = ((0, 0), (0, 0));
    let (mut create_revision, mut mod_revision, mut version, mut lease) = (0, 0, 0, 0);
    while !wire.is_done() {
        match wire.varint()? {
            KEY => key = wire.delimited()?,
            CREATE_REVISION => create_revision = wire.number()?,
            MOD_REVISION => mod_revision = wire.number()?,
            VERSION => version = wire.number()?,
            VALUE => value = wire.delimited()?,
            LEASE => lease = wire.number()?,
            _ => return None,
        }
    }
    Some(KeyValue {
        key: wire.frame.slice(key.0..key.1),
        create_revision,
        mod_revision,
        version,
        value: wire.frame.slice(value.0..value.1),
        lease,
    })
}

const fn number(field: u64) -> u64 {
    field << 3
}

const fn delimited(field: u64) -> u64 {
    field << 3 | 2
}

const HEADER: u64 = delimited(1);
const WATCH_ID: u64 = number(2);
const EVENTS: u64 = delimited(11);

const CLUSTER_ID: u64 = number(1);
const MEMBER_ID: u64 = number(2);
const REVISION: u64 = number(3);
const RAFT_TERM: u64 = number(4);

const TYPE: u64 = number(1);
const KV: u64 = delimited(2);
const PREV_KV: u64 = delimited(3);

const KEY: u64 = delimited(1);
const CREATE_REVISION: u64 = number(2);
const MOD_REVISION: u64 = number(3);
const VERSION: u64 = number(4);
const VALUE: u64 = delimited(5);
const LEASE: u64 = number(6);

/// A part of a frame being read; every method gives `None` where the part ends too soon.
struct Reader<'a> {
    /// The whole frame, of which keys and values are parts.
    frame: &'a Bytes,
    /// The same as bytes, up to the end of this part.
    wire: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn of(frame: &'a Bytes, part: Range<usize>) -> Self {
        Self {
            frame,
            wire: &frame[..part.end],
            at: part.start,
        }
    }

    fn left(&self) -> usize {
        self.wire.len() - self.at
    }

    fn is_done(&self) -> bool {
        self.at == self.wire.len()
    }

    fn varint(&mut self) -> Option<u64> {
        let first = *self.wire.get(self.at)?;
        // Keys of fields and most lengths are one byte.
        if first & 0x80 == 0 {
            self.at += 1;
            return Some(u64::from(first));
        }
        let mut value = 0;
        for (nth, byte) in self.wire[self.at..].iter().take(9).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * nth);
            if byte & 0x80 == 0 {
                self.at += nth + 1;
                return Some(value);
            }
        }
        // Ten bytes are a negative number, which no field here should be.
        None
    }

    /// Passes over a number of up to 64 bits: ids use them all.
    fn skip_varint(&mut self) -> Option<()> {
        let bytes = &self.wire[self.at..];
        let nth = bytes.iter().take(10).position(|byte| byte & 0x80 == 0)?;
        if nth == 9 && bytes[nth] > 1 {
            return None;
        }
        self.at += nth + 1;
        Some(())
    }

    fn number(&mut self) -> Option<i64> {
        i64::try_from(self.varint()?).ok()
    }

    fn delimited(&mut self) -> Option<(usize, usize)> {
        let length = usize::try_from(self.varint()?).ok()?;
        if length > self.left() {
            return None;
        }
        let from = self.at;
        self.at += length;
        Some((from, self.at))
    }

    fn nested(&mut self) -> Option<Reader<'a>> {
        let (at, end) = self.delimited()?;
        Some(Reader {
            frame: self.frame,
            wire: &self.wire[..end],
            at,
        })
    }
}

#[cfg(test)]
mod tests;
