//! Hands what happens to an actor, one message at a time.
//!
//! A slow actor is waited for, so that nothing grows in its mailbox; one that has ended is noticed even while nothing
//! happens, so that nothing is kept for it.

use std::time::Duration;

use actix::{Message, Recipient};
use tokio_stream::{Stream, StreamExt};

/// Between two looks at whether an actor is still there: actix tells nobody of its end.
const LOOK: Duration = Duration::from_millis(200);

/// Waits until the actor has ended.
pub(crate) async fn gone<M>(recipient: &Recipient<M>)
where
    M: Message<Result = ()> + Send,
{
    while recipient.connected() {
        tokio::time::sleep(LOOK).await;
    }
}

/// Sends the next item when the last was handled. Ends with the items or the actor; an actor that a supervisor restarts
/// after a panic gets the next item.
pub(crate) async fn deliver<M>(mut items: impl Stream<Item = M> + Unpin, recipient: Recipient<M>)
where
    M: Message<Result = ()> + Send + 'static,
{
    let pump = async {
        while let Some(item) = items.next().await {
            if recipient.send(item).await.is_err() && !recipient.connected() {
                return;
            }
        }
    };
    tokio::select! {
        () = pump => {}
        () = gone(&recipient) => {}
    }
}

/// Tells an actor how it ends where what should tell it was never started: the client's thread had ended.
pub(crate) struct Unheard<M>
where
    M: Message<Result = ()> + Send + 'static,
{
    recipient: Recipient<M>,
    last: Option<M>,
}

impl<M> Unheard<M>
where
    M: Message<Result = ()> + Send + 'static,
{
    pub(crate) fn new(recipient: Recipient<M>, last: Option<M>) -> Self {
        Self { recipient, last }
    }

    /// It was started: what it tells comes from there.
    pub(crate) fn started(mut self) {
        self.last = None;
    }
}

impl<M> Drop for Unheard<M>
where
    M: Message<Result = ()> + Send + 'static,
{
    fn drop(&mut self) {
        if let Some(last) = self.last.take() {
            self.recipient.do_send(last);
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

    /// Ends at a zero.
    struct Listener(Arc<Mutex<Vec<u32>>>);

    impl Actor for Listener {
        type Context = Context<Self>;
    }

    impl Handler<Item> for Listener {
        type Result = ();

        fn handle(&mut self, Item(n): Item, ctx: &mut Context<Self>) {
            self.0.lock().unwrap().push(n);
            if n == 0 {
                ctx.stop();
            }
        }
    }

    #[actix::test]
    async fn what_is_kept_for_an_actor_goes_with_it_while_nothing_happens() {
        tokio::time::pause();
        let heard = Arc::default();
        let listener = Listener(Arc::clone(&heard)).start();
        let (tell, items) = mpsc::unbounded_channel();
        let items = UnboundedReceiverStream::new(items);
        let delivery = actix_rt::spawn(deliver(items, listener.clone().recipient()));
        tell.send(Item(7)).unwrap();
        tell.send(Item(0)).unwrap();
        delivery.await.unwrap();
        assert_eq!(*heard.lock().unwrap(), [7, 0]);
        assert!(tell.is_closed());
    }

    /// Takes its time.
    struct Slow(Arc<Semaphore>);

    impl Actor for Slow {
        type Context = Context<Self>;
    }

    impl Handler<Item> for Slow {
        type Result = ResponseFuture<()>;

        fn handle(&mut self, _: Item, _: &mut Context<Self>) -> Self::Result {
            let time = self.0.clone();
            Box::pin(async move { time.acquire().await.unwrap().forget() })
        }
    }

    #[actix::test]
    async fn what_a_slow_actor_has_no_time_for_waits_outside_of_its_mailbox() {
        let time = Arc::new(Semaphore::new(0));
        let slow = Slow(time.clone()).start();
        let (tell, items) = mpsc::channel(10);
        let taken = Arc::new(AtomicUsize::new(0));
        let count = taken.clone();
        let items = ReceiverStream::new(items).map(move |item| {
            count.fetch_add(1, Ordering::SeqCst);
            item
        });
        for n in 0..10 {
            tell.send(Item(n)).await.unwrap();
        }
        drop(tell);
        let delivery = actix_rt::spawn(deliver(items, slow.recipient()));
        for done in 0..10 {
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
            assert_eq!(taken.load(Ordering::SeqCst), done + 1);
            time.add_permits(1);
        }
        delivery.await.unwrap();
    }

    #[actix::test]
    async fn who_was_never_started_is_told_its_end_and_who_was_is_not() {
        let heard = Arc::default();
        let listener = Listener(Arc::clone(&heard)).start();
        let unheard = |n| Unheard::new(listener.clone().recipient(), Some(Item(n)));
        unheard(1).started();
        drop(unheard(2));
        listener.send(Item(3)).await.unwrap();
        assert_eq!(*heard.lock().unwrap(), [2, 3]);
    }
}
