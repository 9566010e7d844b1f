//! What the requests of the administration have in common.

use std::{fmt, future::IntoFuture, time::Duration};

use bytes::Bytes;
use prost::Message;

use super::ResponseFuture;
use crate::{
    call::{Answer, Caller, Rpc},
    client::Client,
    error::{Error, Result},
    proto::ResponseHeader,
    transport::{Endpoint, grpc},
};

/// A request of the administration. Bound to a client it is sent when it is awaited; free (`Request<T, ()>`) it is a
/// message to the actor [`Etcd`](crate::Etcd).
#[must_use = "a request is sent when it is awaited"]
pub struct Request<T, C = Client> {
    client: C,
    rpc: Rpc,
    body: Result<Bytes>,
    timeout: Option<Duration>,
    perform: fn(Caller, Rpc, Bytes, Duration) -> ResponseFuture<T>,
}

impl<T: 'static, C: Clone> Request<T, C> {
    pub(crate) fn new<A>(client: &C, rpc: Rpc, message: &impl Message) -> Self
    where
        A: Answer + 'static,
        T: TryFrom<A, Error = Error> + Send,
    {
        Self::with_body::<A>(client, rpc, grpc::encode(message))
    }

    pub(crate) fn with_body<A>(client: &C, rpc: Rpc, body: Result<Bytes>) -> Self
    where
        A: Answer + 'static,
        T: TryFrom<A, Error = Error> + Send,
    {
        Self {
            client: client.clone(),
            rpc,
            body,
            timeout: None,
            perform: perform::<A, T>,
        }
    }

    /// How long this request may take in all, retries included. Default: the client's `request_timeout`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The RPC it calls, such as `/etcdserverpb.Cluster/MemberList`: one type of request serves several.
    pub fn rpc(&self) -> &'static str {
        self.rpc.path
    }
}

impl<T: 'static> Request<T, ()> {
    /// Binds the request to a client: awaiting it sends it.
    pub fn on(self, client: &Client) -> Request<T> {
        Request {
            client: client.clone(),
            rpc: self.rpc,
            body: self.body,
            timeout: self.timeout,
            perform: self.perform,
        }
    }
}

impl<T: 'static> Request<T> {
    fn send(self, member: Option<Result<Endpoint>>) -> ResponseFuture<T> {
        let Self {
            client,
            rpc,
            body,
            timeout,
            perform,
        } = self;
        Box::pin(async move {
            let timeout = timeout.unwrap_or_else(|| client.request_timeout());
            let caller = match member {
                None => client.caller().clone(),
                Some(endpoint) => client.caller().at(endpoint?)?,
            };
            perform(caller, rpc, body?, timeout).await
        })
    }
}

fn perform<A, T>(caller: Caller, rpc: Rpc, body: Bytes, timeout: Duration) -> ResponseFuture<T>
where
    A: Answer + 'static,
    T: TryFrom<A, Error = Error> + Send + 'static,
{
    Box::pin(async move { caller.unary::<A>(rpc, body, timeout).await?.try_into() })
}

impl<T: 'static> IntoFuture for Request<T> {
    type Output = Result<T>;
    type IntoFuture = ResponseFuture<T>;

    fn into_future(self) -> Self::IntoFuture {
        self.send(None)
    }
}

impl<T, C: Clone> Clone for Request<T, C> {
    fn clone(&self) -> Self {
        Self {
            client: self.client.clone(),
            rpc: self.rpc,
            body: self.body.clone(),
            timeout: self.timeout,
            perform: self.perform,
        }
    }
}

impl<T, C> fmt::Debug for Request<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The body may hold a password.
        write!(f, "Request({})", self.rpc.path)
    }
}

/// A request to one member, which is sent when it is awaited: to the member that is named with
/// [`at`](Self::at), over its existing connection, or to any.
#[must_use = "a request is sent when it is awaited"]
pub struct MemberRequest<T, C = Client> {
    request: Request<T, C>,
    member: Option<Result<Endpoint>>,
}

impl<T: 'static, C: Clone> MemberRequest<T, C> {
    pub(crate) fn new<A>(client: &C, rpc: Rpc, message: &impl Message) -> Self
    where
        A: Answer + 'static,
        T: TryFrom<A, Error = Error> + Send,
    {
        Self {
            request: Request::new::<A>(client, rpc, message),
            member: None,
        }
    }

    /// Asks this member, which must be one of the client's endpoints. Default: any.
    pub fn at(mut self, endpoint: impl AsRef<str>) -> Self {
        self.member = Some(Endpoint::parse(endpoint.as_ref()));
        self
    }

    /// How long this request may take in all, retries included. Default: the client's `request_timeout`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.request = self.request.timeout(timeout);
        self
    }

    /// The RPC it calls, such as `/etcdserverpb.Maintenance/Status`.
    pub fn rpc(&self) -> &'static str {
        self.request.rpc()
    }
}

impl<T: 'static> MemberRequest<T, ()> {
    /// Binds the request to a client: awaiting it sends it.
    pub fn on(self, client: &Client) -> MemberRequest<T> {
        MemberRequest {
            request: self.request.on(client),
            member: self.member,
        }
    }
}

impl<T, C: Clone> Clone for MemberRequest<T, C> {
    fn clone(&self) -> Self {
        Self {
            request: self.request.clone(),
            member: self.member.clone(),
        }
    }
}

impl<T, C> fmt::Debug for MemberRequest<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemberRequest")
            .field("request", &self.request)
            .field("member", &self.member)
            .finish()
    }
}

impl<T: 'static> IntoFuture for MemberRequest<T> {
    type Output = Result<T>;
    type IntoFuture = ResponseFuture<T>;

    fn into_future(self) -> Self::IntoFuture {
        self.request.send(self.member)
    }
}

/// What a change did: nothing to tell but who answered, and at which revision of the store.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct HeaderResponse {
    /// Who answered; etcd leaves it out after a defragmentation and a move of the leader.
    pub header: Option<ResponseHeader>,
}

/// Answers of a header alone, which become [`HeaderResponse`].
macro_rules! header_responses {
    ($($answer:ty),* $(,)?) => {
        $crate::request::answers!($($answer),*);
        $(impl TryFrom<$answer> for $crate::request::HeaderResponse {
            type Error = $crate::error::Error;

            fn try_from(answer: $answer) -> $crate::error::Result<Self> {
                Ok(Self { header: answer.header })
            }
        })*
    };
}
pub(crate) use header_responses;
