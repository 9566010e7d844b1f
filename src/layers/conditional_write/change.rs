//! The changes that a function can request.

use bytes::Bytes;

use crate::{error::Error, request::IntoBytes};

/// A change of a key by [`Modify`](super::Modify).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Writes this value.
    Put(Bytes),
    /// Removes the key.
    Remove,
    /// Leaves the key as it is.
    Keep,
}

/// A result of the function of [`Modify`](super::Modify): a value to write, a [`Change`], or a `Result` of either.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a change of a key",
    note = "return the new value as text or bytes, a `Change`, or a `Result` with one of them"
)]
pub trait IntoChange {
    /// Converts into a change, or into the error with which the modification fails.
    fn into_change(self) -> Result<Change, Error>;
}

impl<V: IntoBytes> IntoChange for V {
    fn into_change(self) -> Result<Change, Error> {
        Ok(Change::Put(self.into_bytes()))
    }
}

impl IntoChange for Change {
    fn into_change(self) -> Result<Change, Error> {
        Ok(self)
    }
}

impl<C: IntoChange, E: Into<Error>> IntoChange for Result<C, E> {
    fn into_change(self) -> Result<Change, Error> {
        self.map_err(Into::into)?.into_change()
    }
}
