//! Reads the wire format of protobuf directly, where the generated code is too slow.

use std::ops::Range;

use bytes::Bytes;

/// Returns the wire key of a varint field.
pub(crate) const fn number(field: u64) -> u64 {
    field << 3
}

/// Returns the wire key of a length-delimited field.
pub(crate) const fn delimited(field: u64) -> u64 {
    field << 3 | 2
}

/// Reads a part of a frame. Methods that read a value return `None` if the part is too short, or if only the generated
/// code decodes the value, such as a negative number.
pub(crate) struct WireReader<'a> {
    /// The whole frame; keys and values are slices of it.
    frame: &'a Bytes,
    /// The frame up to the end of this part.
    bytes: &'a [u8],
    position: usize,
}

impl<'a> WireReader<'a> {
    pub(crate) fn new(frame: &'a Bytes, part: Range<usize>) -> Self {
        Self {
            frame,
            bytes: &frame[..part.end],
            position: part.start,
        }
    }

    /// Returns a slice of the frame.
    pub(crate) fn slice(&self, (from, end): (usize, usize)) -> Bytes {
        self.frame.slice(from..end)
    }

    /// Returns the number of bytes of the frame before the next one.
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    /// Returns the bytes that are not read.
    pub(crate) fn rest(&self) -> &'a [u8] {
        &self.bytes[self.position..]
    }

    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    pub(crate) fn is_done(&self) -> bool {
        self.position == self.bytes.len()
    }

    pub(crate) fn varint(&mut self) -> Option<u64> {
        let first = *self.bytes.get(self.position)?;
        // Field keys and most lengths are one byte.
        if first & 0x80 == 0 {
            self.position += 1;
            return Some(u64::from(first));
        }
        let mut value = 0;
        for (nth, byte) in self.bytes[self.position..].iter().take(9).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * nth);
            if byte & 0x80 == 0 {
                self.position += nth + 1;
                return Some(value);
            }
        }
        // Ten bytes encode a negative number, which no field here may have.
        None
    }

    /// Skips a number of up to 64 bits, as ids use all of them.
    pub(crate) fn skip_varint(&mut self) -> Option<()> {
        let bytes = &self.bytes[self.position..];
        let nth = bytes.iter().take(10).position(|byte| byte & 0x80 == 0)?;
        if nth == 9 && bytes[nth] > 1 {
            return None;
        }
        self.position += nth + 1;
        Some(())
    }

    pub(crate) fn number(&mut self) -> Option<i64> {
        i64::try_from(self.varint()?).ok()
    }

    pub(crate) fn delimited(&mut self) -> Option<(usize, usize)> {
        let length = usize::try_from(self.varint()?).ok()?;
        if length > self.remaining() {
            return None;
        }
        let from = self.position;
        self.position += length;
        Some((from, self.position))
    }

    pub(crate) fn nested(&mut self) -> Option<WireReader<'a>> {
        let (position, end) = self.delimited()?;
        Some(WireReader {
            frame: self.frame,
            bytes: &self.bytes[..end],
            position,
        })
    }
}
