//! The part of a client that lease requests and handles use.

use std::{sync::Arc, time::Duration};

use actix::Addr;

use super::keeper::KeeperActor;
use crate::{
    call::Caller,
    request::{ClientCore, ClientHandle, ClientView},
};

/// A client that can keep leases alive.
pub trait LeaseClient: ClientHandle {
    #[doc(hidden)]
    fn leases(&self) -> LeaseService;
}

/// The client of a lease. Holding it keeps the client running.
#[derive(Clone)]
pub struct LeaseService {
    pub(crate) core: Arc<dyn ClientCore>,
    pub(crate) keeper: Addr<KeeperActor>,
    pub(crate) view: ClientView,
}

impl ClientHandle for LeaseService {
    fn caller(&self) -> &Caller {
        self.core.caller()
    }

    fn request_timeout(&self) -> Duration {
        self.core.request_timeout()
    }

    fn view(&self) -> &ClientView {
        &self.view
    }
}
