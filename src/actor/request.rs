//! Which objects are requests.

use actix::Message;

use crate::{
    client::Client,
    error::Result,
    request::{MemberRequest, Request, ResponseFuture},
};

/// A request that is bound to no client: a message to the actor [`Etcd`](crate::Etcd), which binds it to its own.
///
/// An application may have requests of its own, made of several of these.
pub trait EtcdRequest:
    Message<Result = Result<Self::Response>> + Clone + Send + Sized + 'static
{
    /// What it gives.
    type Response: Send + 'static;

    /// What it is called in logs and in [`RequestFailed`](crate::RequestFailed).
    fn name(&self) -> &'static str;

    /// Makes the call.
    fn send_with(self, client: &Client) -> ResponseFuture<Self::Response>;

    /// What becomes of an answer nobody waits for. Called on the arbiter of the actor [`Etcd`](crate::Etcd), with which
    /// a task started here ends. Default: it is dropped.
    fn unwanted(self, response: Self::Response) {
        drop(response);
    }
}

/// Makes a request type with a method `on(self, &Client)` a message.
macro_rules! etcd_request {
    ($request:ident -> $response:ty) => {
        impl actix::Message for $request {
            type Result = $crate::error::Result<$response>;
        }

        impl $crate::actor::EtcdRequest for $request {
            type Response = $response;

            fn name(&self) -> &'static str {
                stringify!($request)
            }

            fn send_with(
                self,
                client: &$crate::client::Client,
            ) -> $crate::request::ResponseFuture<$response> {
                std::future::IntoFuture::into_future(self.on(client))
            }
        }
    };
}
pub(crate) use etcd_request;

macro_rules! administration {
    ($($request:ident),*) => {
        $(
            impl<T: Send + 'static> Message for $request<T, ()> {
                type Result = Result<T>;
            }

            impl<T: Send + 'static> EtcdRequest for $request<T, ()> {
                type Response = T;

                fn name(&self) -> &'static str {
                    self.rpc()
                }

                fn send_with(self, client: &Client) -> ResponseFuture<T> {
                    self.on(client).into_future()
                }
            }
        )*
    };
}

administration!(Request, MemberRequest);
