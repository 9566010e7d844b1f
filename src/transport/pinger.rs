//! HTTP/2 pings of a connection.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep, sleep_until};

use super::{channel::ChannelMonitor, dial::DialOptions, endpoint::Endpoint, ping_pace::PingPace};

/// Sends HTTP/2 pings, in addition to the probes of the connection actor. Pings only while streams are open: etcd
/// responds to pings on an idle connection with GOAWAY.
pub(super) struct Pinger {
    pings: PingPong,
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
    /// Returns `None` if pings are turned off.
    pub(super) fn new(
        pings: Option<PingPong>,
        monitor: ChannelMonitor,
        endpoint: &Endpoint,
        options: &DialOptions,
    ) -> Option<Self> {
        let (pings, configured) = (pings?, options.ping_interval?);
        let interval = options.ping_pace.interval(endpoint.as_str(), configured);
        Some(Self {
            pings,
            monitor,
            endpoint: endpoint.clone(),
            pace: options.ping_pace.clone(),
            slowed_down: false,
            interval,
            timeout: options.ping_timeout,
            awaiting_pong: false,
            timer: Box::pin(sleep_until(Instant::now() + interval)),
        })
    }

    /// Resolves with the reason to end the connection, if a ping receives no response in time.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<String> {
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
    pub(super) fn slow_down_if_requested(&mut self) {
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
