//! What waits for a consumer, and for how long.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
};

use super::*;
use crate::{
    error::{ErrorKind, Outcome},
    watch::engine::resync::{Difference, Gone},
};

fn events(count: usize) -> Vec<Event> {
    vec![Event::default(); count]
}

fn take(queue: &Queue) -> Option<Taken> {
    match queue.poll_take(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(taken) => Some(taken),
        Poll::Pending => None,
    }
}

/// What a future has to say without being waited for.
fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn rest(queue: &Queue) -> Vec<Queued> {
    std::iter::from_fn(|| take(queue).map(|taken| taken.item)).collect()
}

#[test]
fn a_batch_is_taken_whole_while_there_is_any_room() {
    let queue = Queue::new(10);
    let feed = Feed::new(queue.clone());
    feed.batch(events(9));
    assert!(!feed.is_full());
    feed.batch(events(50));
    assert!(feed.is_full());
}

#[test]
fn the_consumer_says_once_that_half_of_the_queue_is_read() {
    let queue = Queue::new(10);
    let feed = Feed::new(queue.clone());
    for _ in 0..4 {
        feed.batch(events(3));
    }
    assert!(feed.want_drain());
    let drained: Vec<bool> = std::iter::from_fn(|| take(&queue).map(|t| t.drained)).collect();
    assert_eq!(drained, [false, false, true, false]);
    assert!(!feed.want_drain(), "it is drained already");
}

#[test]
fn notices_between_two_events_do_not_pile_up() {
    let queue = Queue::new(10);
    let feed = Feed::new(queue.clone());
    let error = Arc::new(Error::new(ErrorKind::NoLeader, Outcome::Unknown, ""));
    for _ in 0..100 {
        feed.disconnected(error.clone());
        feed.resumed();
    }
    for revision in 0..100 {
        feed.progress(revision);
    }
    let items = rest(&queue);
    assert!(matches!(
        items[..],
        [
            Queued::Disconnected(_),
            Queued::Resumed,
            Queued::Progress(99)
        ]
    ));
}

#[test]
fn notices_of_all_kinds_stay_few_while_nobody_reads() {
    let queue = Queue::new(10);
    let feed = Feed::new(queue.clone());
    let error = Arc::new(Error::new(ErrorKind::NoLeader, Outcome::Unknown, ""));
    feed.batch(events(1));
    for revision in 0..100 {
        feed.disconnected(error.clone());
        feed.regressed(7, revision);
        feed.resumed();
        feed.lagging();
        feed.resumed();
        feed.progress(revision);
    }
    let items = rest(&queue);
    assert!(matches!(
        items[..],
        [
            Queued::Batch(_),
            Queued::Disconnected(_),
            Queued::Regressed { seen: 7, told: 99 },
            Queued::Paused,
            Queued::Resumed,
            Queued::Progress(99),
        ]
    ));
}

#[test]
fn a_resync_takes_as_much_room_as_it_tells() {
    let queue = Queue::new(10);
    let feed = Feed::new(queue.clone());
    let resynced = |gone: u8| {
        let gone = (0..gone).map(|n| Gone {
            key: Box::new([n]),
            mod_revision: 1,
        });
        let difference = Difference {
            created: Vec::new(),
            changed: Vec::new(),
            deleted: gone.collect(),
        };
        Resynced::new(5, difference)
    };
    feed.resynced(resynced(0));
    assert_eq!(queue.waiting(), 1);
    feed.resynced(resynced(9));
    assert!(feed.is_full());
    take(&queue);
    take(&queue);
    assert_eq!(queue.waiting(), 0);
}

#[test]
fn nothing_follows_the_end_and_a_lost_feed_is_one() {
    let queue = Queue::new(10);
    let feed = Feed::new(queue.clone());
    feed.end(WatchEnd::Cancelled);
    feed.batch(events(1));
    drop(feed);
    assert!(matches!(
        rest(&queue)[..],
        [Queued::Ended(WatchEnd::Cancelled)]
    ));
    let queue = Queue::new(10);
    drop(Feed::new(queue.clone()));
    assert!(matches!(
        rest(&queue)[..],
        [Queued::Ended(WatchEnd::Shutdown)]
    ));
}

