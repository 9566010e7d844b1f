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
    endpoint::Endpoint,
    ping_pace::PingPace,
    wire_log::LoggedIo,
};

type H2Connection = Connection<LoggedIo<BoxedSocket>, Bytes>;

/// Runs a connection until it ends. Dropping the driver closes the connection at once.
pub(crate) struct Driver {
    connection: H2Connection,
    monitor: ChannelMonitor,
    pinger: Option<Pinger>,
}

impl Driver {
    pub(super) fn new(
        mut connection: H2Connection,
        channel: &Channel,
        endpoint: &Endpoint,
        options: &DialOptions,
    ) -> Self {
        let monitor = channel.monitor();
        let pinger = match (connection.ping_pong(), options.ping_interval) {
            (Some(pings), Some(configured)) => {
                let interval = options.ping_pace.interval(endpoint.as_str(), configured);
                Some(Pinger {
                    pings,
                    monitor: monitor.clone(),
                    endpoint: endpoint.clone(),
                    pace: options.ping_pace.clone(),
                    slowed_down: false,
                    interval,
                    timeout: options.ping_timeout,
                    awaiting_pong: false,
                    timer: Box::pin(sleep_until(Instant::now() + interval)),
                })
            }
            _ => None,
        };
        Self {
            connection,
            monitor,
            pinger,
        }
    }
}

impl Future for Driver {
    /// Reason why the connection ended.
    type Output = String;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<String> {
        let polled = Pin::new(&mut self.connection).poll(cx);
        // The member may change the limit at any time; h2 reports no change.
        let limit = self.connection.max_concurrent_send_streams();
        self.monitor.set_stream_limit(limit);
        if let Some(pinger) = &mut self.pinger {
            pinger.slow_down_if_requested();
        }
        match polled {
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
    endpoint: Endpoint,
    pace: PingPace,
    /// Whether this connection has increased the endpoint's interval.
    slowed_down: bool,
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

    /// Doubles the interval of the endpoint's next connections if the member has received too many pings.
    fn slow_down_if_requested(&mut self) {
        if !self.slowed_down && self.monitor.wire_log().had_too_many_pings() {
            self.slowed_down = true;
            self.pace.slow_down(self.endpoint.name());
            tracing::warn!(
                endpoint = %self.endpoint,
                interval = ?self.interval,
                "member received too many pings; interval doubled"
            );
        }
    }

    fn schedule_next(&mut self) {
        self.awaiting_pong = false;
        self.timer.as_mut().reset(Instant::now() + self.interval);
    }
}
