//! What watch requests need of a client.

use actix::Addr;

use super::hub::HubActor;
use crate::request::ClientHandle;

/// A client that can open watches.
#[diagnostic::on_unimplemented(
    message = "this request is not bound to a client",
    label = "not bound to a client",
    note = "use a method of the client, such as `client.watch(..)`, or bind the request with `.on(&client)`"
)]
pub trait WatchClient: ClientHandle {
    #[doc(hidden)]
    fn watches(&self) -> WatchService;
}

/// The watch engine of a client.
#[derive(Clone)]
pub struct WatchService {
    pub(crate) hub: Addr<HubActor>,
}
