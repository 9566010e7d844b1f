//! The part of a client that watch requests use.

use actix::Addr;

use super::hub::HubActor;
use crate::request::ClientHandle;

/// A client that can open watches.
pub trait WatchClient: ClientHandle {
    #[doc(hidden)]
    fn watches(&self) -> WatchService;
}

/// The watch engine of a client.
#[derive(Clone)]
pub struct WatchService {
    pub(crate) hub: Addr<HubActor>,
}
