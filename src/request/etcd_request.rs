//! Requests as messages.

use actix::Message;

use super::ResponseFuture;
use crate::error::Result;

/// An unbound request: a message to the actor [`Etcd`](crate::Etcd), which sends it with its client.
///
/// Applications can implement it for requests of their own, made of several of these, with
/// `impl EtcdRequest<Client> for …`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a message to the actor `Etcd`",
    label = "not an unbound request",
    note = "messages are unbound requests: `etcd.send(kv::get(\"k\"))`, not `etcd.send(client.get(\"k\"))`"
)]
pub trait EtcdRequest<C>:
    Message<Result = Result<Self::Response>> + Clone + Send + Sized + 'static
{
    /// The response.
    type Response: Send + 'static;

    /// Name of the request in logs and in [`RequestFailed`](crate::actor::RequestFailed).
    fn name(&self) -> &'static str;

    /// Sends the request with a client.
    fn send_with(self, client: &C) -> ResponseFuture<Self::Response>;

    /// Handles the response of a request that was sent with `do_send`, where no caller waits for it. Runs on the arbiter
    /// of the actor [`Etcd`](crate::Etcd); tasks started here end with that arbiter. Default: drops the response.
    fn discard(self, response: Self::Response) {
        drop(response);
    }
}
