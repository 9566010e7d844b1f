//! Message handlers of the hub.

use std::collections::HashMap;

use actix::{ActorContext, Context, Handler};
use tokio::time::Instant;

#[cfg(feature = "test-faults")]
use super::messages::CrashStreams;
use super::{
    HubActor,
    actor::{PlacedWatch, Placement},
    messages::{
        AttachWatch, CreateResponseReceived, DeliverWatch, DetachWatch, HubShutdown,
        RequestWatchProgress, RetryPlacement, StartWatch, StreamEndReason, WatchStreamEnded,
    },
};
#[cfg(feature = "test-faults")]
use crate::watch::engine::watch_stream::CrashOnNextResponse;
use crate::{
    runtime::delivery::deliver_to_end,
    watch::engine::{
        watch_actor::WatchShutdown,
        watch_stream::{CloseStream, SendProgressRequest},
    },
};

impl Handler<StartWatch> for HubActor {
    type Result = ();

    fn handle(&mut self, start: StartWatch, ctx: &mut Context<Self>) {
        let address = self.new_watch(ctx).start(start);
        let placed = PlacedWatch::new(address);
        self.watches.insert(self.last_watch, placed);
    }
}

impl Handler<AttachWatch> for HubActor {
    type Result = ();

    fn handle(&mut self, attach: AttachWatch, ctx: &mut Context<Self>) {
        self.leave_stream(attach.add.watch);
        self.watches
            .entry(attach.add.watch)
            .or_insert_with(|| PlacedWatch::new(attach.add.address.clone()));
        self.place(attach, ctx);
    }
}

impl Handler<DetachWatch> for HubActor {
    type Result = ();

    fn handle(&mut self, detach: DetachWatch, _: &mut Context<Self>) {
        self.leave_stream(detach.watch);
        if detach.ended {
            self.remove_watch(detach.watch);
            if self.watches.is_empty() {
                self.watches = HashMap::new();
            }
        }
    }
}

impl Handler<RequestWatchProgress> for HubActor {
    type Result = ();

    fn handle(&mut self, request: RequestWatchProgress, _: &mut Context<Self>) {
        let placed = self.watches.get(&request.watch);
        if let Some(Placement::OnStream(number)) = placed.map(|placed| placed.placement)
            && let Some(stream) = self.stream(number)
        {
            let notify = request.notify.then_some(request.watch);
            stream.address.do_send(SendProgressRequest { notify });
        }
    }
}

impl Handler<RetryPlacement> for HubActor {
    type Result = ();

    fn handle(&mut self, retry: RetryPlacement, ctx: &mut Context<Self>) {
        *self.pending_retries.flag(retry.leaderless) = false;
        for attach in std::mem::take(&mut self.queued) {
            self.place(attach, ctx);
        }
        if self.queued.is_empty() {
            self.queued = Vec::new();
            self.retry_backoff.reset();
        }
    }
}

impl Handler<CreateResponseReceived> for HubActor {
    type Result = ();

    fn handle(&mut self, received: CreateResponseReceived, _: &mut Context<Self>) {
        self.member_backoff
            .create_response_received(received.endpoint);
        match received.server_chooses_ids {
            Some(true) => self.id_choosing_members.insert(received.endpoint),
            Some(false) => self.id_choosing_members.remove(&received.endpoint),
            None => false,
        };
    }
}

impl Handler<WatchStreamEnded> for HubActor {
    type Result = ();

    fn handle(&mut self, ended: WatchStreamEnded, _: &mut Context<Self>) {
        match ended.reason {
            StreamEndReason::ConnectionDied => self
                .member_backoff
                .connection_died(ended.endpoint, ended.generation),
            StreamEndReason::NoCreateResponse => self.member_backoff.create_response_missing(
                ended.endpoint,
                Instant::now(),
                fastrand::f64(),
            ),
            StreamEndReason::Unused | StreamEndReason::Failed => {}
        }
        self.close_stream(ended.stream);
    }
}

impl Handler<DeliverWatch> for HubActor {
    type Result = ();

    fn handle(&mut self, deliver: DeliverWatch, _: &mut Context<Self>) {
        deliver.if_shut_down.disarm();
        actix_rt::spawn(deliver_to_end(deliver.watch, deliver.recipient));
    }
}

impl Handler<HubShutdown> for HubActor {
    type Result = ();

    fn handle(&mut self, _: HubShutdown, ctx: &mut Context<Self>) {
        self.queued.clear();
        self.waiting_legs.clear();
        for placed in std::mem::take(&mut self.watches).into_values() {
            placed.address.do_send(WatchShutdown);
        }
        for stream in std::mem::take(&mut self.streams) {
            stream.address.do_send(CloseStream);
        }
        ctx.stop();
    }
}

#[cfg(feature = "test-faults")]
impl Handler<CrashStreams> for HubActor {
    type Result = ();

    fn handle(&mut self, _: CrashStreams, _: &mut Context<Self>) {
        for stream in &self.streams {
            stream.address.do_send(CrashOnNextResponse);
        }
    }
}
