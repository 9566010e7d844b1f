//! Types and traits shared by all requests.
//!
//! A request is a value, unbound or bound to a client:
//! - A free function such as [`kv::put`](crate::kv::put) creates an unbound request (`Put`). It can be sent as a
//!   message to the actor [`Etcd`](crate::Etcd), be part of a transaction, or be bound with `.on(&client)`.
//! - A method of [`Client`](crate::Client) creates a bound request (`Put<Client>`). It is sent when awaited.

mod admin_request;
mod client_handle;
mod client_view;
mod etcd_request;
mod into_bytes;
pub(crate) mod key_prefix;
pub(crate) mod key_range;
pub(crate) mod macros;
mod read_order;
pub(crate) mod response_stream;

pub use self::{
    admin_request::{HeaderResponse, MemberRequest, Request},
    client_handle::ClientHandle,
    etcd_request::EtcdRequest,
    into_bytes::IntoBytes,
    response_stream::ResponseStream,
};
pub(crate) use client_handle::ClientCore;
pub(crate) use client_view::ClientView;

use std::{future::Future, pin::Pin};

use crate::{
    error::{Error, ErrorKind, Outcome},
    proto::ResponseHeader,
};

/// The future of a bound request.
pub(crate) type ResponseFuture<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// Returns the header of a response, all zero if there is none: a proxy that responds by itself sends none.
pub(crate) fn header(header: Option<ResponseHeader>) -> ResponseHeader {
    header.unwrap_or_default()
}

/// Returns the header of a response whose revision is part of the result. A missing header is a protocol error: with a
/// made-up revision, watches would start at the wrong place and locks have wrong fencing tokens.
pub(crate) fn required_header(header: Option<ResponseHeader>) -> Result<ResponseHeader, Error> {
    header.ok_or_else(|| {
        Error::new(
            ErrorKind::Protocol,
            Outcome::Unknown,
            "the response has no header",
        )
    })
}
