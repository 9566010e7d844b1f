use std::{
    pin::pin,
    task::{Context, Poll, Waker},
};

use super::*;
use crate::{
    error::{Error, ErrorKind, Outcome},
    proto::KeyValue,
    watch::{
        Resynced, WatchEnd,
        engine::{
            cursor::ProgressOrder,
            known_keys::{DeletedKey, RangeDifference},
        },
    },
};

fn events(count: usize) -> Vec<Event> {
    vec![Event::default(); count]
}

/// Creates a buffer for this many events of any size.
fn buffer_of(events: usize) -> Arc<EventBuffer> {
    EventBuffer::new(BufferSize {
        events,
        bytes: usize::MAX,
    })
}

fn more(events: usize) -> BufferSize {
    BufferSize { events, bytes: 0 }
}

fn take(buffer: &EventBuffer) -> Option<TakenItem> {
    match buffer.poll_take(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(taken) => Some(taken),
        Poll::Pending => None,
    }
}

/// Polls a future once.
fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn take_all(buffer: &EventBuffer) -> Vec<BufferItem> {
    std::iter::from_fn(|| take(buffer).map(|taken| taken.item)).collect()
}

#[test]
fn batch_is_accepted_whole_while_room_remains() {
    let buffer = buffer_of(10);
    let writer = BufferWriter::new(buffer.clone());
    writer.batch(events(9));
    assert!(!writer.is_full());
    writer.batch(events(50));
    assert!(writer.is_full());
}

#[test]
fn bytes_fill_and_drain_a_buffer() {
    let buffer = EventBuffer::new(BufferSize {
        events: 1000,
        bytes: 100,
    });
    let writer = BufferWriter::new(buffer.clone());
    let large = |bytes: usize| {
        let kv = KeyValue {
            value: vec![0; bytes].into(),
            ..KeyValue::default()
        };
        vec![Event {
            kv: Some(kv),
            ..Event::default()
        }]
    };
    writer.batch(large(99));
    assert!(!writer.is_full());
    writer.batch(large(1000));
    assert!(writer.is_full(), "accepted whole");
    assert!(writer.request_drain());
    assert!(!take(&buffer).unwrap().drained);
    assert!(take(&buffer).unwrap().drained);
    assert!(!writer.is_full());
}

#[test]
fn drained_is_reported_once_at_half() {
    let buffer = buffer_of(10);
    let writer = BufferWriter::new(buffer.clone());
    for _ in 0..4 {
        writer.batch(events(3));
    }
    assert!(writer.request_drain());
    let drained: Vec<bool> = std::iter::from_fn(|| take(&buffer).map(|t| t.drained)).collect();
    assert_eq!(drained, [false, false, true, false]);
    assert!(
        !writer.request_drain(),
        "half of the buffer is read already"
    );
}

#[test]
fn status_events_between_batches_are_merged() {
    let buffer = buffer_of(10);
    let writer = BufferWriter::new(buffer.clone());
    let error = Arc::new(Error::new(ErrorKind::NoLeader, Outcome::Unknown, ""));
    for _ in 0..100 {
        writer.disconnected(error.clone());
        writer.resumed();
    }
    for revision in 0..100 {
        writer.progress(revision, ProgressOrder::AfterEvents);
    }
    let items = take_all(&buffer);
    assert!(matches!(
        items[..],
        [
            BufferItem::Single(WatchEvent::Disconnected(_)),
            BufferItem::Single(WatchEvent::Resumed),
            BufferItem::Single(WatchEvent::Progress(99))
        ]
    ));
}

#[test]
fn unread_status_events_stay_bounded() {
    let buffer = buffer_of(10);
    let writer = BufferWriter::new(buffer.clone());
    let error = Arc::new(Error::new(ErrorKind::NoLeader, Outcome::Unknown, ""));
    writer.batch(events(1));
    for revision in 0..100 {
        writer.disconnected(error.clone());
        writer.revision_regressed(7, revision);
        writer.resumed();
        writer.paused();
        writer.resumed();
        writer.progress(revision, ProgressOrder::AfterEvents);
    }
    let items = take_all(&buffer);
    assert!(matches!(
        items[..],
        [
            BufferItem::Batch { .. },
            BufferItem::Single(WatchEvent::Disconnected(_)),
            BufferItem::Single(WatchEvent::RevisionRegressed {
                seen: 7,
                current: 99
            }),
            BufferItem::Single(WatchEvent::Paused),
            BufferItem::Single(WatchEvent::Resumed),
            BufferItem::Single(WatchEvent::Progress(99)),
        ]
    ));
}

#[test]
fn resync_counts_as_its_changes() {
    let buffer = buffer_of(10);
    let writer = BufferWriter::new(buffer.clone());
    let resynced = |deleted: u8| {
        let deleted = (0..deleted).map(|n| DeletedKey {
            key: Box::new([n]),
            mod_revision: 1,
        });
        let difference = RangeDifference {
            created: Vec::new(),
            changed: Vec::new(),
            deleted: deleted.collect(),
        };
        Resynced::new(5, difference)
    };
    writer.resynced(resynced(0));
    assert_eq!(buffer.buffered().events, 1);
    writer.resynced(resynced(9));
    assert!(writer.is_full());
    take(&buffer);
    take(&buffer);
    assert_eq!(buffer.buffered(), BufferSize::default());
}

