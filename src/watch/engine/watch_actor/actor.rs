//! The actor's state and lifecycle: how a watch attaches to a stream, leaves it, and handles updates.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use actix::{
    Actor, ActorContext, Addr, AsyncContext, Context, Handler, Message, Supervised, WeakAddr,
};
use tokio::{sync::oneshot, time::Instant};

use super::{
    hedge_legs::LegRole,
    messages::{LegReport, OutageTimedOut},
    watch_state::{Gap, WatchOutage, WatchState},
};
use crate::runtime::supervisor::crashes;
use crate::{
    call::Caller,
    connection::EndpointId,
    error::{Error, ErrorKind, Outcome},
    proto::{Event, event::EventType},
    runtime::{abort_on_drop::AbortOnDrop, backoff::Backoff},
    watch::{
        WatchEnd,
        engine::{
            cursor::{Cursor, ProgressOrder, Revisioned, StreamPosition},
            event_buffer::BufferWriter,
            freshness_record::{Detachment, LegFreshness},
            hub::{AttachWatch, DetachWatch, HubActor, RequestWatchProgress},
            known_keys::KnownKeys,
            watch_spec::WatchSpec,
            watch_stream::{AddWatch, StreamSharing},
        },
    },
};

/// Delays between attempts that fail in a row, shortened by up to a half.
const RETRY_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(50), Duration::from_secs(3)).jitter(0.5);

pub(crate) struct WatchActor {
    pub(super) id: u64,
    pub(super) spec: Arc<WatchSpec>,
    pub(super) cursor: Cursor<Event>,
    /// Keys that the consumer has; `Some` if the watch resyncs after a compaction.
    pub(super) known_keys: Option<Box<KnownKeys>>,
    pub(super) buffer: BufferWriter,
    pub(super) freshness: LegFreshness,
    pub(super) hub: WeakAddr<HubActor>,
    pub(super) caller: Weak<Caller>,
    pub(super) role: LegRole,
    pub(super) state: WatchState,
    /// Attach attempt number. Messages for older attempts are ignored.
    pub(super) attempt: u32,
    /// Failures in a row without a delivered event.
    pub(super) failures: u32,
    /// Cancels in a row with an unknown reason, without a delivered event.
    pub(super) unknown_cancels: u32,
    /// Senders that receive the next progress.
    pub(super) progress_requests: Vec<oneshot::Sender<i64>>,
    #[cfg(feature = "test-faults")]
    pub(super) crash_on_next: bool,
}

impl Revisioned for Event {
    fn mod_revision(&self) -> i64 {
        self.revision()
    }
}

impl WatchActor {
    /// Sends a message to the hub; returns `false` if the hub has stopped.
    pub(super) fn send_to_hub<M>(&self, message: M) -> bool
    where
        M: Message + Send + 'static,
        M::Result: Send,
        HubActor: Handler<M>,
    {
        let hub = self.hub.upgrade().filter(Addr::connected);
        if let Some(hub) = &hub {
            hub.do_send(message);
        }
        hub.is_some()
    }

    /// Requests a stream from the hub, on another member than `avoid` if possible.
    pub(super) fn attach(&mut self, avoid: Option<EndpointId>, ctx: &mut Context<Self>) {
        self.attach_to(StreamSharing::Shared, avoid, ctx);
    }

    pub(super) fn attach_to(
        &mut self,
        sharing: StreamSharing,
        avoid: Option<EndpointId>,
        ctx: &mut Context<Self>,
    ) {
        self.cursor.stream_ended();
        self.attempt += 1;
        self.freshness
            .detached(self.attempt, Detachment::Reconnecting, Instant::now());
        let Some(caller) = self.caller.upgrade() else {
            return self.end(WatchEnd::Shutdown, ctx);
        };
        if caller.tokens.are_awaited() {
            return self.renew_token(None, Duration::ZERO, ctx);
        }
        let token_generation = caller.context.token.generation();
        if matches!(
            self.state,
            WatchState::Attached { .. } | WatchState::Paused { .. }
        ) {
            self.leg_detached();
        }
        self.interrupt(ctx, |gap| WatchState::Attaching {
            gap,
            token_generation,
        });
        let add = AddWatch {
            watch: self.id,
            attempt: self.attempt,
            address: ctx.address(),
            spec: self.spec.clone(),
            next_revision: self.resume_revision(),
            sharing,
            buffer: self.buffer.buffer(),
            freshness: self.freshness.clone(),
        };
        let attach = AttachWatch {
            add,
            avoid,
            apart_from: self.role.other_watch(),
        };
        if !self.send_to_hub(attach) {
            self.end(WatchEnd::Shutdown, ctx);
        }
    }

