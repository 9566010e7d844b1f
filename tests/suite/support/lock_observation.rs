//! Observes when the holder of a lock does something, and whether its ownership was still certain then.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use actix_etcd::recipes::mutex::Ownership;
use testbed::time_since_boot;

use crate::support::node_process::{EventKind, NodeEvent, report};

/// Time between two reports of a holder that does something all the time.
const REPORT_INTERVAL: Duration = Duration::from_millis(2);
/// Longest time of an observation. The process was interrupted during a longer one, which shows nothing.
const OBSERVATION_TIME: Duration = Duration::from_millis(5);

/// Returns the kind of an action of the holder that began at `at`, just now.
fn beat_kind(at: Duration, held: &Ownership) -> EventKind {
    if held.remaining().is_zero() && time_since_boot() < at + OBSERVATION_TIME {
        EventKind::LateBeat
    } else {
        EventKind::Beat
    }
}

/// Reports an action of the holder that began at `at`, just now.
pub fn report_beat(at: Duration, held: &Ownership) {
    let (kind, token) = (beat_kind(at, held), held.token());
    NodeEvent { kind, at, token }.report();
}

/// Work under a lock whose polls are reported: all that begin after the deadline of the lease, and of the others some,
/// including the first and the last.
pub struct ObservedWork<F> {
    held: Ownership,
    work: Pin<Box<F>>,
    last_poll: Duration,
    last_report: Duration,
}

impl<F> ObservedWork<F> {
    pub fn new(held: Ownership, work: F) -> Self {
        report(EventKind::Started, held.token());
        Self {
            held,
            work: Box::pin(work),
            last_poll: time_since_boot(),
            last_report: Duration::ZERO,
        }
    }
}

impl<F: Future> Future for ObservedWork<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let at = time_since_boot();
        self.last_poll = at;
        let (kind, token) = (beat_kind(at, &self.held), self.held.token());
        if kind == EventKind::LateBeat || at > self.last_report + REPORT_INTERVAL {
            self.last_report = at;
            NodeEvent { kind, at, token }.report();
        }
        self.work.as_mut().poll(cx)
    }
}

impl<F> Drop for ObservedWork<F> {
    fn drop(&mut self) {
        let (at, token) = (self.last_poll, self.held.token());
        if at > self.last_report {
            let kind = EventKind::Beat;
            NodeEvent { kind, at, token }.report();
        }
        report(EventKind::Stopped, token);
    }
}
