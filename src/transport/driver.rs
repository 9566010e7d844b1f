//! Runs an HTTP/2 connection and its pings.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use h2::{Ping, client::Connection};
use tokio::time::{Instant, Sleep, sleep_until};

use super::{
    channel::{Channel, ChannelMonitor},
    dial::{BoxedSocket, DialOptions},
    wire_log::LoggedIo,
};

type H2Connection = Connection<LoggedIo<BoxedSocket>, Bytes>;

/// Runs a connection until it ends. Dropping the driver closes the connection at once.
pub(crate) struct Driver {
    connection: H2Connection,
    pinger: Option<Pinger>,
}

impl Driver {
    pub(super) fn new(
        mut connection: H2Connection,
        channel: &Channel,
        options: &DialOptions,
    ) -> Self {
        let pinger = match (connection.ping_pong(), options.ping_interval) {
            (Some(pings), Some(interval)) => Some(Pinger {
                pings,
                monitor: channel.monitor(),
                interval,
                timeout: options.ping_timeout,
                awaiting_pong: false,
                timer: Box::pin(sleep_until(Instant::now() + interval)),
            }),
            _ => None,
        };
        Self { connection, pinger }
    }
}

impl Future for Driver {
    /// Reason why the connection ended.
    type Output = String;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<String> {
        match Pin::new(&mut self.connection).poll(cx) {
            Poll::Ready(Ok(())) => {
                return Poll::Ready("the member closed the connection".to_owned());
            }
            Poll::Ready(Err(error)) => return Poll::Ready(error.to_string()),
            Poll::Pending => {}
        }
        match &mut self.pinger {
            Some(pinger) => pinger.poll(cx),
            None => Poll::Pending,
        }
    }
}

/// Sends HTTP/2 pings, in addition to the probes of the connection actor. Pings only while streams are open: etcd
/// responds to pings on an idle connection with GOAWAY.
struct Pinger {
    pings: h2::PingPong,
    monitor: ChannelMonitor,
    interval: Duration,
    timeout: Duration,
    awaiting_pong: bool,
    timer: Pin<Box<Sleep>>,
}

impl Pinger {
    /// Resolves with the reason to end the connection, if a ping receives no response in time.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<String> {
        loop {
            if self.awaiting_pong {
                match self.pings.poll_pong(cx) {
                    Poll::Ready(Ok(_)) => self.schedule_next(),
                    // The connection future returns the reason.
                    Poll::Ready(Err(_)) => return Poll::Pending,
                    Poll::Pending => {}
                }
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if self.awaiting_pong {
                return Poll::Ready(format!("no response to a ping within {:?}", self.timeout));
            }
            if self.monitor.open_streams() > 0 && self.pings.send_ping(Ping::opaque()).is_ok() {
                self.awaiting_pong = true;
                self.timer.as_mut().reset(Instant::now() + self.timeout);
            } else {
                self.schedule_next();
            }
        }
    }

    fn schedule_next(&mut self) {
        self.awaiting_pong = false;
        self.timer.as_mut().reset(Instant::now() + self.interval);
    }
}
