//! A server whose watch streams are told by a script.

use std::sync::{Arc, Mutex};

use actix_etcd::{
    Client,
    proto::{
        Event, KeyValue, ResponseHeader, WatchCreateRequest, WatchRequest, WatchResponse,
        watch_request::RequestUnion,
    },
};
use testbed::{Receiver, Reply, ScriptedServer, Sender};

pub const WATCH: &str = "/etcdserverpb.Watch/Watch";

pub fn header(revision: i64) -> ResponseHeader {
    ResponseHeader {
        cluster_id: 1,
        member_id: 1,
        revision,
        raft_term: 2,
    }
}

pub fn created(watch_id: i64, revision: i64) -> WatchResponse {
    WatchResponse {
        header: Some(header(revision)),
        watch_id,
        created: true,
        ..WatchResponse::default()
    }
}

pub fn refused(reason: &str) -> WatchResponse {
    WatchResponse {
        canceled: true,
        cancel_reason: reason.to_owned(),
        ..created(-1, 0)
    }
}

pub fn event(key: &str, revision: i64) -> Event {
    Event {
        kv: Some(KeyValue {
            key: key.to_owned().into(),
            mod_revision: revision,
            ..KeyValue::default()
        }),
        ..Event::default()
    }
}

/// Events under a header that says more than has been sent, as while catching up.
pub fn events(watch_id: i64, fragment: bool, events: Vec<Event>) -> WatchResponse {
    WatchResponse {
        header: Some(header(1000)),
        watch_id,
        fragment,
        events,
        ..WatchResponse::default()
    }
}

pub fn progress(watch_id: i64, revision: i64) -> WatchResponse {
    WatchResponse {
        header: Some(header(revision)),
        watch_id,
        ..WatchResponse::default()
    }
}

pub async fn request(receiver: &mut Receiver) -> Option<RequestUnion> {
    receiver.recv_message::<WatchRequest>().await?.request_union
}

pub async fn create(receiver: &mut Receiver) -> WatchCreateRequest {
    loop {
        match request(receiver).await {
            Some(RequestUnion::CreateRequest(create)) => return create,
            Some(_) => {}
            None => std::future::pending().await,
        }
    }
}

/// The start revision of each create, in the order they came.
pub type Starts = Arc<Mutex<Vec<i64>>>;

/// A server whose streams are told by a script, by their number.
pub async fn server<F>(
    talk: impl Fn(usize, Sender, Receiver, Starts) -> F + Send + Sync + Clone + 'static,
) -> (ScriptedServer, Starts)
where
    F: Future<Output = ()> + Send + 'static,
{
    let server = ScriptedServer::start().await;
    let starts = Starts::default();
    let told = starts.clone();
    server.on_headers(WATCH, move |call| {
        let (talk, starts) = (talk.clone(), told.clone());
        Reply::streaming(move |sender, receiver| talk(call.nth, sender, receiver, starts))
    });
    (server, starts)
}

pub async fn connect(server: &ScriptedServer) -> Client {
    Client::connect([server.endpoint()]).await.unwrap()
}
