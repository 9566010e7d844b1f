//! What a user calls: a file for each kind of request.
//!
//! A request is an object. Made by a free function ([`kv::put`]) it stands for itself: it can be put into a
//! transaction, or bound to a client with `.on(&client)`. Made by a client's method it is bound already, and awaiting it
//! sends it. The type parameter says which: `Put` is free, `Put<Client>` is bound.

mod administration;
mod into_bytes;
pub(crate) mod key_range;
pub(crate) mod response_stream;

pub use self::{
    administration::{HeaderResponse, MemberRequest, Request},
    into_bytes::IntoBytes,
    response_stream::ResponseStream,
};
pub use crate::actor::EtcdRequest;

pub(crate) use administration::header_responses;

use std::{future::Future, pin::Pin};

use crate::{
    error::{Error, ErrorKind, Outcome},
    proto::ResponseHeader,
};

/// What awaiting a request gives.
pub(crate) type ResponseFuture<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// An answer whose header is missing was not made by etcd.
pub(crate) fn header(header: Option<ResponseHeader>) -> Result<ResponseHeader, Error> {
    header.ok_or_else(|| {
        Error::new(
            ErrorKind::Protocol,
            Outcome::Unknown,
            "the answer has no header",
        )
    })
}

/// The methods every request has: binding it to a client, its own time-out, being awaited. A request type is a struct
/// with the fields `client` and `timeout`, and a function `perform(self, &Client, Duration)`.
macro_rules! request {
    ($request:ident { $($field:ident),* } -> $response:ty) => {
        impl $request {
            /// Binds the request to a client: awaiting it sends it.
            pub fn on(self, client: &$crate::client::Client) -> $request<$crate::client::Client> {
                $request {
                    $($field: self.$field,)*
                    timeout: self.timeout,
                    client: client.clone(),
                }
            }
        }

        $crate::actor::etcd_request!($request -> $response);

        impl<C> $request<C> {
            /// How long this request may take in all, retries included. Default: the client's `request_timeout`.
            pub fn timeout(mut self, timeout: std::time::Duration) -> Self {
                self.timeout = Some(timeout);
                self
            }

            fn unbound(self) -> $request {
                $request {
                    $($field: self.$field,)*
                    timeout: self.timeout,
                    client: (),
                }
            }
        }

        impl std::future::IntoFuture for $request<$crate::client::Client> {
            type Output = $crate::error::Result<$response>;
            type IntoFuture = $crate::request::ResponseFuture<$response>;

            fn into_future(self) -> Self::IntoFuture {
                let client = self.client.clone();
                let timeout = self.timeout.unwrap_or_else(|| client.request_timeout());
                Box::pin(async move { self.unbound().perform(&client, timeout).await })
            }
        }
    };
}
pub(crate) use request;

/// Names the header of answers, for the request path.
macro_rules! answers {
    ($($answer:ty),* $(,)?) => {
        $(impl $crate::call::Answer for $answer {
            fn header(&self) -> Option<&$crate::proto::ResponseHeader> {
                self.header.as_ref()
            }
        })*
    };
}
pub(crate) use answers;
