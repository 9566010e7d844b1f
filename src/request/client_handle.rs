//! The interface of the client that requests use.

use std::time::Duration;

use crate::call::Caller;

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
}

/// A running client. It keeps running while a reference to it exists.
pub trait ClientCore: Send + Sync + 'static {
    /// The request path.
    fn caller(&self) -> &Caller;

    /// Timeout of requests that have none of their own.
    fn request_timeout(&self) -> Duration;

    /// Whether the client is shutting down.
    fn is_shutting_down(&self) -> bool;

    /// Runs a closure on the actors' thread. Returns `false` if that thread has ended.
    fn run(&self, job: Box<dyn FnOnce() + Send>) -> bool;
}
