//! Requests as messages.

use actix::Message;

use super::ResponseFuture;
use crate::error::Result;

/// An unbound request: a message to the actor [`Etcd`](crate::Etcd), which sends it with its client.
///
/// Applications can implement it (as `EtcdRequest<Client>`) for messages of their own that send several requests.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a message to the actor `Etcd`",
    label = "not an unbound request",
    note = "messages are unbound requests: `etcd.send(kv::get(\"k\"))`, not `etcd.send(client.get(\"k\"))`",
    note = "a watch becomes a message with a recipient: `etcd.send(watch_keys(\"k\").deliver_to(recipient))`"
)]
pub trait EtcdRequest<C>:
    Message<Result = Result<Self::Response>> + Clone + Send + Sized + 'static
{
    /// The value that the request returns.
    type Response: Send + 'static;

    /// Name of the request in logs and in [`RequestFailed`](crate::actor::RequestFailed).
    fn name(&self) -> &'static str;

    /// Sends the request with a client.
    fn send_with(self, client: &C) -> ResponseFuture<Self::Response>;

    /// Handles the response to a request that was sent with `do_send`, which has no caller. Runs on the arbiter of the
    /// actor [`Etcd`](crate::Etcd); tasks started here end with that arbiter. Default: drops the response.
    fn discard(self, response: Self::Response) {
        drop(response);
    }
}
