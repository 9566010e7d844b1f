//! Decodes a large message while it arrives.
//!
//! The concatenation of two encoded protobuf messages is the encoding of both merged. So every frame is decoded as soon
//! as it is there, up to its last complete field: no buffer of the size of the message is needed, decoding overlaps
//! with receiving, and a key or value stays a slice of the frame that it arrived in. Only a field that spans several
//! frames is copied.

use std::any::Any;

use bytes::{Buf, Bytes, BytesMut};
use prost::{
    Message,
    encoding::{WireType, decode_key, decode_varint},
};

use super::protocol_error;
use crate::{
    error::Error,
    proto::{RangeResponse, key_value_decoder::append_key_values},
};

/// Largest buffer reserved in advance for one field, because its length can be wrong.
const MAX_RESERVED: usize = 4 << 20;
/// Length of the longest key of a field followed by the longest length.
const MAX_FIELD_START: usize = 20;

/// Decodes one message from the frames that it arrives in.
pub(super) struct IncrementalDecoder<M> {
    message: M,
    /// Bytes of the message that have not arrived.
    missing: usize,
    /// Start of a field whose end has not arrived.
    partial: BytesMut,
}

/// Length of the first field of some bytes.
#[derive(Debug, PartialEq, Eq)]
enum FieldLength {
    Known(usize),
    /// The bytes end before the length of the field.
    Unknown,
    /// The bytes are no field, or one of a group: the decoder of the message decides.
    Invalid,
}

impl<M: Message + Default + 'static> IncrementalDecoder<M> {
    /// Starts a message of `length` bytes.
    pub(super) fn new(length: usize) -> Self {
        Self {
            message: M::default(),
            missing: length,
            partial: BytesMut::new(),
        }
    }

    /// Decodes the next bytes of the message, and leaves those of the next message in `frame`.
    pub(super) fn push(&mut self, frame: &mut Bytes) -> Result<(), Error> {
        let mut bytes = frame.split_to(frame.len().min(self.missing));
        self.missing -= bytes.len();
        self.complete_partial(&mut bytes)?;
        self.take_key_values(&mut bytes);
        if bytes.is_empty() {
            return Ok(());
        }
        let complete = match complete_fields(&bytes) {
            Some(length) if self.missing > 0 => length,
            // The last bytes, or bytes whose error the decoder reports.
            _ => bytes.len(),
        };
        let rest = bytes.split_off(complete);
        self.merge(bytes)?;
        if !rest.is_empty() {
            let expected = match field_length(&rest) {
                FieldLength::Known(length) => length.min(MAX_RESERVED),
                FieldLength::Unknown | FieldLength::Invalid => rest.len(),
            };
            self.partial.reserve(expected.max(rest.len()));
            self.partial.extend_from_slice(&rest);
        }
        Ok(())
    }

    /// Drops the next bytes of the message.
    pub(super) fn skip(&mut self, frame: &mut Bytes) {
        let skipped = frame.len().min(self.missing);
        frame.advance(skipped);
        self.missing -= skipped;
    }

    /// Returns the message once all of it has arrived.
    pub(super) fn take_complete(&mut self) -> Option<M> {
        (self.missing == 0).then(|| std::mem::take(&mut self.message))
    }

    /// Moves bytes to the field that began in an earlier frame, and decodes the field once it is complete.
    fn complete_partial(&mut self, bytes: &mut Bytes) -> Result<(), Error> {
        while !self.partial.is_empty() && !bytes.is_empty() {
            let wanted = match field_length(&self.partial) {
                FieldLength::Known(length) => length.saturating_sub(self.partial.len()),
                // One byte at a time, to stop at the end of the field.
                FieldLength::Unknown => 1,
                FieldLength::Invalid => bytes.len(),
            };
            let taken = bytes.split_to(wanted.min(bytes.len()));
            self.partial.extend_from_slice(&taken);
            let is_complete = match field_length(&self.partial) {
                FieldLength::Known(length) => length <= self.partial.len(),
                FieldLength::Unknown => self.missing == 0 && bytes.is_empty(),
                FieldLength::Invalid => true,
            };
            if is_complete || (self.missing == 0 && bytes.is_empty()) {
                let field = std::mem::take(&mut self.partial).freeze();
                self.merge(field)?;
            }
        }
        Ok(())
    }

    /// Decodes the key-values at the start of `bytes`, if the message is a range. The generated code reads each
    /// length twice and takes 1.5 times as long.
    fn take_key_values(&mut self, bytes: &mut Bytes) {
        if let Some(range) = (&mut self.message as &mut dyn Any).downcast_mut::<RangeResponse>() {
            let length = append_key_values(bytes, self.missing, &mut range.kvs);
            bytes.advance(length);
        }
    }

    fn merge(&mut self, fields: Bytes) -> Result<(), Error> {
        let merged = self.message.merge(fields);
        merged.map_err(|error| protocol_error("the response cannot be decoded").with_source(error))
    }
}

