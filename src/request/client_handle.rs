//! The interface of the client that requests use.

use std::{sync::Arc, time::Duration};

use super::ClientView;
use crate::{call::Caller, runtime::holders::Holders};

/// A client that can send requests. [`Client`](crate::Client) is the implementation to use.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a client that a request can be bound to",
    label = "not a client",
    note = "bind a request with a method of the client, such as `client.get(..)`, or with `.on(&client)`"
)]
pub trait ClientHandle: Clone + Send + Sync + Unpin + 'static {
    #[doc(hidden)]
    fn caller(&self) -> &Caller;

    #[doc(hidden)]
    fn request_timeout(&self) -> Duration;

    #[doc(hidden)]
    fn view(&self) -> &ClientView;
}

/// A running client. A reference from a handle of the application keeps it running.
pub trait ClientCore: Send + Sync + 'static {
    /// The request path.
    fn caller(&self) -> &Caller;

    /// Timeout of requests that have none of their own.
    fn request_timeout(&self) -> Duration;

    /// The holders of locks and leaderships, which a shutdown stops first.
    fn holders(&self) -> &Arc<Holders>;

    /// Runs a closure on the actors' thread. Returns `false` if that thread has ended or is about to.
    fn run(&self, job: Box<dyn FnOnce() + Send>) -> bool;
}
