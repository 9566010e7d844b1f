//! An actor that records the messages it receives.

use std::sync::{Arc, Mutex};

use actix::{Actor, Context, Handler, Message, Recipient};

pub type Received<M> = Arc<Mutex<Vec<M>>>;

struct MessageRecorder<M>(Received<M>);

impl<M: Unpin + 'static> Actor for MessageRecorder<M> {
    type Context = Context<Self>;
}

impl<M: Message<Result = ()> + Unpin + 'static> Handler<M> for MessageRecorder<M> {
    type Result = ();

    fn handle(&mut self, message: M, _: &mut Context<Self>) {
        self.0.lock().unwrap().push(message);
    }
}

/// Starts a recorder. Returns the messages it has received, and its address.
pub fn record_messages<M>() -> (Received<M>, Recipient<M>)
where
    M: Message<Result = ()> + Send + Unpin + 'static,
{
    let received = Received::default();
    let recorder = MessageRecorder(Arc::clone(&received)).start();
    (received, recorder.recipient())
}
