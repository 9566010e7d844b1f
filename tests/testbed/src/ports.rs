//! Ports outside of the range the kernel hands out by itself, so that a port that is closed for a while (a member
//! that is down, a link that refuses) is not taken by somebody's outgoing connection.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

const LOWEST: u16 = 10_000;
const HIGHEST: u16 = 32_000;

/// A port nobody listens on right now. Another process may take it first: whoever uses it must be ready to retry.
pub(crate) fn free() -> u16 {
    listen().1
}

/// A listener on a free port of loopback.
pub(crate) fn listen() -> (TcpListener, u16) {
    for _ in 0..1_000 {
        let port = fastrand::u16(LOWEST..HIGHEST);
        if let Ok(listener) = TcpListener::bind(loopback(port)) {
            return (listener, port);
        }
    }
    panic!("no free port between {LOWEST} and {HIGHEST} on loopback");
}

pub(crate) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}
