//! Types that can be keys and values.

use std::borrow::Cow;

use ::bytes::Bytes;

/// A type that can be a key or a value. Owned buffers are moved, borrowed ones are copied.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key or a value",
    label = "not text or bytes",
    note = "keys and values are text or bytes, such as `&str`, `String`, `Vec<u8>` or `Bytes`; convert a number with \
            `to_string()`"
)]
pub trait IntoBytes {
    /// Converts into bytes.
    fn into_bytes(self) -> Bytes;
}

macro_rules! owned {
    ($($type:ty),*) => {
        $(impl IntoBytes for $type {
            fn into_bytes(self) -> Bytes {
                self.into()
            }
        })*
    };
}

owned!(Bytes, String, Vec<u8>, Box<[u8]>);

macro_rules! borrowed {
    ($($type:ty),*) => {
        $(impl IntoBytes for &$type {
            fn into_bytes(self) -> Bytes {
                Bytes::copy_from_slice(self.as_ref())
            }
        })*
    };
}

borrowed!(str, String, [u8], Vec<u8>);

impl IntoBytes for &Bytes {
    fn into_bytes(self) -> Bytes {
        self.clone()
    }
}

impl<const N: usize> IntoBytes for [u8; N] {
    fn into_bytes(self) -> Bytes {
        Bytes::copy_from_slice(&self)
    }
}

impl<const N: usize> IntoBytes for &[u8; N] {
    fn into_bytes(self) -> Bytes {
        Bytes::copy_from_slice(self)
    }
}

impl IntoBytes for Cow<'_, str> {
    fn into_bytes(self) -> Bytes {
        self.into_owned().into()
    }
}
