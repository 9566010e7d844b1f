//! The progress requests of one stream, and what their responses prove. Time is an argument.
//!
//! A response does not name its request, and etcd ignores requests while a watch of the stream is behind. So a response
//! counts for the oldest request without one: it may be newer than that, but never older. A request that has no response
//! after [`MAX_INTERVALS`] intervals was ignored. The log counts intervals in which the stream's actor ran and not time:
//! after a suspension of the process, a response may be in the socket for longer than any time limit.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// Number of intervals after which a request without a response counts as ignored.
const MAX_INTERVALS: u32 = 2;
/// In releases of etcd whose progress can overtake events, a response counts once no event that it covers has arrived
/// for this time. A watch that catches up with a long history receives events every 100 ms.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// Progress of all watches that were created before the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProgressResponse {
    /// Number of the request, counted from 1.
    pub(crate) request: u64,
    pub(crate) revision: i64,
    /// Time at which the request was sent. The server had not gone beyond `revision` before.
    pub(crate) requested_at: Instant,
    /// Whether the server sends progress only after the events it covers.
    after_events: bool,
    /// Time at which the response, or the last event that it had overtaken, was received.
    settling_since: Instant,
}

impl ProgressResponse {
    fn has_settled(&self, now: Instant) -> bool {
        self.settling_since + SETTLE_TIME <= now
    }

    /// Returns whether the response may have overtaken events of a watch that was created after the request
    /// `created_after`.
    fn may_overtake(&self, created_after: u64) -> bool {
        !self.after_events && self.request > created_after
    }

    /// Returns whether the response has overtaken events of this revision, for a watch that was created after the
    /// request `created_after`.
    fn has_overtaken(&self, created_after: u64, revision: i64) -> bool {
        self.may_overtake(created_after) && self.revision >= revision
    }
}

#[derive(Debug)]
struct UnansweredRequest {
    number: u64,
    sent_at: Instant,
    intervals: u32,
}

/// The progress requests of one stream.
#[derive(Debug, Default)]
pub(crate) struct ProgressLog {
    last_request: u64,
    unanswered: VecDeque<UnansweredRequest>,
    /// Last response after which no event that it covers has arrived.
    certain: Option<ProgressResponse>,
    /// Later response that events may still follow.
    settling: Option<ProgressResponse>,
}

impl ProgressLog {
    /// Records a request.
    pub(crate) fn request_sent(&mut self, now: Instant) {
        self.last_request += 1;
        self.unanswered.push_back(UnansweredRequest {
            number: self.last_request,
            sent_at: now,
            intervals: 0,
        });
    }

    /// Returns the number of the last request. Later requests cover a watch that is created now.
    pub(crate) fn last_request(&self) -> u64 {
        self.last_request
    }

    /// Records that an interval has passed. Returns the number of requests that count as ignored since then.
    pub(crate) fn interval_passed(&mut self) -> usize {
        let before = self.unanswered.len();
        for request in &mut self.unanswered {
            request.intervals += 1;
        }
        self.unanswered
            .retain(|request| request.intervals < MAX_INTERVALS);
        before - self.unanswered.len()
    }

    /// Records a response. `after_events` is whether the server sends progress only after the events it covers.
    pub(crate) fn response_received(&mut self, revision: i64, after_events: bool, now: Instant) {
        let Some(request) = self.unanswered.pop_front() else {
            return;
        };
        let response = ProgressResponse {
            request: request.number,
            revision,
            requested_at: request.sent_at,
            after_events,
            settling_since: now,
        };
        if after_events {
            (self.certain, self.settling) = (Some(response), None);
            return;
        }
        self.certain = self.certain(now);
        // A response that has to wait is not replaced: with short intervals, none would ever be old enough.
        self.settling = self
            .settling
            .filter(|settling| !settling.has_settled(now))
            .or(Some(response));
    }

    /// Records events for a watch that was created after the request `created_after`. `oldest_revision` returns the
    /// revision of the oldest event; it is called only if a response may have overtaken the events. Returns whether
    /// [`certain`](Self::certain) has changed: the server still sends events that its progress covers.
    pub(crate) fn events_received(
        &mut self,
        created_after: u64,
        oldest_revision: impl FnOnce() -> i64,
        now: Instant,
    ) -> bool {
        let mut responses = self.settling.iter().chain(&self.certain);
        if !responses.any(|response| response.may_overtake(created_after)) {
            return false;
        }
        let revision = oldest_revision();
        let before = self.certain(now);
        if let Some(settling) = &mut self.settling
            && settling.has_overtaken(created_after, revision)
        {
            settling.settling_since = now;
        }
        self.certain = self
            .certain
            .filter(|certain| !certain.has_overtaken(created_after, revision));
        self.certain(now) != before
    }

