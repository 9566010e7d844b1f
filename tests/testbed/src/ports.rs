//! Ports outside of the range the kernel hands out by itself, so that a port that is closed for a while (a member
//! that is down, a link that refuses) is not taken by somebody's outgoing connection.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

const LOWEST: u16 = 10_000;
const HIGHEST: u16 = 32_000;

/// One after the other, from somewhere: a port that is closed for a while is not given to another cluster of this
/// process, whose members would then answer in its place.
static NEXT: LazyLock<AtomicUsize> =
    LazyLock::new(|| AtomicUsize::new(fastrand::usize(..usize::from(HIGHEST - LOWEST))));

fn next() -> u16 {
    let nth = NEXT.fetch_add(1, Ordering::Relaxed) % usize::from(HIGHEST - LOWEST);
    LOWEST + u16::try_from(nth).expect("it is below the number of ports")
}

/// A port nobody listens on right now. Another process may take it first: whoever uses it must be ready to retry.
pub(crate) fn free() -> u16 {
    listen().1
}

/// A listener on a free port of loopback.
pub(crate) fn listen() -> (TcpListener, u16) {
    for _ in 0..1_000 {
        let port = next();
        if let Ok(listener) = TcpListener::bind(loopback(port)) {
            return (listener, port);
        }
    }
    panic!("no free port between {LOWEST} and {HIGHEST} on loopback");
}

pub(crate) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_was_closed_is_not_given_away_soon() {
        let closed = free();
        assert!((0..1_000).all(|_| free() != closed));
    }
}
