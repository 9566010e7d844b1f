//! The streams that the member allows on a connection at once (`MAX_CONCURRENT_STREAMS`).
//!
//! A member or a proxy may set the limit and change it at any time. Above the limit, requests wait here and not inside
//! h2, so that a waiting request is known to be unsent. Calls wait in order.
//!
//! Calls and long-lived streams must not starve each other: some slots are reserved for long-lived streams and probes,
//! and long-lived streams never take the last slot.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use tokio::sync::{Mutex, Notify, watch};

/// Largest number of slots reserved for long-lived streams and probes.
const MAX_RESERVED: usize = 8;
/// Value of a limit that is not set.
const NO_LIMIT: usize = usize::MAX;
/// Larger limits count as none: some servers without a limit announce a very large number.
const LARGEST_LIMIT: usize = 1 << 24;

/// What a stream is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamUse {
    /// A request with one response, or a call of a generated client.
    Call,
    /// A request that checks the member. It may use every slot.
    Probe,
    /// A stream that lasts as long as the connection: watches, keepalives, health.
    LongLived,
}

/// Numbers of open streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OpenStreams {
    /// Calls and probes.
    calls: u32,
    long_lived: u32,
}

impl OpenStreams {
    fn unpack(packed: u64) -> Self {
        let [a, b, c, d, rest @ ..] = packed.to_be_bytes();
        Self {
            calls: u32::from_be_bytes(rest),
            long_lived: u32::from_be_bytes([a, b, c, d]),
        }
    }

    fn total(self) -> usize {
        self.calls as usize + self.long_lived as usize
    }

    /// Returns whether one more stream may be opened.
    fn have_room(self, stream_use: StreamUse, limit: usize) -> bool {
        if limit == NO_LIMIT {
            return true;
        }
        let long_lived = self.long_lived as usize;
        match stream_use {
            StreamUse::Probe => self.total() < limit,
            StreamUse::Call => {
                let reserved = reserved_slots(limit).saturating_sub(long_lived);
                self.total() < limit.saturating_sub(reserved)
            }
            StreamUse::LongLived => self.total() < limit && long_lived + 1 < limit,
        }
    }
}

/// Returns the number of slots reserved for long-lived streams: half of the limit, but two of three, so that a watch
/// and a lease fit beside a call.
fn reserved_slots(limit: usize) -> usize {
    let two_if_possible = limit.saturating_sub(1).min(2);
    (limit / 2).max(two_if_possible).min(MAX_RESERVED)
}

/// Counts the streams of a connection and limits them.
#[derive(Debug)]
pub(crate) struct StreamSlots {
    /// The member's limit, or [`NO_LIMIT`].
    limit: AtomicUsize,
    /// [`OpenStreams`] in one number: `long_lived` in the upper half, `calls` in the lower.
    open: AtomicU64,
    /// Held by the first waiting call; the others queue behind it.
    calls: Mutex<()>,
    /// Held by the first waiting probe. Probes do not wait for calls, because they may use more slots.
    probes: Mutex<()>,
    /// Wakes the first waiting call and the first waiting probe.
    freed: Notify,
    limit_changes: watch::Sender<usize>,
}

