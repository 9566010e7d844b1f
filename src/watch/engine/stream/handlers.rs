//! What a stream's actor does when it is told something.

use std::sync::Arc;

use actix::{ActorContext, AsyncContext, Context, Handler, MessageResult};

use super::{
    Ask, Broken, Close, Flush, Leave, LookForOverdue, Open, Received, StreamActor,
    actor::Subscriber, reader::protocol,
};
use crate::{
    proto::{WatchProgressRequest, WatchRequest, watch_request::RequestUnion},
    watch::engine::{CrashOnNext, News, crash_if},
};

impl Handler<Open> for StreamActor {
    type Result = ();

    fn handle(&mut self, open: Open, ctx: &mut Context<Self>) {
        let who = Subscriber {
            watch: open.watch,
            attachment: open.attachment,
            address: open.address,
            queue: open.queue,
        };
        if self.load.has_ended() {
            let error = self.error.clone().unwrap_or_else(|| {
                Arc::new(protocol("the watch stream was closed as it had no watches"))
            });
            who.tell(News::Broken {
                endpoint: self.connection.id,
                error,
            });
            return;
        }
        let watch_id = self.creates.create(who, open.next_revision);
        self.ids.insert(open.watch, watch_id);
        let create = open.spec.create(watch_id, open.next_revision);
        self.outgoing.push(WatchRequest {
            request_union: Some(RequestUnion::CreateRequest(create)),
        });
        if self.outgoing.len() == 1 {
            // Handled when no more creates wait in the mailbox.
            ctx.notify(Flush);
        }
        if self.overdue.is_none() {
            self.look_for_overdue(ctx);
        }
    }
}

impl Handler<Leave> for StreamActor {
    type Result = ();

    fn handle(&mut self, leave: Leave, _: &mut Context<Self>) {
        let Some(id) = self.ids.get(&leave.watch).copied() else {
            return;
        };
        if self.creates.cancel(id).is_some() {
            self.cancel(id);
        }
        self.forget(leave.watch);
    }
}

impl Handler<Ask> for StreamActor {
    type Result = ();

    fn handle(&mut self, _: Ask, _: &mut Context<Self>) {
        self.creates.progress_asked();
        self.send(RequestUnion::ProgressRequest(WatchProgressRequest {}));
    }
}

impl Handler<Received> for StreamActor {
    type Result = MessageResult<Received>;

    fn handle(
        &mut self,
        Received(responses): Received,
        _: &mut Context<Self>,
    ) -> MessageResult<Received> {
        crash_if(std::mem::take(&mut self.doomed));
        self.events = 0;
        for response in responses {
            if self.load.has_ended() {
                break;
            }
            self.answers += 1;
            self.hear(response);
        }
        MessageResult(std::mem::take(&mut self.crowded))
    }
}

impl Handler<Flush> for StreamActor {
    type Result = ();

    fn handle(&mut self, _: Flush, _: &mut Context<Self>) {
        self.flush();
    }
}

impl Handler<Broken> for StreamActor {
    type Result = ();

    fn handle(&mut self, broken: Broken, _: &mut Context<Self>) {
        if let Some(id) = broken.too_large_for
            && let Some(who) = self.creates.cancel(id)
        {
            who.tell(News::TooLarge(broken.error.clone()));
        }
        self.break_up(broken.error);
    }
}

impl Handler<LookForOverdue> for StreamActor {
    type Result = ();

    fn handle(&mut self, _: LookForOverdue, ctx: &mut Context<Self>) {
        self.look_for_overdue(ctx);
    }
}

impl Handler<Close> for StreamActor {
    type Result = ();

    fn handle(&mut self, _: Close, ctx: &mut Context<Self>) {
        self.load.end();
        self.wire = None;
        ctx.stop();
    }
}

impl Handler<CrashOnNext> for StreamActor {
    type Result = ();

    fn handle(&mut self, _: CrashOnNext, _: &mut Context<Self>) {
        self.doomed = true;
    }
}
