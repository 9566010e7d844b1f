//! gRPC over h2 streams: length-prefixed messages and the status at the end of a response.

mod framing;
mod incremental_decoder;
mod message_reader;
mod status;

pub(crate) use framing::{decode, encode, encode_all, message_size, without_prefix};
pub(crate) use message_reader::{MessageReader, ReadError};
pub(crate) use status::{HeaderStatus, RpcFailure, find_status, status_from_headers};

use crate::error::{Error, ErrorKind, Outcome};

pub(crate) fn protocol_error(reason: &str) -> Error {
    Error::new(ErrorKind::Protocol, Outcome::Unknown, reason.to_owned())
}