/// Returns the length of the complete fields at the start of some bytes, or `None` if they are no fields.
fn complete_fields(bytes: &[u8]) -> Option<usize> {
    let mut complete = 0;
    loop {
        match field_length(&bytes[complete..]) {
            FieldLength::Known(length) if length <= bytes.len() - complete => complete += length,
            FieldLength::Known(_) | FieldLength::Unknown => return Some(complete),
            FieldLength::Invalid => return None,
        }
    }
}

fn field_length(bytes: &[u8]) -> FieldLength {
    let mut rest = bytes;
    let incomplete = if bytes.len() < MAX_FIELD_START {
        FieldLength::Unknown
    } else {
        FieldLength::Invalid
    };
    let Ok((_, wire_type)) = decode_key(&mut rest) else {
        return incomplete;
    };
    let content = match wire_type {
        WireType::Varint => match decode_varint(&mut rest) {
            Ok(_) => 0,
            Err(_) => return incomplete,
        },
        WireType::SixtyFourBit => 8,
        WireType::ThirtyTwoBit => 4,
        WireType::LengthDelimited => match decode_varint(&mut rest).map(usize::try_from) {
            Ok(Ok(length)) => length,
            Ok(Err(_)) => return FieldLength::Invalid,
            Err(_) => return incomplete,
        },
        WireType::StartGroup | WireType::EndGroup => return FieldLength::Invalid,
    };
    let start = bytes.len() - rest.remaining();
    start
        .checked_add(content)
        .map_or(FieldLength::Invalid, FieldLength::Known)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proto::{KeyValue, ResponseHeader};

    fn response(sizes: &[usize]) -> RangeResponse {
        let kv = |size: &usize| KeyValue {
            key: Bytes::from(format!("key/{size}")),
            value: vec![b'v'; *size].into(),
            mod_revision: 300,
            // A negative number is decoded by the generated code.
            lease: if size % 5 == 4 { -1 } else { 0 },
            ..KeyValue::default()
        };
        RangeResponse {
            header: Some(ResponseHeader {
                revision: 1 << 40,
                ..ResponseHeader::default()
            }),
            kvs: sizes.iter().map(kv).collect(),
            more: true,
            count: 1 << 30,
        }
    }

    /// Decodes the message in frames of one size and returns it with the bytes that follow it.
    fn decode(
        encoded: &Bytes,
        length: usize,
        frame: usize,
    ) -> Result<(RangeResponse, Bytes), Error> {
        let mut decoder = IncrementalDecoder::new(length);
        let mut rest = encoded.clone();
        loop {
            if let Some(message) = decoder.take_complete() {
                return Ok((message, rest));
            }
            assert!(!rest.is_empty(), "the decoder waits after the last byte");
            let mut next = rest.split_to(frame.min(rest.len()));
            decoder.push(&mut next)?;
            if !next.is_empty() {
                rest = [next, rest].concat().into();
            }
        }
    }

    #[test]
    fn values_are_slices_of_their_frame() {
        let encoded = Bytes::from(response(&[100, 100, 100]).encode_to_vec());
        let frame = encoded.clone();
        let mut decoder = IncrementalDecoder::<RangeResponse>::new(encoded.len());
        let mut first = frame.slice(..encoded.len() - 20);
        decoder.push(&mut first).unwrap();
        decoder
            .push(&mut frame.slice(encoded.len() - 20..))
            .unwrap();
        let message = decoder.take_complete().unwrap();
        let addresses = frame.as_ptr_range();
        let shared = |kv: &KeyValue| addresses.contains(&kv.value.as_ptr());
        assert_eq!(
            message.kvs.iter().map(shared).collect::<Vec<_>>(),
            [true, true, false]
        );
    }

    #[test]
    fn malformed_message_is_an_error() {
        for bytes in [&[0x12, 0xff][..], &[0xff; 64], &[0x13, 0x14], &[0x0a, 5, 1]] {
            let encoded = Bytes::copy_from_slice(bytes);
            for frame in 1..=bytes.len() {
                assert!(
                    decode(&encoded, bytes.len(), frame).is_err(),
                    "{bytes:?} by {frame}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn decoded_message_is_independent_of_frames(
            sizes in proptest::collection::vec(0usize..400, 0..30),
            frame in 1usize..600,
            following in 0usize..700,
        ) {
            let expected = response(&sizes);
            let encoded = expected.encode_to_vec();
            let bytes = Bytes::from([&encoded[..], &vec![7; following]].concat());
            let (message, rest) = decode(&bytes, encoded.len(), frame).unwrap();
            prop_assert_eq!(message, expected);
            prop_assert_eq!(rest, vec![7; following]);
        }
    }
}
