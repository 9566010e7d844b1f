//! Events as fast as flow control lets them go.
//!
//! Encoding would be the bottleneck, so a batch is encoded once and only its revisions are written anew: they start
//! where a varint has five bytes, and stay there for 34 thousand million events. Then system calls would be, so answers
//! fill frames as large as HTTP/2 allows by default.

use bytes::{Bytes, BytesMut};
use h2::{RecvStream, SendStream};
use http::Request;
use prost::Message;

use super::WatchPlan;
use crate::scripted::{Receiver, ResponseHeader, Sender, StatusResponse, framed};

const FIRST_REVISION: i64 = 1 << 28;
const VARINT: usize = 5;
const FRAME: usize = 16_384;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    #[prost(int64, tag = "2")]
    pub create_revision: i64,
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    #[prost(int64, tag = "4")]
    pub version: i64,
    #[prost(bytes = "bytes", tag = "5")]
    pub value: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Event {
    #[prost(message, optional, tag = "2")]
    pub kv: Option<KeyValue>,
}

impl Event {
    pub(super) fn numbered(revision: i64, value: usize) -> Self {
        let kv = KeyValue {
            key: Bytes::from_static(b"bench/key"),
            create_revision: 1,
            mod_revision: revision,
            version: 1,
            value: vec![b'v'; value].into(),
        };
        Self { kv: Some(kv) }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct CreateRequest {
    #[prost(int64, tag = "7")]
    watch_id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CancelRequest {
    #[prost(int64, tag = "1")]
    watch_id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    create: Option<CreateRequest>,
    #[prost(message, optional, tag = "2")]
    cancel: Option<CancelRequest>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
    #[prost(int64, tag = "2")]
    watch_id: i64,
    #[prost(bool, tag = "3")]
    created: bool,
    #[prost(bool, tag = "4")]
    canceled: bool,
    #[prost(message, repeated, tag = "11")]
    events: Vec<Event>,
}

fn response(watch_id: i64, revision: i64) -> WatchResponse {
    let header = ResponseHeader {
        revision,
        ..StatusResponse::healthy().header.unwrap_or_default()
    };
    WatchResponse {
        header: Some(header),
        watch_id,
        ..WatchResponse::default()
    }
}

pub(super) async fn serve(
    request: Request<RecvStream>,
    stream: SendStream<Bytes>,
    plan: WatchPlan,
) {
    let asked = |name: &str, default: u64| {
        let value = request
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok());
        value
            .and_then(|value| value.parse().ok())
            .unwrap_or(default)
    };
    let (events, batch) = (
        asked("x-events", plan.events),
        asked("x-batch", plan.batch).max(1),
    );
    let value = usize::try_from(asked("x-value", plan.value as u64)).unwrap_or(plan.value);
    let mut sender = Sender::new(stream, Vec::new());
    let mut receiver = Receiver::new(request.into_body());
    let mut revision = FIRST_REVISION;
    while let Some(request) = receiver.recv_message::<WatchRequest>().await {
        if let Some(create) = request.create {
            let created = WatchResponse {
                created: true,
                ..response(create.watch_id, revision - 1)
            };
            if sender.send(&created).await.is_err() {
                return;
            }
            let mut left = events;
            let mut answer = Batch::new(create.watch_id, batch, value);
            let mut frame = BytesMut::with_capacity(FRAME);
            while left > 0 {
                if left < batch {
                    answer = Batch::new(create.watch_id, left, value);
                }
                frame.extend_from_slice(answer.numbered(revision));
                let now = left.min(batch);
                revision += i64::try_from(now).unwrap_or_default();
                left -= now;
                while frame.len() >= FRAME || (left == 0 && !frame.is_empty()) {
                    let full = frame.split_to(frame.len().min(FRAME));
                    if sender.send_raw(full.freeze()).await.is_err() {
                        return;
                    }
                }
            }
        }
        if let Some(cancel) = request.cancel {
            let canceled = WatchResponse {
                canceled: true,
                ..response(cancel.watch_id, revision - 1)
            };
            if sender.send(&canceled).await.is_err() {
                return;
            }
        }
    }
}

/// An answer that is encoded but for its revisions.
struct Batch {
    bytes: BytesMut,
    /// Where the header's revision is, then each event's.
    places: Vec<usize>,
}

impl Batch {
    fn new(watch_id: i64, events: u64, value: usize) -> Self {
        let numbers = FIRST_REVISION..FIRST_REVISION + i64::try_from(events).unwrap_or(1);
        let last = numbers.end - 1;
        let events = numbers
            .clone()
            .map(|revision| Event::numbered(revision, value))
            .collect();
        let message = WatchResponse {
            events,
            ..response(watch_id, last)
        };
        let bytes = BytesMut::from(framed(&message.encode_to_vec()));
        let mut places = Vec::new();
        // In the order of the message: the header's first, then one an event.
        let mut from = 0;
        for revision in std::iter::once(last).chain(numbers) {
            // Field 3 of the header and of a key-value are both their revision.
            let mut wanted = vec![3 << 3];
            wanted.extend(varint(revision));
            let found = bytes[from..]
                .windows(wanted.len())
                .position(|window| window == wanted);
            let place = from + found.expect("a revision is in the message that has it") + 1;
            places.push(place);
            from = place + VARINT;
        }
        Self { bytes, places }
    }

    fn numbered(&mut self, first: i64) -> &[u8] {
        let last = first + i64::try_from(self.places.len()).unwrap_or_default() - 2;
        for (revision, place) in std::iter::once(last).chain(first..).zip(&self.places) {
            self.bytes[*place..place + VARINT].copy_from_slice(&varint(revision));
        }
        &self.bytes
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "seven bits at a time"
)]
fn varint(number: i64) -> [u8; VARINT] {
    let bits = |place: usize| (number >> (7 * place)) as u8 & 0x7f;
    [
        bits(0) | 0x80,
        bits(1) | 0x80,
        bits(2) | 0x80,
        bits(3) | 0x80,
        bits(4),
    ]
}

#[cfg(test)]
mod tests {
    use super::{Batch, FIRST_REVISION, Message, WatchResponse};

    #[test]
    fn a_batch_carries_the_revisions_it_is_given() {
        let mut batch = Batch::new(7, 3, 5);
        for first in [FIRST_REVISION, FIRST_REVISION + 12_345] {
            let message = WatchResponse::decode(&batch.numbered(first)[5..]).unwrap();
            let revisions: Vec<i64> = message
                .events
                .iter()
                .map(|e| e.kv.as_ref().unwrap().mod_revision)
                .collect();
            assert_eq!(revisions, [first, first + 1, first + 2]);
            assert_eq!(
                (message.watch_id, message.header.unwrap().revision),
                (7, first + 2)
            );
        }
    }
}