impl StreamSlots {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            limit: AtomicUsize::new(NO_LIMIT),
            open: AtomicU64::new(0),
            calls: Mutex::new(()),
            probes: Mutex::new(()),
            freed: Notify::new(),
            limit_changes: watch::Sender::new(NO_LIMIT),
        })
    }

    /// Sets the member's limit; called by the connection's driver alone. Streams that are open stay open.
    pub(crate) fn set_limit(&self, limit: usize) {
        let limit = if limit > LARGEST_LIMIT {
            NO_LIMIT
        } else {
            limit
        };
        if self.limit.load(Ordering::Relaxed) != limit {
            self.limit.store(limit, Ordering::Release);
            self.limit_changes.send_replace(limit);
            self.freed.notify_waiters();
        }
    }

    /// Returns the member's limit, if it has one.
    pub(crate) fn limit(&self) -> Option<usize> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|limit| *limit != NO_LIMIT)
    }

    /// Waits until the limit is below a number.
    pub(crate) async fn limit_below(&self, number: usize) {
        let mut changes = self.limit_changes.subscribe();
        // Never fails: `self` holds the sender.
        let _ = changes.wait_for(|limit| *limit < number).await;
    }

    /// Returns the number of open streams.
    pub(crate) fn open(&self) -> usize {
        OpenStreams::unpack(self.open.load(Ordering::Relaxed)).total()
    }

    /// Returns whether a stream can be opened without waiting.
    pub(crate) fn have_room(&self, stream_use: StreamUse) -> bool {
        let open = OpenStreams::unpack(self.open.load(Ordering::Relaxed));
        open.have_room(stream_use, self.limit.load(Ordering::Relaxed))
    }

    /// Takes a slot if one is free and no other request waits for it.
    pub(crate) fn try_take(self: &Arc<Self>, stream_use: StreamUse) -> Option<StreamSlot> {
        if self.limit.load(Ordering::Relaxed) == NO_LIMIT {
            self.open.fetch_add(unit(stream_use), Ordering::AcqRel);
            return Some(self.slot(stream_use));
        }
        // Calls do not overtake the calls that wait.
        let waiting = stream_use == StreamUse::Call && self.calls.try_lock().is_err();
        (!waiting && self.add(stream_use)).then(|| self.slot(stream_use))
    }

    /// Waits for a slot.
    pub(crate) async fn take(self: &Arc<Self>, stream_use: StreamUse) -> StreamSlot {
        if let Some(slot) = self.try_take(stream_use) {
            return slot;
        }
        let queue = match stream_use {
            StreamUse::Call | StreamUse::LongLived => &self.calls,
            StreamUse::Probe => &self.probes,
        };
        let _first = queue.lock().await;
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            if self.add(stream_use) {
                return self.slot(stream_use);
            }
            freed.await;
        }
    }

    fn add(&self, stream_use: StreamUse) -> bool {
        let added = self
            .open
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |packed| {
                let limit = self.limit.load(Ordering::Relaxed);
                let open = OpenStreams::unpack(packed);
                open.have_room(stream_use, limit)
                    .then(|| packed + unit(stream_use))
            });
        added.is_ok()
    }

    fn slot(self: &Arc<Self>, stream_use: StreamUse) -> StreamSlot {
        StreamSlot {
            slots: self.clone(),
            stream_use,
        }
    }
}

/// Returns what one stream adds to the packed number.
const fn unit(stream_use: StreamUse) -> u64 {
    match stream_use {
        StreamUse::Call | StreamUse::Probe => 1,
        StreamUse::LongLived => 1 << 32,
    }
}

