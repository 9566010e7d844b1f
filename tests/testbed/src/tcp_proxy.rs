//! A fault proxy in front of any loopback port, for servers other than etcd.

use std::net::SocketAddr;

use tokio::task::JoinSet;

use crate::link::Link;
use crate::ports;
use crate::proxy::{Proxy, Route, SwitchableListener};
use crate::runtime;

/// A proxy in front of a loopback port, whose [`Link`] can fail. Stops when dropped.
#[derive(Debug)]
pub struct TcpProxy {
    link: Link,
    proxy: Proxy,
    echo_server: Option<tokio::task::AbortHandle>,
}

impl TcpProxy {
    /// Starts a proxy in front of the server that listens on `port`.
    pub fn to_port(port: u16) -> Self {
        let listener = SwitchableListener::new();
        let link = Link::new(format!("clients to port {port}"), Some(listener.clone()));
        let proxy = Proxy::start(listener, Route::Clients(link.clone()));
        proxy.set_target(port);
        Self {
            link,
            proxy,
            echo_server: None,
        }
    }

    /// Starts a server that echoes all bytes, and a proxy in front of it.
    pub fn to_echo_server() -> Self {
        let (listener, port) = ports::listen();
        let listener = ports::into_tokio(listener);
        let echo_server = runtime::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                connections.spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        let mut proxy = Self::to_port(port);
        proxy.echo_server = Some(echo_server.abort_handle());
        proxy
    }

    /// Returns the address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        ports::loopback(self.proxy.port())
    }

    /// Returns the link between clients and the server.
    pub fn link(&self) -> &Link {
        &self.link
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        if let Some(echo_server) = &self.echo_server {
            echo_server.abort();
        }
    }
}
