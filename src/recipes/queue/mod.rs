//! A queue of items, of which each is completed once, by one of any number of takers.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use actix_etcd::kv::put;
//!
//! let jobs = etcd.queue("jobs");
//! jobs.push("report 7").await?;
//!
//! let item = jobs.take().await?; // waits for an item
//! println!("{:?}, attempt {}", item.value(), item.attempt());
//! item.done_with(put("reports/7", "…")).await?; // the effect and the completion, atomically
//! # Ok(())
//! # }
//! ```
//!
//! Items are taken in the order of their creation; with [`by_priority`](Queue::by_priority), those with the smallest
//! [priority](PushItem::priority) first.
//!
//! # Guarantees
//! - A [`push`](Queue::push) puts its item exactly once, also if the response is lost.
//! - An item stays in the queue until it is completed. A crash of its taker does not lose it.
//! - Two takers never have an item at the same time in etcd. A taker that pauses for longer than its lease lives may
//!   still work on an item that another one has taken: [`QueueItem::lost`] resolves, and a completion fails with
//!   [`ErrorKind::LockLost`](crate::ErrorKind::LockLost). So effects in etcd belong into
//!   [`done_with`](QueueItem::done_with), or under the [`conditions`](QueueItem::conditions) of the item; other stores can
//!   compare its [`token`](QueueItem::token), which grows with each take of the item.
//! - A completed item is never taken again.
//!
//! An item whose taker fails is ready again: at once with [`put_back`](QueueItem::put_back), after a delay with
//! [`retry_after`](QueueItem::retry_after), and otherwise when the [visibility time-out](Queue::visibility) has passed or
//! the taker's session has ended. A dropped item counts as failed and returns after the time-out. It does not
//! return at once, because an item that always fails would then keep its takers busy and the items behind it waiting.
//! [`dead_letters`](Queue::dead_letters) moves an item that has failed too often to another queue.
//!
//! # Keys
//! | key | content |
//! |---|---|
//! | `<name>/<nanoseconds>-<random>` | an item |
//! | `<name>/<priority>/<nanoseconds>-<random>` | an item with a priority of five digits |
//! | `__<name>/claims/…` | who has taken an item; bound to the session of the taker |
//! | `__<name>/takers/…` | the line of takers that wait for an item |
//!
//! In a path, `__` precedes the last part: the claims of `app/jobs` are below `app/__jobs/`. Keep other keys out of
//! `<name>/`: they would be items. A take writes the item without changing its value, so its version counts the takes.
//!
//! Items are keys of the Go client's `recipe` package: queues with and without priorities. Go programs can push. They can
//! also take, but they delete an item to take it and ignore claims: do not mix them with takers of this client. Go orders
//! by mod revision, or within a priority by a number in the key; here, the order is that of the create revisions.
//!
//! # Waiting
//! Takers that find no item form a line, in which each one watches only the taker before it. Only the first one watches
//! the queue, so that an item wakes one taker, not all. If the first one freezes, the line waits until its
//! lease ends: see [`ttl`](Queue::ttl).
//!
//! To find the oldest item, etcd reads the whole queue: keep the backlog below some ten thousand items.
//!
//! # Actors
//! [`deliver_to`](Queue::deliver_to) takes items on behalf of an actor. An item is completed when the actor has handled it
//! without an error:
//! ```no_run
//! use actix::{Actor, Context, Handler, ResponseFuture};
//! use actix_etcd::recipes::queue::{ItemError, QueueEvent};
//!
//! struct Worker;
//!
//! impl Actor for Worker {
//!     type Context = Context<Self>;
//! }
//!
//! impl Handler<QueueEvent> for Worker {
//!     type Result = ResponseFuture<Result<(), ItemError>>;
//!
//!     fn handle(&mut self, event: QueueEvent, _: &mut Context<Self>) -> Self::Result {
//!         Box::pin(async move {
//!             if let QueueEvent::Item(item) = event {
//!                 println!("work on {:?}", std::str::from_utf8(item.value())?);
//!             }
//!             Ok(())
//!         })
//!     }
//! }
//!
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! let worker = Worker.start();
//! let subscription = etcd.queue("jobs").concurrency(4).deliver_to(worker.recipient()).await?;
//! # Ok(())
//! # }
//! ```
//! An actor pushes by messages: `etcd.send(queue("jobs").push("report 7"))`.

mod claim_item;
mod item_delivery;
mod item_hold;
mod next_item;
mod push_item;
mod queue_handle;
mod queue_item;
mod queue_keys;
mod take_item;

pub use self::{
    item_delivery::{DeliverItems, ItemError, QueueEvent},
    push_item::{PushItem, PushedItem},
    queue_handle::{Queue, queue},
    queue_item::QueueItem,
};