    /// Leaves the stream without requesting another one. The caller sets the next state.
    pub(super) fn detach(&mut self, reason: Detachment) {
        self.cursor.stream_ended();
        self.attempt += 1;
        self.freshness
            .detached(self.attempt, reason, Instant::now());
        self.send_to_hub(DetachWatch {
            watch: self.id,
            ended: reason == Detachment::Ended,
        });
    }

    /// Moves to a state that waits for a stream; an outage begins if the watch was attached or paused.
    pub(super) fn interrupt(
        &mut self,
        ctx: &mut Context<Self>,
        next: impl FnOnce(Gap) -> WatchState,
    ) {
        let max_outage = self.max_outage();
        self.state.interrupt(|| start_outage(max_outage, ctx), next);
    }

    /// Restarts the time of an outage: until now the other leg served the watch.
    pub(super) fn restart_outage(&mut self, ctx: &mut Context<Self>) {
        let max_outage = self.max_outage();
        self.state.restart_outage(|| start_outage(max_outage, ctx));
    }

    fn max_outage(&self) -> Option<Duration> {
        // The first leg knows whether both legs are interrupted.
        let max_outage = self.spec.options.max_outage;
        max_outage.filter(|_| !self.role.is_second())
    }

    pub(super) fn end(&mut self, end: WatchEnd, ctx: &mut Context<Self>) {
        if matches!(self.state, WatchState::Ended) {
            return;
        }
        let gap = self.state.end();
        self.detach(Detachment::Ended);
        if let Some(Gap::Opening(opened)) = gap {
            let _ = opened.send(Err(end.to_error()));
        }
        self.end_first_leg(&end);
        // The buffer ends first: callers whose progress request is dropped look there for the reason.
        self.buffer.end(end);
        self.progress_requests.clear();
        ctx.stop();
    }

    pub(super) fn created(&mut self, revision: i64, cluster_id: u64, ctx: &mut Context<Self>) {
        let regressed = match self.cursor.created(revision, cluster_id) {
            StreamPosition::Continues => None,
            StreamPosition::RevisionRegressed { seen, current } => Some((seen, current)),
            StreamPosition::ClusterChanged { previous, current } => {
                return self.end(WatchEnd::ClusterChanged { previous, current }, ctx);
            }
        };
        let gap = self.state.attach(Instant::now());
        let resumed = matches!(gap, Some(Gap::Outage(_)));
        // Without ids, the revision in the header is not that of the member; see `Cursor::created`.
        let revision = if cluster_id == 0 { i64::MAX } else { revision };
        self.report_created(revision, regressed, resumed);
        if regressed.is_some() && !self.role.is_second() {
            self.check_regression(0, ctx);
        }
        match gap {
            Some(Gap::Opening(opened)) => {
                let complete = self.cursor.next_revision() - 1;
                self.buffer.set_delivered(complete);
                self.freshness.of_watch().opened(complete);
                if opened.send(Ok(())).is_err() {
                    return self.end(WatchEnd::Cancelled, ctx);
                }
            }
            Some(Gap::Outage(outage)) => {
                tracing::debug!(
                    watch = self.id,
                    next_revision = self.cursor.next_revision(),
                    outage_ms = outage.since.elapsed().as_millis(),
                    "watch resumed"
                );
            }
            None => {}
        }
        self.start_second_leg(ctx);
        if !self.progress_requests.is_empty() {
            self.request_progress(true);
        }
    }

    pub(super) fn events(&mut self, events: Vec<Event>, fragment: bool, ctx: &mut Context<Self>) {
        if self.buffer.is_full() {
            return self.pause(ctx);
        }
        self.leg_advanced();
        let Some(events) = self.cursor.events(events, fragment) else {
            return;
        };
        self.reset_failures();
        if let Some(events) = self.send_to_first_leg(events) {
            self.deliver(events);
        }
    }

