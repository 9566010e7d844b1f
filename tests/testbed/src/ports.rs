//! Ports outside the ephemeral range of the kernel, so that no outgoing connection takes a port that is temporarily
//! closed (a stopped member, a refusing link).

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::runtime;

const LOWEST: u16 = 10_000;
const HIGHEST: u16 = 32_000;

/// Ports are assigned in sequence from a random start, so that a temporarily closed port is not assigned to another
/// cluster of this process.
static NEXT: LazyLock<AtomicUsize> =
    LazyLock::new(|| AtomicUsize::new(fastrand::usize(..usize::from(HIGHEST - LOWEST))));

fn next() -> u16 {
    let offset = NEXT.fetch_add(1, Ordering::Relaxed) % usize::from(HIGHEST - LOWEST);
    LOWEST + u16::try_from(offset).expect("the offset is less than the number of ports")
}

/// Returns a free port. Another process may take it first, so the caller must be able to retry.
pub(crate) fn free() -> u16 {
    listen().1
}

/// Listens on a free loopback port.
pub(crate) fn listen() -> (TcpListener, u16) {
    for _ in 0..1_000 {
        let port = next();
        if let Ok(listener) = TcpListener::bind(loopback(port)) {
            return (listener, port);
        }
    }
    panic!("no free loopback port between {LOWEST} and {HIGHEST}");
}

/// Listens on the same free port of several addresses.
pub(crate) fn listen_on(addresses: &[IpAddr]) -> (Vec<TcpListener>, u16) {
    for _ in 0..1_000 {
        let port = next();
        let bind = |ip: &IpAddr| TcpListener::bind((*ip, port)).ok();
        if let Some(listeners) = addresses.iter().map(bind).collect() {
            return (listeners, port);
        }
    }
    panic!("no port between {LOWEST} and {HIGHEST} is free on all of {addresses:?}");
}

/// Registers a listener with the testbed's runtime.
pub(crate) fn into_tokio(listener: TcpListener) -> tokio::net::TcpListener {
    let _context = runtime::enter();
    listener
        .set_nonblocking(true)
        .expect("set the listener non-blocking");
    tokio::net::TcpListener::from_std(listener).expect("register the listener with the runtime")
}

pub(crate) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_port_is_not_reassigned_soon() {
        let closed = free();
        assert!((0..1_000).all(|_| free() != closed));
    }
}