#[test]
fn nothing_follows_end_and_dropped_writer_ends() {
    let buffer = buffer_of(10);
    let writer = BufferWriter::new(buffer.clone());
    writer.end(WatchEnd::Cancelled);
    writer.batch(events(1));
    drop(writer);
    assert!(matches!(
        take_all(&buffer)[..],
        [BufferItem::Single(WatchEvent::Ended(WatchEnd::Cancelled))]
    ));
    let buffer = buffer_of(10);
    drop(BufferWriter::new(buffer.clone()));
    assert!(matches!(
        take_all(&buffer)[..],
        [BufferItem::Single(WatchEvent::Ended(WatchEnd::Shutdown))]
    ));
}

#[test]
fn memory_of_burst_is_released() {
    let buffer = buffer_of(10_000);
    let writer = BufferWriter::new(buffer.clone());
    for _ in 0..1000 {
        writer.batch(events(1));
    }
    take_all(&buffer);
    assert_eq!(buffer.lock().items.capacity(), 0);
}

#[test]
fn single_event_keeps_no_spare_capacity() {
    let buffer = buffer_of(10);
    let writer = BufferWriter::new(buffer.clone());
    let mut one = Vec::with_capacity(4);
    one.extend(events(1));
    writer.batch(one);
    let Some(BufferItem::Batch { events, .. }) = take(&buffer).map(|taken| taken.item) else {
        panic!("the batch is buffered");
    };
    assert_eq!(events.capacity(), 1);
}

#[tokio::test(start_paused = true)]
async fn stream_waits_until_half_is_read() {
    let buffer = buffer_of(8000);
    let writer = BufferWriter::new(buffer.clone());
    writer.batch(events(6000));
    assert!(buffer.is_nearly_full_with(more(1)));
    assert!(
        poll_once(buffer.wait_for_room(Instant::now())).is_some(),
        "there is room"
    );
    writer.batch(events(1500));
    let mut waiting = pin!(buffer.wait_for_room(Instant::now()));
    assert!(poll_once(waiting.as_mut()).is_none());
    take(&buffer);
    assert!(poll_once(waiting).is_some(), "half of the buffer was read");
}

#[tokio::test(start_paused = true)]
async fn stream_waits_once_for_slow_consumer() {
    let buffer = buffer_of(8000);
    let writer = BufferWriter::new(buffer.clone());
    for _ in 0..70 {
        writer.batch(events(100));
    }
    let began = Instant::now();
    buffer.wait_for_room(began).await;
    assert_eq!(began.elapsed(), Duration::from_millis(20));
    take(&buffer);
    assert!(
        poll_once(buffer.wait_for_room(Instant::now())).is_some(),
        "the last wait timed out"
    );
    // The stream waits again for a consumer that has caught up.
    take_all(&buffer);
    writer.batch(events(7000));
    buffer.wait_for_room(Instant::now()).await;
    assert_eq!(began.elapsed(), Duration::from_millis(40));
}

#[tokio::test(start_paused = true)]
async fn large_buffer_does_not_extend_the_wait() {
    let buffer = buffer_of(1_000_000);
    let writer = BufferWriter::new(buffer.clone());
    for _ in 0..5 {
        writer.batch(events(1000));
    }
    writer.batch(events(990_000));
    assert!(
        !buffer.is_nearly_full_with(more(2000)),
        "there is room for thousands"
    );
    writer.batch(events(5000));
    let began = Instant::now();
    let mut waiting = pin!(buffer.wait_for_room(began));
    assert!(poll_once(waiting.as_mut()).is_none());
    for _ in 0..5 {
        take(&buffer);
    }
    assert!(poll_once(waiting).is_some(), "the consumer is fast enough");
    writer.batch(events(5000));
    buffer.wait_for_room(began).await;
    assert!(began.elapsed() < Duration::from_millis(25));
    assert!(
        poll_once(buffer.wait_for_room(Instant::now())).is_some(),
        "the last wait timed out"
    );
}

#[tokio::test(start_paused = true)]
async fn many_slow_consumers_share_one_wait() {
    let buffers: Vec<_> = (0..255).map(|_| buffer_of(8000)).collect();
    let writers: Vec<_> = buffers.iter().cloned().map(BufferWriter::new).collect();
    for writer in &writers {
        writer.batch(events(8000));
    }
    let began = Instant::now();
    for buffer in &buffers {
        buffer.wait_for_room(began).await;
    }
    assert_eq!(began.elapsed(), Duration::from_millis(20));
    for buffer in &buffers {
        assert!(
            poll_once(buffer.wait_for_room(Instant::now())).is_some(),
            "the last wait timed out"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn stream_does_not_wait_for_ended_watch() {
    let buffer = buffer_of(8000);
    let writer = BufferWriter::new(buffer.clone());
    writer.batch(events(8000));
    let began = Instant::now();
    let mut waiting = pin!(buffer.wait_for_room(began));
    // The watch ends while the stream waits.
    let end = async { drop(writer) };
    tokio::join!(biased; waiting.as_mut(), end);
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(
        poll_once(buffer.wait_for_room(began)).is_some(),
        "the watch has ended"
    );
}
