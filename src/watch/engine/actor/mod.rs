//! One watch: its cursor, its place, its end.

mod handlers;
mod loss;
mod resyncing;
mod token;

use std::sync::{Arc, Weak};

use actix::{
    Actor, ActorContext, Addr, AsyncContext, Context, Handler, Message, SpawnHandle, Supervised,
    WeakAddr,
};
use tokio::{sync::oneshot, time::Instant};

use super::{
    AskProgress, Attach, Detach, Spec, Start,
    cursor::{Attached, Cursor, Revisioned},
    hub::HubActor,
    queue::Feed,
    resync::Known,
};
use crate::{
    call::Caller,
    connection::EndpointId,
    error::{Error, ErrorKind, Outcome},
    proto::{Event, event::EventType},
    runtime::supervisor::{crashes, supervise},
    watch::WatchEnd,
};

pub(crate) struct WatchActor {
    id: u64,
    spec: Arc<Spec>,
    cursor: Cursor<Event>,
    /// What the consumer knows of, if it wants a resync.
    known: Option<Box<Known>>,
    feed: Feed,
    hub: WeakAddr<HubActor>,
    caller: Weak<Caller>,
    phase: Phase,
    /// Which attempt to attach this is: what is said to an older one is not heard.
    attachment: u32,
    /// The generation of the token that was in use when it was attached.
    token: u64,
    opened: Option<oneshot::Sender<Result<(), Error>>>,
    asking: Vec<oneshot::Sender<i64>>,
    attached_at: Option<Instant>,
    down_since: Option<Instant>,
    /// Will say that the outage was too long.
    outage: Option<SpawnHandle>,
    error: Option<Arc<Error>>,
    /// Times in a row that the server ended it soon.
    setbacks: u32,
    restarted: bool,
    doomed: bool,
}

/// Where a watch is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The hub looks for a place, or the server has not answered. A stream that breaks: again.
    Attaching,
    /// Events flow. A stream that breaks: `Attaching`. A full queue: `Paused`. Compacted: `Resyncing`, or the end.
    Attached,
    /// Not on the server, until the consumer has read half of the queue: `Attaching`.
    Paused,
    /// The range is read anew: then `Attaching`.
    Resyncing,
    /// The last item was said.
    Ended,
}

/// End the watch: its consumer wants no more of it.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Cancel;

/// End the watch: the client ends.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct ShutDown;

/// The consumer has read enough of the queue.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Drained;

/// A message to the hub may have been lost.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct HubRestarted;

/// Ask the server how far it is; the answer goes to `told`. Without: ask once more for those who wait.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct RequestProgress {
    pub(crate) told: Option<oneshot::Sender<i64>>,
}

/// The pause before the next attempt is over.
#[derive(Message)]
#[rtype(result = "()")]
struct AttachDue {
    attachment: u32,
    avoid: Option<EndpointId>,
}

/// The outage that began then may have lasted too long.
#[derive(Message)]
#[rtype(result = "()")]
struct OutageDue {
    since: Instant,
}

impl Revisioned for Event {
    fn mod_revision(&self) -> i64 {
        self.kv.as_ref().map_or(0, |kv| kv.mod_revision)
    }
}

impl WatchActor {
    pub(crate) fn start(
        id: u64,
        start: Start,
        hub: WeakAddr<HubActor>,
        caller: Weak<Caller>,
    ) -> Addr<Self> {
        supervise(
            "watch",
            |_| {},
            |_| Self {
                id,
                cursor: Cursor::new(start.from_revision),
                spec: start.spec,
                known: start.known.map(Box::new),
                feed: Feed::new(start.queue),
                hub,
                caller,
                phase: Phase::Attaching,
                attachment: 0,
                token: 0,
                opened: Some(start.opened),
                asking: Vec::new(),
                attached_at: None,
                down_since: None,
                outage: None,
                error: None,
                setbacks: 0,
                restarted: false,
                doomed: false,
            },
        )
    }

    fn tell_hub<M>(&self, message: M) -> bool
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

    fn attach(&mut self, avoid: Option<EndpointId>, ctx: &mut Context<Self>) {
        self.cursor.broken();
        self.attachment += 1;
        self.phase = Phase::Attaching;
        let Some(caller) = self.caller.upgrade() else {
            return self.end(WatchEnd::Shutdown, ctx);
        };
        if caller.tokens.are_awaited() {
            return self.await_token(ctx);
        }
        self.token = caller.shared.token.generation();
        let told = self.tell_hub(Attach {
            watch: self.id,
            attachment: self.attachment,
            address: ctx.address(),
            spec: self.spec.clone(),
            next_revision: self.cursor.next_revision(),
            queue: self.feed.queue(),
            avoid,
        });
        if !told {
            self.end(WatchEnd::Shutdown, ctx);
        }
    }

    /// Leaves the server without looking for a new place.
    fn detach(&mut self, phase: Phase) {
        self.cursor.broken();
        self.attachment += 1;
        self.phase = phase;
        self.tell_hub(Detach {
            watch: self.id,
            for_good: phase == Phase::Ended,
        });
    }

