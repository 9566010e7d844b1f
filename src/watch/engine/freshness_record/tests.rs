use std::time::Duration;

use super::*;
use crate::{
    connection::Verdict,
    watch::{WatchStatus, engine::watch_stream::ProgressLog},
};

struct Stream {
    health: watch::Sender<MemberHealth>,
    log: ProgressLog,
    progress: Arc<StreamProgress>,
    start: Instant,
}

impl Stream {
    fn new(start: Instant) -> Self {
        let endpoint = Endpoint::parse("http://a:2379").unwrap();
        let health = watch::Sender::new(MemberHealth::new(Verdict::Fine, None));
        Self {
            log: ProgressLog::default(),
            progress: Arc::new(StreamProgress::new(endpoint, health.subscribe())),
            health,
            start,
        }
    }

    fn attach(&self, record: &LegFreshness, attempt: u32) {
        let attachment = Attachment {
            progress: self.progress.clone(),
            created_after: self.log.last_request(),
            member: 7,
        };
        record.attached(attempt, attachment);
    }

    /// Sends a probe at `at`. The response arrives a second later.
    fn probe(&self, member: u64, revision: i64, at: u64) {
        let requested_at = self.start + seconds(at);
        let status = RaftStatus {
            at: requested_at + seconds(1),
            requested_at,
            cluster: 1,
            member,
            leader: 1,
            term: 1,
            index: 1,
            learner: false,
            revision,
            version: None,
        };
        let health = MemberHealth::new(Verdict::Fine, Some(status));
        self.health.send_replace(health);
    }

