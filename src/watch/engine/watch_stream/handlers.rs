//! Message handlers of a stream's actor.

use std::sync::Arc;

use actix::{ActorContext, AsyncContext, Context, Handler, MessageResult};

#[cfg(feature = "test-faults")]
use super::messages::CrashOnNextResponse;
use super::{
    StreamActor,
    actor::{StreamState, StreamWatch},
    create_pairing::Removed,
    messages::{
        AddWatch, CheckCreates, CloseStream, FlushRequests, ReadFailed, RemoveWatch,
        ResponsesReceived,
    },
    protocol_error,
    response_routing::BatchEffects,
};
use crate::{error::Outcome, watch::engine::watch_actor::StreamUpdate};

impl Handler<AddWatch> for StreamActor {
    type Result = ();

    fn handle(&mut self, add: AddWatch, ctx: &mut Context<Self>) {
        let watch = StreamWatch {
            watch: add.watch,
            attempt: add.attempt,
            address: add.address,
            spec: add.spec,
            start_revision: add.next_revision,
            sharing: add.sharing,
            buffer: add.buffer,
            freshness: add.freshness,
            created_after: None,
            awaits_progress: false,
        };
        if let StreamState::Ended { error } = &self.state {
            let error = error.clone().unwrap_or_else(|| {
                let reason = "the watch stream was closed as it had no watches";
                Arc::new(protocol_error(reason, &self.connection))
            });
            watch.send(StreamUpdate::StreamFailed {
                endpoint: self.connection.id,
                error,
                bookmark: None,
            });
            return;
        }
        let watch_id = self.pairing.create(Box::new(watch), add.next_revision);
        self.ids.insert(add.watch, watch_id);
        let nothing_to_send = self.outgoing.is_empty();
        self.collect_creates();
        if nothing_to_send && !self.outgoing.is_empty() {
            // Handled after all creates that are in the mailbox already.
            ctx.notify(FlushRequests);
        }
        if self.create_timeout.is_none() {
            self.check_creates(ctx);
        }
    }
}

impl Handler<RemoveWatch> for StreamActor {
    type Result = ();

    fn handle(&mut self, remove: RemoveWatch, _: &mut Context<Self>) {
        let Some(id) = self.ids.get(&remove.watch).copied() else {
            return;
        };
        if let Removed::Sent(_) = self.pairing.cancel(id) {
            self.send_cancel(id);
        }
        self.forget(remove.watch);
    }
}

impl Handler<ResponsesReceived> for StreamActor {
    type Result = MessageResult<ResponsesReceived>;

    fn handle(
        &mut self,
        received: ResponsesReceived,
        _: &mut Context<Self>,
    ) -> MessageResult<ResponsesReceived> {
        #[cfg(feature = "test-faults")]
        assert!(
            !std::mem::take(&mut self.crash_on_next),
            "crash requested by a test"
        );
        let mut effects = BatchEffects::new(received.bytes);
        for response in received.responses {
            if self.has_ended() {
                break;
            }
            self.responses += 1;
            self.route(response, &mut effects);
        }
        MessageResult(effects.nearly_full)
    }
}

impl Handler<FlushRequests> for StreamActor {
    type Result = ();

    fn handle(&mut self, _: FlushRequests, _: &mut Context<Self>) {
        self.flush();
    }
}

impl Handler<ReadFailed> for StreamActor {
    type Result = ();

    fn handle(&mut self, failed: ReadFailed, _: &mut Context<Self>) {
        if let Some(id) = failed.too_large_for
            && let Removed::Sent(watch) = self.pairing.cancel(id)
        {
            let error = failed.error.clone().with_outcome(Outcome::NotSent);
            watch.send(StreamUpdate::ResponseTooLarge(error));
        }
        self.fail(failed.error);
    }
}

impl Handler<CheckCreates> for StreamActor {
    type Result = ();

    fn handle(&mut self, _: CheckCreates, ctx: &mut Context<Self>) {
        self.check_creates(ctx);
    }
}

impl Handler<CloseStream> for StreamActor {
    type Result = ();

    fn handle(&mut self, _: CloseStream, ctx: &mut Context<Self>) {
        self.watch_count.close();
        if !self.has_ended() {
            self.state = StreamState::Ended { error: None };
        }
        ctx.stop();
    }
}

#[cfg(feature = "test-faults")]
impl Handler<CrashOnNextResponse> for StreamActor {
    type Result = ();

    fn handle(&mut self, _: CrashOnNextResponse, _: &mut Context<Self>) {
        self.crash_on_next = true;
    }
}