    fn end(&mut self, end: WatchEnd, ctx: &mut Context<Self>) {
        if self.phase == Phase::Ended {
            return;
        }
        self.detach(Phase::Ended);
        if let Some(opened) = self.opened.take() {
            let _ = opened.send(Err(end.to_error()));
        }
        // Those who ask look there for the reason.
        self.feed.end(end);
        self.asking.clear();
        ctx.stop();
    }

    fn went_down(&mut self, ctx: &mut Context<Self>) {
        if self.opened.is_some() || self.down_since.is_some() {
            return;
        }
        self.down_since = Some(Instant::now());
        self.time_outage(ctx);
    }

    fn time_outage(&mut self, ctx: &mut Context<Self>) {
        if let (Some(since), Some(longest)) = (self.down_since, self.spec.max_outage) {
            let left = (since + longest).saturating_duration_since(Instant::now());
            self.outage = Some(ctx.notify_later(OutageDue { since }, left));
        }
    }

    /// Whether it was down.
    fn is_up_again(&mut self, ctx: &mut Context<Self>) -> bool {
        // It may be hours away: a watch that is lost often would gather them.
        if let Some(outage) = self.outage.take() {
            ctx.cancel_future(outage);
        }
        self.down_since.take().is_some()
    }

    /// Looks for a place after it was without one.
    fn resume(&mut self, ctx: &mut Context<Self>) {
        self.went_down(ctx);
        self.attach(None, ctx);
    }

    fn created(&mut self, revision: i64, cluster_id: u64, ctx: &mut Context<Self>) {
        match self.cursor.created(revision, cluster_id) {
            Attached::InStep => {}
            Attached::RevisionRegressed { seen, told } => {
                tracing::warn!(
                    watch = self.id,
                    seen,
                    told,
                    "the member is behind this watch"
                );
                self.feed.regressed(seen, told);
            }
            Attached::ClusterChanged { was, is } => {
                return self.end(WatchEnd::ClusterChanged { was, is }, ctx);
            }
        }
        self.phase = Phase::Attached;
        self.attached_at = Some(Instant::now());
        self.error = None;
        let was_down = self.is_up_again(ctx);
        if let Some(opened) = self.opened.take() {
            self.feed.set_delivered(self.cursor.next_revision() - 1);
            if opened.send(Ok(())).is_err() {
                self.end(WatchEnd::Cancelled, ctx);
            }
        } else if was_down && self.spec.status_events {
            self.feed.resumed();
        }
        if !self.asking.is_empty() {
            self.tell_hub(AskProgress { watch: self.id });
        }
    }

    fn events(&mut self, events: Vec<Event>, fragment: bool, ctx: &mut Context<Self>) {
        if self.feed.is_full() {
            return self.lag(ctx);
        }
        let Some(batch) = self.cursor.events(events, fragment) else {
            return;
        };
        let events = batch.into_events();
        if let Some(known) = &mut self.known {
            for event in &events {
                let Some(kv) = &event.kv else { continue };
                match event.r#type() {
                    EventType::Put => known.put(&kv.key, kv.mod_revision),
                    EventType::Delete => known.delete(&kv.key),
                }
            }
        }
        self.feed.batch(events);
        self.setbacks = 0;
    }

    fn lag(&mut self, ctx: &mut Context<Self>) {
        tracing::debug!(watch = self.id, "the consumer is slow; paused");
        if self.spec.status_events {
            self.feed.lagging();
        }
        self.detach(Phase::Paused);
        if !self.feed.want_drain() {
            self.resume(ctx);
        }
    }

    fn progress(&mut self, revision: i64) {
        let Some(revision) = self.cursor.progress(revision) else {
            return;
        };
        if (self.spec.progress_notify || !self.asking.is_empty()) && !self.feed.is_full() {
            self.feed.progress(revision);
        }
        for asked in self.asking.drain(..) {
            let _ = asked.send(revision);
        }
    }
}

impl Actor for WatchActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if !std::mem::take(&mut self.restarted) {
            return self.attach(None, ctx);
        }
        // Timers died, and one message: perhaps events. What was delivered is known, so it is asked for anew.
        self.outage = None;
        self.time_outage(ctx);
        match self.phase {
            Phase::Attaching => self.resume(ctx),
            Phase::Attached => {
                if self.spec.status_events {
                    let error = "the watch's actor panicked";
                    let error = Error::new(ErrorKind::Internal, Outcome::Unknown, error);
                    self.feed.disconnected(Arc::new(error));
                }
                self.resume(ctx);
            }
            Phase::Paused => {
                if !self.feed.want_drain() {
                    self.resume(ctx);
                }
            }
            Phase::Resyncing => self.reread(ctx),
            Phase::Ended => ctx.stop(),
        }
    }
}

impl Supervised for WatchActor {
    fn restarting(&mut self, _: &mut Context<Self>) {
        self.restarted = true;
    }
}

crashes!(WatchActor);