    /// Returns the last response that certainly arrived after all events it covers.
    pub(crate) fn certain(&self, now: Instant) -> Option<ProgressResponse> {
        self.settling
            .filter(|settling| settling.has_settled(now))
            .or(self.certain)
    }

    /// Returns the revision up to which a watch is complete that was created after this request.
    pub(crate) fn bookmark(&self, created_after: u64, now: Instant) -> Option<i64> {
        self.certain(now)
            .filter(|response| response.request > created_after)
            .map(|response| response.revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn response_counts_for_oldest_request() {
        let (mut log, start) = (ProgressLog::default(), Instant::now());
        log.request_sent(start);
        log.request_sent(start + seconds(10));
        log.response_received(7, true, start + seconds(11));
        let certain = log.certain(start + seconds(11)).unwrap();
        assert_eq!((certain.revision, certain.requested_at), (7, start));
        log.response_received(8, true, start + seconds(11));
        let certain = log.certain(start + seconds(11)).unwrap();
        assert_eq!(certain.requested_at, start + seconds(10));
    }

    #[test]
    fn ignored_requests_are_forgotten_after_two_intervals() {
        let (mut log, start) = (ProgressLog::default(), Instant::now());
        log.request_sent(start);
        assert_eq!(log.interval_passed(), 0);
        log.request_sent(start + seconds(10));
        assert_eq!(log.interval_passed(), 1);
        log.response_received(7, true, start + seconds(20));
        let certain = log.certain(start + seconds(20)).unwrap();
        assert_eq!(certain.requested_at, start + seconds(10));
        log.response_received(9, true, start + seconds(21));
        assert_eq!(
            log.certain(start + seconds(30)),
            Some(certain),
            "no request"
        );
    }

    #[test]
    fn bookmark_covers_watches_created_before_the_request() {
        let (mut log, start) = (ProgressLog::default(), Instant::now());
        let early = log.last_request();
        log.request_sent(start);
        let late = log.last_request();
        log.response_received(7, true, start);
        assert_eq!(log.bookmark(early, start), Some(7));
        assert_eq!(log.bookmark(late, start), None);
    }

    #[test]
    fn progress_that_may_overtake_events_counts_later() {
        let (mut log, start) = (ProgressLog::default(), Instant::now());
        log.request_sent(start);
        log.response_received(7, false, start);
        assert_eq!(log.bookmark(0, start), None);
        assert_eq!(log.bookmark(0, start + SETTLE_TIME), Some(7));
        log.request_sent(start + seconds(10));
        log.response_received(9, false, start + seconds(10));
        assert_eq!(log.bookmark(0, start + seconds(10)), Some(7));
        assert_eq!(log.bookmark(0, start + seconds(11)), Some(9));
    }

    #[test]
    fn progress_does_not_count_while_overtaken_events_arrive() {
        let (mut log, start) = (ProgressLog::default(), Instant::now());
        log.request_sent(start);
        log.response_received(5000, false, start);
        let mut now = start;
        for revision in (0..5000).step_by(100) {
            now += Duration::from_millis(100);
            log.events_received(0, || revision, now);
            assert_eq!(log.bookmark(0, now), None, "at {revision}");
        }
        let late_watch = log.last_request();
        now += SETTLE_TIME;
        assert_eq!(log.bookmark(0, now), Some(5000));
        assert!(!log.events_received(late_watch, || 7, now));
        assert!(!log.events_received(0, || 5001, now));
        log.request_sent(now);
        log.response_received(6000, false, now);
        assert!(log.events_received(0, || 4999, now + SETTLE_TIME));
        assert_eq!(log.bookmark(0, now + SETTLE_TIME), None);
        assert_eq!(log.bookmark(0, now + 2 * SETTLE_TIME), Some(6000));
    }

    #[test]
    fn oldest_event_is_found_only_if_progress_may_overtake() {
        let (mut log, start) = (ProgressLog::default(), Instant::now());
        let unused = || -> i64 { panic!("the oldest event is not needed") };
        assert!(!log.events_received(0, unused, start), "no progress yet");
        log.request_sent(start);
        log.response_received(7, true, start);
        assert!(!log.events_received(0, unused, start));
        assert_eq!(log.bookmark(0, start), Some(7));
    }

    #[test]
    fn frequent_responses_become_certain() {
        let (mut log, start) = (ProgressLog::default(), Instant::now());
        for n in 0..20 {
            let now = start + Duration::from_millis(200) * n;
            log.request_sent(now);
            log.response_received(i64::from(n), false, now);
        }
        let now = start + Duration::from_millis(200) * 19;
        assert!(log.bookmark(0, now) >= Some(10));
    }
}