    /// Delivers events that the cursor has passed.
    pub(super) fn deliver(&mut self, events: Vec<Event>) {
        if let Some(known_keys) = &mut self.known_keys {
            for event in &events {
                let Some(kv) = &event.kv else { continue };
                match event.r#type() {
                    EventType::Put => known_keys.put(&kv.key, kv.mod_revision),
                    EventType::Delete => known_keys.delete(&kv.key),
                }
            }
        }
        self.buffer.batch(events);
        self.publish_position();
    }

    pub(super) fn reset_failures(&mut self) {
        self.failures = 0;
        self.unknown_cancels = 0;
    }

    /// Leaves the stream until the consumer has read half of its buffer.
    pub(super) fn pause(&mut self, ctx: &mut Context<Self>) {
        tracing::debug!(watch = self.id, "watch paused for a slow consumer");
        self.report_paused();
        self.detach(Detachment::Paused);
        self.state.pause();
        if !self.buffer.request_drain() {
            self.attach(None, ctx);
        }
    }

    /// Requests the progress of the watch's stream from the server. `notify` is whether the watch waits for it.
    pub(super) fn request_progress(&self, notify: bool) {
        self.send_to_hub(RequestWatchProgress {
            watch: self.id,
            notify,
        });
    }

    /// Moves the cursor to the revision up to which the stream that ends has sent everything.
    pub(super) fn apply_bookmark(&mut self, bookmark: Option<i64>) {
        if let Some(revision) = bookmark {
            let order = ProgressOrder::AfterEvents;
            let is_new = self.cursor.progress(revision, order);
            match &self.role {
                LegRole::Second(second) if is_new => {
                    second.send(LegReport::Progress { revision, order });
                }
                _ => self.publish_position(),
            }
        }
    }

    pub(super) fn progress(&mut self, revision: i64, order: ProgressOrder) {
        if !self.cursor.progress(revision, order) {
            return;
        }
        self.leg_advanced();
        match &self.role {
            LegRole::Only | LegRole::First(_) => self.deliver_progress(revision, order),
            LegRole::Second(second) => second.send(LegReport::Progress { revision, order }),
        }
    }

    /// Delivers progress that the cursor has accepted.
    pub(super) fn deliver_progress(&mut self, revision: i64, order: ProgressOrder) {
        self.publish_position();
        let wanted = self.spec.options.progress_notify || !self.progress_requests.is_empty();
        if wanted && !self.buffer.is_full() {
            self.buffer.progress(revision, order);
        }
        for reply in self.progress_requests.drain(..) {
            let _ = reply.send(revision);
        }
    }

    /// Counts a failure and returns the delay before the next attempt: none for the first `without_delay` failures in
    /// a row.
    pub(super) fn next_delay(&mut self, without_delay: u32) -> Duration {
        let earlier = self.failures;
        self.failures += 1;
        let delayed = earlier.checked_sub(without_delay);
        delayed.map_or(Duration::ZERO, retry_delay)
    }
}

/// Returns the delay before the next attempt, after `earlier` delays in a row.
pub(super) fn retry_delay(earlier: u32) -> Duration {
    // Half of the random number selects from the lower half of the jitter.
    RETRY_BACKOFF.delay(earlier, fastrand::f64() / 2.0)
}

fn start_outage(max_outage: Option<Duration>, ctx: &Context<WatchActor>) -> WatchOutage {
    let since = Instant::now();
    let timer = max_outage.map(|max_outage| {
        let watch = ctx.address().downgrade();
        AbortOnDrop::spawn(async move {
            tokio::time::sleep_until(since + max_outage).await;
            if let Some(watch) = watch.upgrade() {
                watch.do_send(OutageTimedOut { since });
            }
        })
    });
    WatchOutage {
        since,
        last_error: None,
        _timer: timer,
    }
}

impl Actor for WatchActor {
    type Context = Context<Self>;

    /// Runs at the start, and after a panic. The panic lost timers and one message, perhaps events, so the watch
    /// attaches again at its cursor.
    fn started(&mut self, ctx: &mut Context<Self>) {
        self.schedule_freshness_report(ctx);
        self.restart_second_leg();
        match self.state {
            WatchState::AwaitingToken { .. }
            | WatchState::BackingOff { .. }
            | WatchState::Attaching { .. } => self.attach(None, ctx),
            WatchState::Attached { .. } => {
                let reason = "the watch's actor panicked";
                let error = Error::new(ErrorKind::Internal, Outcome::NotSent, reason);
                self.report_disconnected(Arc::new(error));
                self.attach(None, ctx);
            }
            WatchState::Paused { .. } => {
                if !self.buffer.request_drain() {
                    self.attach(None, ctx);
                }
            }
            WatchState::Resyncing { cause, .. } => self.start_resync(cause, ctx),
            WatchState::Ended => ctx.stop(),
        }
    }
}

impl Supervised for WatchActor {}

crashes!(WatchActor);