/// The slot of one stream; free again when dropped.
#[derive(Debug)]
pub(crate) struct StreamSlot {
    slots: Arc<StreamSlots>,
    stream_use: StreamUse,
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let slots = &*self.slots;
        slots
            .open
            .fetch_sub(unit(self.stream_use), Ordering::AcqRel);
        if slots.limit.load(Ordering::Relaxed) != NO_LIMIT {
            slots.freed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;

    use super::*;

    fn limited_to(limit: usize) -> Arc<StreamSlots> {
        let slots = StreamSlots::new();
        slots.set_limit(limit);
        slots
    }

    /// Takes all slots that a use can get.
    fn take_all(slots: &Arc<StreamSlots>, stream_use: StreamUse) -> Vec<StreamSlot> {
        std::iter::from_fn(|| slots.try_take(stream_use)).collect()
    }

    #[test]
    fn calls_and_streams_leave_room_for_each_other() {
        // Limit, calls without long-lived streams, long-lived streams without calls.
        for (limit, calls, long_lived) in [
            (0, 0, 0),
            (1, 1, 0),
            (2, 1, 1),
            (3, 1, 2),
            (4, 2, 3),
            (8, 4, 7),
            (16, 8, 15),
            (100, 92, 99),
        ] {
            let slots = limited_to(limit);
            assert_eq!(take_all(&slots, StreamUse::Call).len(), calls, "{limit}");
            let streams = take_all(&slots, StreamUse::LongLived);
            assert_eq!(streams.len(), long_lived, "{limit}");
            let beside = take_all(&slots, StreamUse::Call).len();
            assert_eq!(beside, limit - long_lived, "beside streams, limit {limit}");
            assert_eq!(slots.open(), long_lived);
        }
    }

    #[test]
    fn probe_may_use_reserved_slots() {
        let slots = limited_to(4);
        let _calls = take_all(&slots, StreamUse::Call);
        assert!(!slots.have_room(StreamUse::Call));
        assert!(slots.try_take(StreamUse::Probe).is_some());
    }

    #[tokio::test]
    async fn waiting_probe_is_not_blocked_by_calls() {
        let slots = limited_to(4);
        let _calls = take_all(&slots, StreamUse::Call);
        let mut probes = take_all(&slots, StreamUse::Probe);
        let _waiting_call = tokio::spawn({
            let slots = slots.clone();
            async move { drop(slots.take(StreamUse::Call).await) }
        });
        let waiting_probe = tokio::spawn({
            let slots = slots.clone();
            async move { slots.take(StreamUse::Probe).await }
        });
        yield_now().await;
        // The slot is one of those reserved for probes and streams.
        probes.pop();
        waiting_probe.await.unwrap();
    }

    #[tokio::test]
    async fn waiting_calls_take_freed_slots_in_order() {
        let slots = limited_to(1);
        let first = slots.try_take(StreamUse::Call).unwrap();
        let (order, mut arrived) = tokio::sync::mpsc::unbounded_channel();
        for number in 0..3 {
            let (slots, order) = (slots.clone(), order.clone());
            tokio::spawn(async move {
                let _slot = slots.take(StreamUse::Call).await;
                order.send(number).unwrap();
            });
            yield_now().await;
        }
        assert!(arrived.try_recv().is_err());
        drop(first);
        assert!(slots.try_take(StreamUse::Call).is_none(), "calls wait");
        for number in 0..3 {
            assert_eq!(arrived.recv().await, Some(number));
        }
    }

    #[tokio::test]
    async fn limit_changes_apply_to_open_connection() {
        let slots = StreamSlots::new();
        let mut open = vec![slots.try_take(StreamUse::Call).unwrap()];
        open.push(slots.try_take(StreamUse::Call).unwrap());
        slots.set_limit(1);
        assert!(
            !slots.have_room(StreamUse::Probe),
            "streams above the limit"
        );
        open.pop();
        assert!(!slots.have_room(StreamUse::Probe), "one stream is left");
        let waiting = slots.take(StreamUse::Call);
        let mut waiting = std::pin::pin!(waiting);
        tokio::select! {
            biased;
            _ = &mut waiting => panic!("the limit is reached"),
            () = yield_now() => {}
        }
        slots.set_limit(4);
        open.push(waiting.await);
        slots.set_limit(u32::MAX as usize);
        assert!(slots.try_take(StreamUse::Call).is_some());
    }

    #[tokio::test]
    async fn cancelled_wait_does_not_block_the_next() {
        let slots = limited_to(1);
        let first = slots.try_take(StreamUse::Call).unwrap();
        let cancelled = tokio::spawn({
            let slots = slots.clone();
            async move { drop(slots.take(StreamUse::Call).await) }
        });
        let next = tokio::spawn({
            let slots = slots.clone();
            async move { drop(slots.take(StreamUse::Call).await) }
        });
        yield_now().await;
        cancelled.abort();
        drop(first);
        next.await.unwrap();
    }
}
