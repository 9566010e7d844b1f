//! A link in front of anything that listens on loopback: other servers than etcd, and the tests of the links.

use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::link::Link;
use crate::ports;
use crate::proxy::{Listening, Proxy, Route};
use crate::runtime;

/// A proxy in front of a port of loopback, with a [`Link`] that can fail. Ends when dropped.
#[derive(Debug)]
pub struct TcpProxy {
    link: Link,
    proxy: Proxy,
    echo: Option<tokio::task::AbortHandle>,
}

impl TcpProxy {
    /// A proxy in front of what listens on this port.
    pub fn to_port(port: u16) -> Self {
        let listening = Listening::new();
        let link = Link::new(format!("clients to port {port}"), Some(listening.clone()));
        let proxy = Proxy::start(listening, Route::Anyone(link.clone()));
        proxy.set_target(port);
        Self {
            link,
            proxy,
            echo: None,
        }
    }

    /// A proxy in front of a server that sends back what it gets.
    pub fn to_echo_server() -> Self {
        let (listener, port) = ports::listen();
        let echo = runtime::spawn(async move {
            listener
                .set_nonblocking(true)
                .expect("a listener can be non-blocking");
            let listener = TcpListener::from_std(listener).expect("the runtime takes a listener");
            let mut connections = JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                connections.spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        let mut behind = Self::to_port(port);
        behind.echo = Some(echo.abort_handle());
        behind
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        ports::loopback(self.proxy.port())
    }

    /// What can be made to fail.
    pub fn link(&self) -> &Link {
        &self.link
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        if let Some(echo) = &self.echo {
            echo.abort();
        }
    }
}
