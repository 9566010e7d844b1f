//! Requests of cluster, maintenance, authentication and health, which share two types.

use std::{fmt, future::IntoFuture, time::Duration};

use actix::Message;
use bytes::Bytes;

use super::{
    ClientHandle, ClientView, EtcdRequest, ResponseFuture,
    key_prefix::{KeyedRequest, KeyedResponse},
};
use crate::{
    call::{Caller, WireResponse},
    error::{Error, Result},
    proto::{ResponseHeader, rpc::Rpc},
    transport::{Endpoint, grpc},
};

/// An administrative request. Bound to a client, it is sent when awaited. Unbound (`Request<T>`), it is a message to
/// the actor [`Etcd`](crate::Etcd).
#[must_use = "a request is sent when it is awaited"]
pub struct Request<T, C = ()> {
    client: C,
    rpc: Rpc,
    body: Result<Bytes>,
    timeout: Option<Duration>,
    perform: Perform<T>,
}

type Perform<T> = fn(Sender, Rpc, Bytes, Duration) -> ResponseFuture<T>;

/// The parts of a client that send a request.
struct Sender {
    caller: Caller,
    view: ClientView,
}

impl<T: 'static, C: Clone> Request<T, C> {
    pub(crate) fn new<R>(client: &C, rpc: Rpc, message: &impl prost::Message) -> Self
    where
        R: WireResponse + 'static,
        T: TryFrom<R, Error = Error> + Send,
    {
        Self::with_body::<R>(client, rpc, grpc::encode(message))
    }

    pub(crate) fn with_body<R>(client: &C, rpc: Rpc, body: Result<Bytes>) -> Self
    where
        R: WireResponse + 'static,
        T: TryFrom<R, Error = Error> + Send,
    {
        Self::performed_by(client, rpc, body, perform::<R, T>)
    }

    /// Creates a request whose keys, and those of its response, are in the namespace of the client that sends it.
    pub(crate) fn with_keys<Q, R>(client: &C, rpc: Rpc, message: &Q) -> Self
    where
        Q: KeyedRequest + prost::Message + Default + 'static,
        R: KeyedResponse + WireResponse + 'static,
        T: TryFrom<R, Error = Error> + Send,
    {
        let body = grpc::encode(message);
        Self::performed_by(client, rpc, body, perform_in_namespace::<Q, R, T>)
    }

    fn performed_by(client: &C, rpc: Rpc, body: Result<Bytes>, perform: Perform<T>) -> Self {
        Self {
            client: client.clone(),
            rpc,
            body,
            timeout: None,
            perform,
        }
    }

    /// Longest time this request may take, retries included. Default: the client's `request_timeout`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Returns the path of the RPC, such as `/etcdserverpb.Cluster/MemberList`. Several RPCs share this type.
    pub fn rpc(&self) -> &'static str {
        self.rpc.path
    }
}

impl<T: 'static> Request<T> {
    /// Binds the request to a client: awaiting it sends it.
    pub fn on<C: ClientHandle>(self, client: &C) -> Request<T, C> {
        Request {
            client: client.clone(),
            rpc: self.rpc,
            body: self.body,
            timeout: self.timeout,
            perform: self.perform,
        }
    }
}

impl<T: 'static, C: ClientHandle> Request<T, C> {
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
                None => Ok(client.caller().clone()),
                Some(endpoint) => endpoint.and_then(|endpoint| client.caller().at(endpoint)),
            };
            let name_rpc = |error: Error| error.with_rpc(rpc);
            let (caller, body) = (caller.map_err(name_rpc)?, body.map_err(name_rpc)?);
            let view = client.view().clone();
            perform(Sender { caller, view }, rpc, body, timeout).await
        })
    }
}

fn perform<R, T>(sender: Sender, rpc: Rpc, body: Bytes, timeout: Duration) -> ResponseFuture<T>
where
    R: WireResponse + 'static,
    T: TryFrom<R, Error = Error> + Send + 'static,
{
    Box::pin(async move {
        let response: R = sender.caller.unary(rpc, body, timeout).await?;
        response.try_into()
    })
}

fn perform_in_namespace<Q, R, T>(
    Sender { caller, view }: Sender,
    rpc: Rpc,
    mut body: Bytes,
    timeout: Duration,
) -> ResponseFuture<T>
where
    Q: KeyedRequest + prost::Message + Default + 'static,
    R: KeyedResponse + WireResponse + 'static,
    T: TryFrom<R, Error = Error> + Send + 'static,
{
    Box::pin(async move {
        if let Some(namespace) = view.namespace() {
            // Encoded when the request was created, possibly without a client.
            let mut request: Q = grpc::decode(grpc::without_prefix(&body))?;
            request.add_prefix(namespace);
            body = grpc::encode(&request)?;
        }
        let mut response: R = caller.unary(rpc, body, timeout).await?;
        view.remove_prefix(&mut response);
        response.try_into()
    })
}

impl<T: 'static, Client: ClientHandle> IntoFuture for Request<T, Client> {
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
        // The body may contain a password.
        write!(f, "Request({})", self.rpc.path)
    }
}

/// An administrative request to the member chosen with [`at`](Self::at), over the client's connection to it; without
/// `at`, to any member.
#[must_use = "a request is sent when it is awaited"]
pub struct MemberRequest<T, C = ()> {
    request: Request<T, C>,
    member: Option<Result<Endpoint>>,
}

impl<T: 'static, C: Clone> MemberRequest<T, C> {
    pub(crate) fn new<R>(client: &C, rpc: Rpc, message: &impl prost::Message) -> Self
    where
        R: WireResponse + 'static,
        T: TryFrom<R, Error = Error> + Send,
    {
        Self {
            request: Request::new::<R>(client, rpc, message),
            member: None,
        }
    }

    /// Sends the request to this member, which must be one of the client's endpoints. Default: any member.
    pub fn at(mut self, endpoint: impl AsRef<str>) -> Self {
        self.member = Some(Endpoint::parse(endpoint.as_ref()));
        self
    }

    /// Longest time this request may take, retries included. Default: the client's `request_timeout`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.request = self.request.timeout(timeout);
        self
    }

    /// Returns the path of the RPC, such as `/etcdserverpb.Maintenance/Status`.
    pub fn rpc(&self) -> &'static str {
        self.request.rpc()
    }
}

impl<T: 'static> MemberRequest<T> {
    /// Binds the request to a client: awaiting it sends it.
    pub fn on<C: ClientHandle>(self, client: &C) -> MemberRequest<T, C> {
        MemberRequest {
            request: self.request.on(client),
            member: self.member,
        }
    }
}

impl<T: 'static, Client: ClientHandle> IntoFuture for MemberRequest<T, Client> {
    type Output = Result<T>;
    type IntoFuture = ResponseFuture<T>;

    fn into_future(self) -> Self::IntoFuture {
        self.request.send(self.member)
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

macro_rules! messages {
    ($($request:ident),*) => {
        $(
            impl<T: Send + 'static> Message for $request<T> {
                type Result = Result<T>;
            }

            impl<T: Send + 'static, C: ClientHandle> EtcdRequest<C> for $request<T> {
                type Response = T;

                fn name(&self) -> &'static str {
                    self.rpc()
                }

                fn send_with(self, client: &C) -> ResponseFuture<T> {
                    self.on(client).into_future()
                }
            }
        )*
    };
}

messages!(Request, MemberRequest);

/// The response to a change that returns no data.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct HeaderResponse {
    /// Cluster, member and revision. etcd leaves it out after a defragmentation and a leader move.
    pub header: Option<ResponseHeader>,
}
