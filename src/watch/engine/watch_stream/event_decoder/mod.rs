//! Decodes event responses directly from the wire, for busy watches.
//!
//! A watch that receives one write at a time receives one response for each, and decoding a response with the generated
//! code costs more than decoding its event. So a response that contains only events is decoded here, and the events of
//! a following response for the same watch are appended to the same list. The generated code decodes all other
//! responses: every function here returns `None` or `false` for a response it does not handle.

use std::ops::Range;

use bytes::Bytes;
use prost::Message;

use crate::proto::{
    Event, ResponseHeader, WatchResponse,
    key_value_decoder::key_value,
    wire_reader::{WireReader, delimited, number},
};

/// A full list grows by this many times its length, as moving events costs as much as decoding them.
const GROWTH_FACTOR: usize = 3;
/// Most events a full list grows by at once.
const MAX_GROWTH: usize = 256;

/// Decodes a response that contains only events, into a list with room for `capacity` events.
pub(super) fn decode_events(message: &Bytes, capacity: usize) -> Option<WatchResponse> {
    let mut wire = WireReader::new(message, 0..message.len());
    let mut response = WatchResponse {
        events: Vec::with_capacity(capacity),
        ..WatchResponse::default()
    };
    while !wire.is_done() {
        match wire.varint()? {
            HEADER if response.header.is_none() => {
                response.header = Some(header(&mut wire)?);
            }
            WATCH_ID => response.watch_id = wire.number()?,
            EVENTS => push_event(&mut wire, &mut response.events)?,
            _ => return None,
        }
    }
    (!response.events.is_empty()).then_some(response)
}

/// Appends the events of a response that lies at `message` in `frame`, and returns `true`, if the response contains
/// only events and they belong to this watch. Otherwise appends nothing.
pub(super) fn append_events(
    frame: &Bytes,
    message: Range<usize>,
    watch_id: i64,
    events: &mut Vec<Event>,
) -> bool {
    let before = events.len();
    let wire = WireReader::new(frame, message);
    let appended = try_append(wire, watch_id, events).is_some() && events.len() > before;
    if !appended {
        events.truncate(before);
    }
    appended
}

/// Returns the watch id of a response of which only the first bytes are given. The id 0, which proxies use, is not
/// encoded: then the events follow the header.
pub(super) fn decode_watch_id(beginning: &Bytes) -> Option<i64> {
    let mut wire = WireReader::new(beginning, 0..beginning.len());
    loop {
        match wire.varint()? {
            HEADER => {
                wire.delimited()?;
            }
            WATCH_ID => return wire.number(),
            EVENTS => return Some(0),
            _ => return None,
        }
    }
}

fn try_append(mut wire: WireReader<'_>, watch_id: i64, events: &mut Vec<Event>) -> Option<()> {
    // The id precedes the events; in any other order it is unknown to which watch they belong.
    let mut is_this_watch = false;
    while !wire.is_done() {
        match wire.varint()? {
            HEADER => skip_header(wire.nested()?)?,
            WATCH_ID => is_this_watch = wire.number()? == watch_id,
            EVENTS if is_this_watch => push_event(&mut wire, events)?,
            _ => return None,
        }
    }
    is_this_watch.then_some(())
}

/// Checks that this is a header without decoding it: skipping four numbers is faster than decoding them.
fn skip_header(mut header: WireReader<'_>) -> Option<()> {
    while !header.is_done() {
        match header.varint()? {
            CLUSTER_ID | MEMBER_ID | REVISION | RAFT_TERM => header.skip_varint()?,
            _ => return None,
        }
    }
    Some(())
}

fn header(wire: &mut WireReader<'_>) -> Option<ResponseHeader> {
    ResponseHeader::decode(wire.nested()?.rest()).ok()
}

fn push_event(wire: &mut WireReader<'_>, events: &mut Vec<Event>) -> Option<()> {
    let encoded = wire.nested()?;
    if events.len() == events.capacity() {
        let rest_at_same_size = wire.remaining() / encoded.remaining().max(1);
        let growth = (events.len() * GROWTH_FACTOR).max(rest_at_same_size + 1);
        if events.is_empty() {
            // Most responses contain one event, and `reserve` would make room for four.
            events.reserve_exact(growth.min(MAX_GROWTH));
        } else {
            events.reserve(growth.min(MAX_GROWTH));
        }
    }
    events.push(event(encoded)?);
    Some(())
}

fn event(mut wire: WireReader<'_>) -> Option<Event> {
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

#[cfg(test)]
mod tests;
