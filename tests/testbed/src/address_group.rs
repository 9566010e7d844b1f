//! The addresses of a host name: one per member, all with the same port.

use std::net::{IpAddr, Ipv4Addr};

use crate::cluster::Cluster;
use crate::link::Link;
use crate::ports;
use crate::proxy::{Proxy, Route, SwitchableListener};

/// One loopback address per member, all with the same port: 127.0.0.2 leads to member 0, 127.0.0.3 to member 1, and so
/// on. Stops when dropped.
#[derive(Debug)]
pub struct AddressGroup {
    scheme: &'static str,
    port: u16,
    members: Vec<(IpAddr, Link, Proxy)>,
}

impl AddressGroup {
    /// Starts one proxy per current member, in front of its client link.
    pub fn over(cluster: &Cluster) -> Self {
        let members = cluster.members();
        let addresses: Vec<IpAddr> = (2u8..)
            .take(members.len())
            .map(|last| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)))
            .collect();
        let (listeners, port) = ports::listen_on(&addresses);
        let start = |((address, listener), member): ((IpAddr, _), &crate::Member)| {
            let listener = SwitchableListener::from_std(listener);
            let link = Link::new(format!("clients to {address}"), Some(listener.clone()));
            let proxy = Proxy::start(listener, Route::Clients(link.clone()));
            proxy.set_target(member.client_port());
            (address, link, proxy)
        };
        Self {
            scheme: members[0].scheme(),
            port,
            members: addresses
                .into_iter()
                .zip(listeners)
                .zip(&members)
                .map(start)
                .collect(),
        }
    }

    /// Returns the addresses, in the order of the members.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.members.iter().map(|(address, ..)| *address).collect()
    }

    /// Returns the URL with this host name.
    pub fn endpoint(&self, host: &str) -> String {
        format!("{}://{host}:{}", self.scheme, self.port)
    }

    /// Returns the link between clients and the address of a member.
    pub fn link(&self, member: usize) -> &Link {
        &self.members[member].1
    }
}