#[test]
fn what_a_burst_took_is_given_back() {
    let queue = Queue::new(10_000);
    let feed = Feed::new(queue.clone());
    for _ in 0..1000 {
        feed.batch(events(1));
    }
    rest(&queue);
    assert_eq!(queue.lock().items.capacity(), 0);
}

#[test]
fn a_single_event_waits_without_room_for_more() {
    let queue = Queue::new(10);
    let feed = Feed::new(queue.clone());
    let mut one = Vec::with_capacity(4);
    one.extend(events(1));
    feed.batch(one);
    let Some(Queued::Batch(waited)) = take(&queue).map(|taken| taken.item) else {
        panic!("the batch waits");
    };
    assert_eq!(waited.capacity(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_stream_waits_until_half_of_a_crowded_queue_is_read() {
    let queue = Queue::new(8000);
    let feed = Feed::new(queue.clone());
    feed.batch(events(6000));
    assert!(queue.is_crowded_by(1));
    assert!(
        now(queue.relieved(Instant::now())).is_some(),
        "there is room"
    );
    feed.batch(events(1500));
    let mut relieved = pin!(queue.relieved(Instant::now()));
    assert!(now(relieved.as_mut()).is_none());
    take(&queue);
    assert!(now(relieved).is_some(), "half of it was read");
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_is_slow_is_waited_for_once() {
    let queue = Queue::new(8000);
    let feed = Feed::new(queue.clone());
    for _ in 0..70 {
        feed.batch(events(100));
    }
    let began = Instant::now();
    queue.relieved(began).await;
    assert_eq!(began.elapsed(), Duration::from_millis(20));
    take(&queue);
    assert!(
        now(queue.relieved(Instant::now())).is_some(),
        "it was in vain"
    );
    // Who has caught up is worth waiting for again.
    rest(&queue);
    feed.batch(events(7000));
    queue.relieved(Instant::now()).await;
    assert_eq!(began.elapsed(), Duration::from_millis(40));
}

#[tokio::test(start_paused = true)]
async fn a_large_queue_is_not_waited_for_longer_than_a_usual_one() {
    let queue = Queue::new(1_000_000);
    let feed = Feed::new(queue.clone());
    for _ in 0..5 {
        feed.batch(events(1000));
    }
    feed.batch(events(990_000));
    assert!(!queue.is_crowded_by(2000), "there is room for thousands");
    feed.batch(events(5000));
    let began = Instant::now();
    let mut relieved = pin!(queue.relieved(began));
    assert!(now(relieved.as_mut()).is_none());
    for _ in 0..5 {
        take(&queue);
    }
    assert!(now(relieved).is_some(), "the reader keeps pace");
    feed.batch(events(5000));
    queue.relieved(began).await;
    assert!(began.elapsed() < Duration::from_millis(25));
    assert!(now(queue.relieved(Instant::now())).is_some(), "in vain");
}

#[tokio::test(start_paused = true)]
async fn many_slow_readers_together_cost_the_stream_one_wait() {
    let queues: Vec<_> = (0..255).map(|_| Queue::new(8000)).collect();
    let feeds: Vec<_> = queues.iter().cloned().map(Feed::new).collect();
    for feed in &feeds {
        feed.batch(events(8000));
    }
    let began = Instant::now();
    for queue in &queues {
        queue.relieved(began).await;
    }
    assert_eq!(began.elapsed(), Duration::from_millis(20));
    for queue in &queues {
        assert!(now(queue.relieved(Instant::now())).is_some(), "in vain");
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_watch_that_has_ended() {
    let queue = Queue::new(8000);
    let feed = Feed::new(queue.clone());
    feed.batch(events(8000));
    let began = Instant::now();
    let mut relieved = pin!(queue.relieved(began));
    // It ends while the stream waits.
    let end = async { drop(feed) };
    tokio::join!(biased; relieved.as_mut(), end);
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(now(queue.relieved(began)).is_some(), "it has ended");
}
