//! Keys and values: anything that becomes bytes.

use std::borrow::Cow;

use ::bytes::Bytes;

/// Anything that becomes a key or a value. Owned buffers are taken over, borrowed ones copied.
pub trait IntoBytes {
    /// The bytes.
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
