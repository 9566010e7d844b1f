//! What the hub does when it is told something.

use std::{collections::HashMap, sync::Arc};

use actix::{ActorContext, AsyncContext, Context, Handler, MessageResult};
use tokio::time::Instant;

use super::{CrashStreams, Entry, HubActor, LookAgain, Place};
use crate::{
    runtime::delivery::deliver,
    watch::engine::{
        AskProgress, Attach, CrashOnNext, Detach, Shutdown, Start,
        actor::{ShutDown, WatchActor},
        pump::Pump,
        stream::{Ask, Close, StreamAnswered, StreamEnded},
    },
};

impl Handler<Start> for HubActor {
    type Result = MessageResult<Start>;

    fn handle(&mut self, start: Start, ctx: &mut Context<Self>) -> MessageResult<Start> {
        self.last_watch += 1;
        let hub = ctx.address().downgrade();
        let caller = Arc::downgrade(&self.caller);
        let address = WatchActor::start(self.last_watch, start, hub, caller);
        let entry = Entry {
            address: address.clone(),
            place: Place::Nowhere,
        };
        self.watches.insert(self.last_watch, entry);
        MessageResult((self.last_watch, address))
    }
}

impl Handler<Attach> for HubActor {
    type Result = ();

    fn handle(&mut self, attach: Attach, ctx: &mut Context<Self>) {
        self.leave_stream(attach.watch);
        self.watches.entry(attach.watch).or_insert_with(|| Entry {
            address: attach.address.clone(),
            place: Place::Nowhere,
        });
        self.place(attach, ctx);
    }
}

impl Handler<Detach> for HubActor {
    type Result = ();

    fn handle(&mut self, detach: Detach, _: &mut Context<Self>) {
        self.leave_stream(detach.watch);
        if detach.for_good {
            self.watches.remove(&detach.watch);
            if self.watches.is_empty() {
                self.watches = HashMap::new();
            }
        }
    }
}

impl Handler<AskProgress> for HubActor {
    type Result = ();

    fn handle(&mut self, ask: AskProgress, _: &mut Context<Self>) {
        let place = self.watches.get(&ask.watch).map(|entry| entry.place);
        if let Some(Place::On(number)) = place
            && let Some(stream) = self.stream(number)
        {
            stream.address.do_send(Ask);
        }
    }
}

impl Handler<LookAgain> for HubActor {
    type Result = ();

    fn handle(&mut self, look: LookAgain, ctx: &mut Context<Self>) {
        if look.leaderless {
            self.looking.for_any = false;
        } else {
            self.looking.for_leader = false;
        }
        for attach in std::mem::take(&mut self.waiting) {
            self.place(attach, ctx);
        }
        if self.waiting.is_empty() {
            self.waiting = Vec::new();
            self.looks = 0;
        }
    }
}

impl Handler<StreamAnswered> for HubActor {
    type Result = ();

    fn handle(&mut self, answered: StreamAnswered, _: &mut Context<Self>) {
        self.pacing.answered(answered.endpoint);
    }
}

impl Handler<StreamEnded> for HubActor {
    type Result = ();

    fn handle(&mut self, ended: StreamEnded, _: &mut Context<Self>) {
        if ended.connection_dead {
            self.pacing.dead(ended.endpoint, ended.generation);
        } else if ended.own_ids {
            self.own_ids.insert(ended.endpoint);
        } else if ended.fruitless {
            self.pacing
                .strike(ended.endpoint, Instant::now(), fastrand::f64());
        }
        self.close_stream(ended.stream);
    }
}

impl Handler<Pump> for HubActor {
    type Result = ();

    fn handle(&mut self, Pump { watch, recipient }: Pump, _: &mut Context<Self>) {
        actix_rt::spawn(deliver(watch, recipient));
    }
}

impl Handler<Shutdown> for HubActor {
    type Result = ();

    fn handle(&mut self, _: Shutdown, ctx: &mut Context<Self>) {
        self.waiting.clear();
        for entry in std::mem::take(&mut self.watches).into_values() {
            entry.address.do_send(ShutDown);
        }
        for stream in std::mem::take(&mut self.streams) {
            stream.address.do_send(Close);
        }
        ctx.stop();
    }
}

impl Handler<CrashStreams> for HubActor {
    type Result = ();

    fn handle(&mut self, _: CrashStreams, _: &mut Context<Self>) {
        for stream in &self.streams {
            stream.address.do_send(CrashOnNext);
        }
    }
}
