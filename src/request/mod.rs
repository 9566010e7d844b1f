//! What all requests have in common.
//!
//! A request is a value. A free function such as [`kv::put`](crate::kv::put) makes an unbound request: it can be part
//! of a transaction, be sent as a message to the actor [`Etcd`](crate::Etcd), or be bound to a client with
//! `.on(&client)`. A method of [`Client`](crate::Client) makes a bound request; awaiting it sends it. The type parameter
//! shows the difference: `Put` is unbound, `Put<Client>` is bound.

mod admin_request;
mod client_handle;
mod etcd_request;
mod into_bytes;
pub(crate) mod key_range;
pub(crate) mod macros;
pub(crate) mod response_stream;

pub use self::{
    admin_request::{HeaderResponse, MemberRequest, Request},
    client_handle::ClientHandle,
    etcd_request::EtcdRequest,
    into_bytes::IntoBytes,
    response_stream::ResponseStream,
};
pub(crate) use client_handle::ClientCore;

use std::{future::Future, pin::Pin};

use crate::{
    error::{Error, ErrorKind, Outcome},
    proto::ResponseHeader,
};

/// The future of a bound request.
pub(crate) type ResponseFuture<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// Returns the header of a response. etcd sends one with every response, so a missing header is a protocol error.
pub(crate) fn header(header: Option<ResponseHeader>) -> Result<ResponseHeader, Error> {
    header.ok_or_else(|| {
        Error::new(
            ErrorKind::Protocol,
            Outcome::Unknown,
            "the response has no header",
        )
    })
}
