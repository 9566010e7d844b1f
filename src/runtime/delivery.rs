//! Delivers a stream of items to an actor, one message at a time.
//!
//! The next item waits until the actor has handled the previous one, so that no mailbox grows. Delivery stops when the
//! actor stops, even while there are no items.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

use actix::{Message, Recipient};
use tokio_stream::{Stream, StreamExt};

pub(crate) use super::stopped_actors::actor_stopped;

/// Sends items until the stream ends or the actor stops. If the actor panics and is restarted by a supervisor, delivery
/// continues with the next item.
pub(crate) async fn deliver<M>(mut items: impl Stream<Item = M> + Unpin, recipient: Recipient<M>)
where
    M: Message<Result = ()> + Send + 'static,
{
    let send_all = async {
        while let Some(item) = items.next().await {
            if recipient.send(item).await.is_err() && !recipient.connected() {
                return;
            }
        }
    };
    tokio::select! {
        () = send_all => {}
        () = actor_stopped(&recipient) => {}
    }
}

thread_local! {
    static UNFINISHED: Unfinished = Unfinished::default();
}

/// Deliveries on this thread that [`deliver_to_end`] has not finished.
#[derive(Default)]
struct Unfinished {
    count: Cell<usize>,
    /// Waits in [`deliveries_finished`].
    waker: RefCell<Option<Waker>>,
}

/// Like [`deliver`], for a stream whose last item the actor must receive: the client's thread does not end before.
pub(crate) fn deliver_to_end<M>(
    items: impl Stream<Item = M> + Unpin,
    recipient: Recipient<M>,
) -> impl Future<Output = ()>
where
    M: Message<Result = ()> + Send + 'static,
{
    let unfinished = UnfinishedDelivery::new();
    async move {
        deliver(items, recipient).await;
        drop(unfinished);
    }
}

/// Returns whether a [`deliver_to_end`] on this thread has not finished.
pub(super) fn has_unfinished_deliveries() -> bool {
    UNFINISHED.with(|unfinished| unfinished.count.get() > 0)
}

/// Waits until every [`deliver_to_end`] on this thread has finished. Has one caller per thread.
pub(super) async fn deliveries_finished() {
    poll_fn(|cx| {
        if !has_unfinished_deliveries() {
            return Poll::Ready(());
        }
        UNFINISHED.with(|unfinished| unfinished.waker.replace(Some(cx.waker().clone())));
        Poll::Pending
    })
    .await;
}

/// Something on this thread that must be finished before the thread ends.
pub(crate) struct UnfinishedDelivery;

impl UnfinishedDelivery {
    pub(crate) fn new() -> Self {
        UNFINISHED.with(|unfinished| unfinished.count.update(|count| count + 1));
        Self
    }
}

impl Drop for UnfinishedDelivery {
    fn drop(&mut self) {
        // Fails while the thread ends, when nothing waits.
        let _ = UNFINISHED.try_with(|unfinished| {
            unfinished.count.update(|count| count.saturating_sub(1));
            if unfinished.count.get() == 0
                && let Some(waker) = unfinished.waker.take()
            {
                waker.wake();
            }
        });
    }
}

/// Sends a last message to an actor when dropped, unless disarmed. Guards a delivery that is started on the client's
/// thread: if the thread has ended, the delivery never starts and the actor still receives its last message.
pub(crate) struct SendOnDrop<M>
where
    M: Message<Result = ()> + Send + 'static,
{
    recipient: Recipient<M>,
    message: Option<M>,
}

impl<M> SendOnDrop<M>
where
    M: Message<Result = ()> + Send + 'static,
{
    pub(crate) fn new(recipient: Recipient<M>, message: Option<M>) -> Self {
        Self { recipient, message }
    }

    /// Drops the guard without sending. Call it when the delivery starts.
    pub(crate) fn disarm(mut self) {
        self.message = None;
    }
}

impl<M> Drop for SendOnDrop<M>
where
    M: Message<Result = ()> + Send + 'static,
{
    fn drop(&mut self) {
        if let Some(message) = self.message.take() {
            self.recipient.do_send(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    };

    use actix::{Actor, ActorContext, Context, Handler, ResponseFuture};
    use tokio::sync::{Semaphore, mpsc};
    use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};

    use super::*;

    #[derive(Message)]
    #[rtype(result = "()")]
    struct Item(u32);

    /// Records items. Stops at a zero.
    struct Recorder(Arc<Mutex<Vec<u32>>>);

    impl Actor for Recorder {
        type Context = Context<Self>;
    }

    impl Handler<Item> for Recorder {
        type Result = ();

        fn handle(&mut self, Item(n): Item, ctx: &mut Context<Self>) {
            self.0.lock().unwrap().push(n);
            if n == 0 {
                ctx.stop();
            }
        }
    }

    #[actix::test]
    async fn delivery_ends_with_the_actor_while_idle() {
        tokio::time::pause();
        let received = Arc::default();
        let recorder = Recorder(Arc::clone(&received)).start();
        let (sender, items) = mpsc::unbounded_channel();
        let items = UnboundedReceiverStream::new(items);
        let delivery = actix_rt::spawn(deliver(items, recorder.clone().recipient()));
        sender.send(Item(7)).unwrap();
        sender.send(Item(0)).unwrap();
        delivery.await.unwrap();
        assert_eq!(*received.lock().unwrap(), [7, 0]);
        assert!(sender.is_closed());
    }

    /// Handles one item per permit.
    struct Slow(Arc<Semaphore>);

    impl Actor for Slow {
        type Context = Context<Self>;
    }

    impl Handler<Item> for Slow {
        type Result = ResponseFuture<()>;

        fn handle(&mut self, _: Item, _: &mut Context<Self>) -> Self::Result {
            let permits = self.0.clone();
            Box::pin(async move { permits.acquire().await.unwrap().forget() })
        }
    }

    #[actix::test]
    async fn items_wait_outside_the_mailbox_of_a_slow_actor() {
        let permits = Arc::new(Semaphore::new(0));
        let slow = Slow(permits.clone()).start();
        let (sender, items) = mpsc::channel(10);
        let taken = Arc::new(AtomicUsize::new(0));
        let counter = taken.clone();
        let items = ReceiverStream::new(items).map(move |item| {
            counter.fetch_add(1, Ordering::SeqCst);
            item
        });
        for n in 0..10 {
            sender.send(Item(n)).await.unwrap();
        }
        drop(sender);
        let delivery = actix_rt::spawn(deliver(items, slow.recipient()));
        for handled in 0..10 {
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
            assert_eq!(taken.load(Ordering::SeqCst), handled + 1);
            permits.add_permits(1);
        }
        delivery.await.unwrap();
    }

    #[actix::test]
    async fn last_message_is_sent_unless_disarmed() {
        let received = Arc::default();
        let recorder = Recorder(Arc::clone(&received)).start();
        let guard = |n| SendOnDrop::new(recorder.clone().recipient(), Some(Item(n)));
        guard(1).disarm();
        drop(guard(2));
        recorder.send(Item(3)).await.unwrap();
        assert_eq!(*received.lock().unwrap(), [2, 3]);
    }
}