    /// Requests progress at `at`, and receives the response a second later.
    fn progress(&mut self, revision: i64, at: u64) {
        let at = self.start + seconds(at);
        self.log.request_sent(at);
        self.log.response_received(revision, true, at + seconds(1));
        self.progress.publish(self.log.certain(at + seconds(1)));
    }
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Returns an attached watch that is complete up to revision 5, and its stream.
fn attached() -> (LegFreshness, Stream) {
    let start = Instant::now();
    let record = LegFreshness::of_first_leg(Arc::new(FreshnessRecord::new(start)));
    let stream = Stream::new(start);
    record.detached(1, Detachment::Reconnecting, start);
    stream.attach(&record, 1);
    record.of_watch().opened(5);
    (record, stream)
}

/// Returns the revision, and the time of the confirmation in seconds.
fn freshness(record: &LegFreshness, stream: &Stream, delivered: i64) -> (i64, u64) {
    let freshness = record.of_watch().freshness(delivered);
    let as_of = freshness.as_of - stream.start.into_std();
    (freshness.revision, as_of.as_secs())
}

#[test]
fn progress_confirms_quiet_watch_as_of_its_request() {
    let (record, mut stream) = attached();
    assert_eq!(freshness(&record, &stream, 5), (5, 0));
    stream.progress(90, 10);
    assert_eq!(freshness(&record, &stream, 5), (90, 10));
    let attached = WatchStatus::Attached {
        endpoint: "http://a:2379".to_owned(),
        member: 7,
    };
    assert_eq!(record.of_watch().freshness(5).status, attached);
}

#[test]
fn progress_requires_events_sent_before() {
    let (record, mut stream) = attached();
    let at = stream.start + seconds(3);
    record.events_sent(1, 8, 5, at);
    stream.progress(90, 10);
    assert_eq!(freshness(&record, &stream, 5), (5, 0));
    assert_eq!(freshness(&record, &stream, 8), (90, 10));
}

#[test]
fn later_event_keeps_earlier_progress() {
    let (record, mut stream) = attached();
    stream.progress(90, 10);
    record.events_sent(1, 95, 5, stream.start + seconds(12));
    assert_eq!(freshness(&record, &stream, 5), (90, 10));
    assert_eq!(freshness(&record, &stream, 95), (95, 12));
}

#[test]
fn progress_before_create_does_not_count() {
    let (record, mut stream) = attached();
    stream.log.request_sent(stream.start);
    record.detached(2, Detachment::Reconnecting, stream.start);
    stream.attach(&record, 2);
    stream.log.response_received(90, true, stream.start);
    stream.progress.publish(stream.log.certain(stream.start));
    assert_eq!(freshness(&record, &stream, 5), (5, 0));
}

#[test]
fn detached_watch_ignores_progress_of_former_stream() {
    let (record, mut stream) = attached();
    stream.progress(90, 10);
    let since = stream.start + seconds(20);
    record.detached(2, Detachment::Reconnecting, since);
    record.detached(3, Detachment::Reconnecting, since + seconds(5));
    stream.progress(120, 20);
    stream.attach(&record, 1);
    record.events_sent(1, 95, 5, since);
    assert_eq!(freshness(&record, &stream, 5), (90, 10));
    let since = since.into_std();
    assert_eq!(
        record.of_watch().freshness(5).status,
        WatchStatus::Reconnecting { since }
    );
}

#[test]
fn restored_revisions_count_once_the_resync_is_read() {
    let (record, stream) = attached();
    record.events_sent(1, 43, 5, stream.start + seconds(3));
    record.detached(2, Detachment::Resyncing, stream.start + seconds(4));
    record.of_watch().resynced(10, stream.start + seconds(6));
    record.detached(3, Detachment::Reconnecting, stream.start + seconds(7));
    stream.attach(&record, 3);
    record.events_sent(3, 11, 43, stream.start + seconds(8));
    assert_eq!(freshness(&record, &stream, 43).0, 43);
    assert!(
        freshness(&record, &stream, 43).1 < 6,
        "the resync is unread"
    );
    record.of_watch().resync_read();
    assert_eq!(freshness(&record, &stream, 10), (10, 6));
    assert_eq!(freshness(&record, &stream, 11), (11, 8));
}

#[test]
fn slow_consumer_keeps_few_confirmations() {
    let (record, stream) = attached();
    for revision in 6..100 {
        let at = stream.start + seconds(1);
        record.events_sent(1, revision, 5, at);
    }
    assert_eq!(
        record.of_watch().lock().confirmations.len(),
        MAX_CONFIRMATIONS
    );
    assert_eq!(freshness(&record, &stream, 99), (99, 1));
    record.events_sent(1, 100, 99, stream.start + seconds(2));
    assert_eq!(record.of_watch().lock().confirmations.len(), 1);
}

#[test]
fn probe_confirms_watch_of_idle_cluster() {
    let (record, stream) = attached();
    stream.probe(7, 5, 10);
    assert_eq!(freshness(&record, &stream, 5), (5, 10));
    stream.probe(7, 6, 20);
    assert_eq!(
        freshness(&record, &stream, 5),
        (5, 0),
        "a change may be missing"
    );
    record.events_sent(1, 6, 5, stream.start + seconds(19));
    assert_eq!(freshness(&record, &stream, 5), (5, 0));
    assert_eq!(freshness(&record, &stream, 6), (6, 20));
    for (member, revision) in [(8, 6), (7, 0)] {
        stream.probe(member, revision, 30);
        assert_eq!(freshness(&record, &stream, 6), (6, 19));
    }
}

/// Returns a hedged watch that is complete up to revision 5, with both legs attached, and its streams.
fn both_attached() -> (LegFreshness, LegFreshness, Stream, Stream) {
    let (first, stream) = attached();
    let (second, other_stream) = (first.of_second_leg(), Stream::new(stream.start));
    second.detached(1, Detachment::Reconnecting, stream.start);
    other_stream.attach(&second, 1);
    (first, second, stream, other_stream)
}

#[test]
fn fresher_leg_confirms_hedged_watch() {
    let (first, _, mut stream, mut other_stream) = both_attached();
    other_stream.progress(90, 10);
    assert_eq!(freshness(&first, &stream, 5), (90, 10));
    stream.progress(90, 12);
    assert_eq!(freshness(&first, &stream, 5), (90, 12));
    other_stream.probe(7, 90, 20);
    assert_eq!(freshness(&first, &stream, 5), (90, 20));
    stream.probe(7, 90, 30);
    assert_eq!(freshness(&first, &stream, 5), (90, 30));
}

#[test]
fn confirmation_of_one_leg_requires_events_of_both() {
    let (first, second, stream, mut other_stream) = both_attached();
    first.events_sent(1, 8, 5, stream.start + seconds(3));
    first.detached(2, Detachment::Reconnecting, stream.start + seconds(4));
    other_stream.progress(90, 10);
    assert_eq!(
        freshness(&first, &stream, 5),
        (5, 0),
        "revision 8 is unread"
    );
    assert_eq!(freshness(&first, &stream, 8), (90, 10));
    second.events_sent(1, 8, 8, stream.start + seconds(20));
    assert_eq!(
        freshness(&first, &stream, 8),
        (90, 10),
        "a repeat confirms nothing"
    );
}

#[test]
fn hedged_watch_reconnects_only_without_any_leg() {
    let (first, second, stream, _) = both_attached();
    let status = || first.of_watch().freshness(5).status;
    let lost = |leg: &LegFreshness, at: u64| {
        leg.detached(2, Detachment::Reconnecting, stream.start + seconds(at));
    };
    lost(&first, 10);
    assert!(matches!(status(), WatchStatus::Attached { .. }));
    lost(&second, 20);
    let since = (stream.start + seconds(20)).into_std();
    assert_eq!(status(), WatchStatus::Reconnecting { since });
    stream.attach(&first, 2);
    assert!(matches!(status(), WatchStatus::Attached { .. }));
    first.detached(3, Detachment::Paused, stream.start + seconds(30));
    assert!(matches!(status(), WatchStatus::Paused { .. }));
    stream.attach(&second, 2);
    first.detached(4, Detachment::Ended, stream.start + seconds(40));
    assert_eq!(status(), WatchStatus::Ended);
}

#[test]
fn restore_clears_confirmations_of_both_legs() {
    let (first, second, stream, mut other_stream) = both_attached();
    second.events_sent(1, 43, 5, stream.start + seconds(3));
    other_stream.progress(50, 4);
    first.detached(2, Detachment::Resyncing, stream.start + seconds(5));
    first.of_watch().restored(10, stream.start + seconds(6));
    second.events_sent(1, 44, 43, stream.start + seconds(7));
    first.of_watch().resync_read();
    assert_eq!(freshness(&first, &stream, 10), (10, 6));
    second.detached(2, Detachment::Reconnecting, stream.start + seconds(8));
    stream.attach(&second, 2);
    second.events_sent(2, 11, 10, stream.start + seconds(9));
    assert_eq!(freshness(&first, &stream, 11), (11, 9));
}
