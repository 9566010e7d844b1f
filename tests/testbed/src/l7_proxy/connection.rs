//! One client connection of the proxy.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Shared, exchange, reached};

const WINDOW: u32 = 1024 * 1024;

pub(super) async fn serve(shared: Arc<Shared>, socket: TcpStream, number: u64) {
    let _ = socket.set_nodelay(true);
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW);
    let Ok(mut connection) = builder.handshake::<_, Bytes>(socket).await else {
        return;
    };
    let max_requests = shared.settings().max_requests;
    // Declared after the connection, so that the requests are dropped before it.
    let mut requests = JoinSet::new();
    let mut accepted = 0;
    let mut close_at: Option<Instant> = None;
    loop {
        let idle_at = match shared.settings().idle_timeout {
            Some(timeout) if requests.is_empty() => Some(Instant::now() + timeout),
            _ => None,
        };
        let mut shut_down = false;
        tokio::select! {
            request = connection.accept() => match request {
                Some(Ok((request, respond))) => {
                    accepted += 1;
                    requests.spawn(exchange::exchange(shared.clone(), number, request, respond));
                    shut_down = max_requests.is_some_and(|max| accepted >= max);
                }
                Some(Err(_)) | None => return,
            },
            Some(_) = requests.join_next() => {}
            () = reached(idle_at), if close_at.is_none() => shut_down = true,
            () = reached(close_at) => return,
        }
        if shut_down && close_at.is_none() {
            connection.graceful_shutdown();
            shared.go_aways.fetch_add(1, Ordering::SeqCst);
            close_at = Some(Instant::now() + shared.settings().drain_timeout);
        }
    }
}
