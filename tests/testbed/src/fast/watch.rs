//! Watch streams: sends events as fast as flow control allows.
//!
//! To avoid the cost of encoding, a batch is encoded once and only its revisions are overwritten. Revisions start at
//! the first number whose varint has five bytes, which suffices for 34 billion events. To avoid the cost of system
//! calls, responses are packed into frames of the largest size that HTTP/2 allows by default.

use bytes::{Bytes, BytesMut};
use h2::{RecvStream, SendStream};
use http::Request;
use prost::Message;

use super::WatchPlan;
use crate::scripted::{Receiver, ResponseHeader, Sender, StatusResponse, framed};

const FIRST_REVISION: i64 = 1 << 28;
const VARINT_LEN: usize = 5;
const FRAME_LEN: usize = 16_384;

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
    pub(super) fn with_revision(revision: i64, value_size: usize) -> Self {
        let kv = KeyValue {
            key: Bytes::from_static(b"bench/key"),
            create_revision: 1,
            mod_revision: revision,
            version: 1,
            value: vec![b'v'; value_size].into(),
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
    let setting = |name: &str, default: u64| {
        let value = request
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok());
        value
            .and_then(|value| value.parse().ok())
            .unwrap_or(default)
    };
    let (events, batch) = (
        setting("x-events", plan.events),
        setting("x-batch", plan.batch).max(1),
    );
    let value_size =
        usize::try_from(setting("x-value", plan.value_size as u64)).unwrap_or(plan.value_size);
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
            let mut remaining = events;
            let mut response = Batch::new(create.watch_id, batch, value_size);
            let mut frame = BytesMut::with_capacity(FRAME_LEN);
            while remaining > 0 {
                if remaining < batch {
                    response = Batch::new(create.watch_id, remaining, value_size);
                }
                frame.extend_from_slice(response.with_revisions_from(revision));
                let sent = remaining.min(batch);
                revision += i64::try_from(sent).unwrap_or_default();
                remaining -= sent;
                while frame.len() >= FRAME_LEN || (remaining == 0 && !frame.is_empty()) {
                    let chunk = frame.split_to(frame.len().min(FRAME_LEN));
                    if sender.send_raw(chunk.freeze()).await.is_err() {
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

/// An encoded response whose revisions can be overwritten.
struct Batch {
    bytes: BytesMut,
    /// Offsets of the revisions in `bytes`: the header's, then those of the events.
    offsets: Vec<usize>,
}

impl Batch {
    fn new(watch_id: i64, events: u64, value_size: usize) -> Self {
        let revisions = FIRST_REVISION..FIRST_REVISION + i64::try_from(events).unwrap_or(1);
        let last = revisions.end - 1;
        let events = revisions
            .clone()
            .map(|revision| Event::with_revision(revision, value_size))
            .collect();
        let message = WatchResponse {
            events,
            ..response(watch_id, last)
        };
        let bytes = BytesMut::from(framed(&message.encode_to_vec()));
        let mut offsets = Vec::new();
        let mut search_from = 0;
        for revision in std::iter::once(last).chain(revisions) {
            // The revision is field 3 of both the header and a key-value.
            let mut field = vec![3 << 3];
            field.extend(varint(revision));
            let found = bytes[search_from..]
                .windows(field.len())
                .position(|window| window == field);
            let offset =
                search_from + found.expect("the encoded message contains the revision") + 1;
            offsets.push(offset);
            search_from = offset + VARINT_LEN;
        }
        Self { bytes, offsets }
    }

    /// Overwrites the revisions, starting at `first`, and returns the encoded response.
    fn with_revisions_from(&mut self, first: i64) -> &[u8] {
        let last = first + i64::try_from(self.offsets.len()).unwrap_or_default() - 2;
        for (revision, offset) in std::iter::once(last).chain(first..).zip(&self.offsets) {
            self.bytes[*offset..offset + VARINT_LEN].copy_from_slice(&varint(revision));
        }
        &self.bytes
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "masked to seven bits"
)]
fn varint(number: i64) -> [u8; VARINT_LEN] {
    let bits = |index: usize| (number >> (7 * index)) as u8 & 0x7f;
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
    fn batch_carries_the_given_revisions() {
        let mut batch = Batch::new(7, 3, 5);
        for first in [FIRST_REVISION, FIRST_REVISION + 12_345] {
            let message = WatchResponse::decode(&batch.with_revisions_from(first)[5..]).unwrap();
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
