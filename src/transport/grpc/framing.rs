//! Encodes and decodes messages. Each one is preceded by a compression flag and its length.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

use super::protocol_error;
use crate::error::Error;

/// Length of the prefix: the compression flag and a 32-bit length.
pub(super) const PREFIX: usize = 5;

/// Largest message. h2 sends no larger buffer.
const MAX_MESSAGE: usize = (1 << 31) - 1 - PREFIX;

/// Returns the message with its prefix. The bytes can be sent any number of times.
pub(crate) fn encode(message: &impl Message) -> Result<Bytes, Error> {
    let length = checked_length(message)?;
    let mut buffer = BytesMut::with_capacity(PREFIX + length as usize);
    put_message(&mut buffer, message, length);
    Ok(buffer.freeze())
}

/// Returns an encoded message without its prefix.
pub(crate) fn without_prefix(encoded: &Bytes) -> Bytes {
    encoded.slice(PREFIX.min(encoded.len())..)
}

/// Returns the size of a message without its prefix, given the size of [`encode`]'s result.
pub(crate) fn message_size(encoded: usize) -> usize {
    encoded.saturating_sub(PREFIX)
}

/// Returns the messages with their prefixes in one buffer.
pub(crate) fn encode_all<M: Message>(messages: &[M]) -> Result<Bytes, Error> {
    let length: usize = messages
        .iter()
        .map(|message| PREFIX + message.encoded_len())
        .sum();
    let mut buffer = BytesMut::with_capacity(length);
    for message in messages {
        put_message(&mut buffer, message, checked_length(message)?);
    }
    Ok(buffer.freeze())
}

fn checked_length(message: &impl Message) -> Result<u32, Error> {
    u32::try_from(message.encoded_len())
        .ok()
        .filter(|length| *length as usize <= MAX_MESSAGE)
        .ok_or_else(|| Error::invalid("the message is larger than 2 GiB"))
}

fn put_message(buffer: &mut BytesMut, message: &impl Message, length: u32) {
    buffer.put_u8(0);
    buffer.put_u32(length);
    message.encode_raw(buffer);
}

/// Decodes a message without its prefix.
pub(crate) fn decode<M: Message + Default>(message: Bytes) -> Result<M, Error> {
    M::decode(message)
        .map_err(|error| protocol_error("the response cannot be decoded").with_source(error))
}

/// Returns the message length in the prefix, once the whole prefix has arrived.
pub(super) fn prefixed_length(bytes: &[u8]) -> Option<usize> {
    let [_, a, b, c, d] = *bytes.first_chunk::<PREFIX>()?;
    Some(u32::from_be_bytes([a, b, c, d]) as usize)
}
