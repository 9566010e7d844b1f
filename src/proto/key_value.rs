//! Keys and values as text.

use std::str::{Utf8Error, from_utf8};

use super::KeyValue;

impl KeyValue {
    /// Returns the key as text. Fails if it is not valid UTF-8.
    pub fn key_str(&self) -> Result<&str, Utf8Error> {
        from_utf8(&self.key)
    }

    /// Returns the value as text. Fails if it is not valid UTF-8.
    pub fn value_str(&self) -> Result<&str, Utf8Error> {
        from_utf8(&self.value)
    }
}
