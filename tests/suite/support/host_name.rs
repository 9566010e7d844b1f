//! A host name whose addresses the test sets, without DNS.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use actix_etcd::{ClientBuilder, test_faults::with_resolver};
use testbed::Member;

/// A host name with addresses that can change. Only clients with [`HostName::resolved_by`] resolve it.
#[derive(Clone, Default)]
pub struct HostName {
    addresses: Arc<Mutex<Vec<SocketAddr>>>,
    lookups: Arc<AtomicUsize>,
}

impl HostName {
    pub fn new(addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        let host = Self::default();
        host.set(addresses);
        host
    }

    /// Replaces the addresses. Without any, the name does not resolve.
    pub fn set(&self, addresses: impl IntoIterator<Item = SocketAddr>) {
        *self.addresses.lock().unwrap() = addresses.into_iter().collect();
    }

    /// Returns the number of lookups so far.
    pub fn lookups(&self) -> usize {
        self.lookups.load(Ordering::SeqCst)
    }

    /// Makes a client resolve every host name to these addresses.
    pub fn resolved_by(&self, builder: ClientBuilder) -> ClientBuilder {
        let host = self.clone();
        with_resolver(builder, move |_, _| host.lookup())
    }

    fn lookup(&self) -> io::Result<Vec<SocketAddr>> {
        self.lookups.fetch_add(1, Ordering::SeqCst);
        let addresses = self.addresses.lock().unwrap().clone();
        if addresses.is_empty() {
            return Err(io::Error::other("the name does not exist"));
        }
        Ok(addresses)
    }
}

/// Returns the address at which clients reach a member.
pub fn address(member: &Member) -> SocketAddr {
    let endpoint = member.endpoint();
    let (_, address) = endpoint.split_once("://").unwrap();
    address.parse().unwrap()
}
