//! A scripted server for watch streams, and constructors of its responses.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

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

/// Confirms a create.
pub fn created(watch_id: i64, revision: i64) -> WatchResponse {
    WatchResponse {
        header: Some(header(revision)),
        watch_id,
        created: true,
        ..WatchResponse::default()
    }
}

/// Refuses a create.
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

/// A batch of events. Its header has a later revision than the events, as while the server replays history.
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

pub async fn next_request(receiver: &mut Receiver) -> Option<RequestUnion> {
    receiver.recv_message::<WatchRequest>().await?.request_union
}

/// Returns the next create request and skips all others. Waits forever once the stream has ended.
pub async fn next_create(receiver: &mut Receiver) -> WatchCreateRequest {
    loop {
        match next_request(receiver).await {
            Some(RequestUnion::CreateRequest(create)) => return create,
            Some(_) => {}
            None => std::future::pending().await,
        }
    }
}

/// Start revisions of the create requests, in order of arrival. Recorded by the script.
pub type StartRevisions = Arc<Mutex<Vec<i64>>>;

/// Starts a server that runs the script for each watch stream, with the number of the stream.
pub async fn start_watch_server<F>(
    script: impl Fn(usize, Sender, Receiver, StartRevisions) -> F + Send + Sync + Clone + 'static,
) -> (ScriptedServer, StartRevisions)
where
    F: Future<Output = ()> + Send + 'static,
{
    let server = ScriptedServer::start().await;
    let start_revisions = StartRevisions::default();
    let recorded = start_revisions.clone();
    server.on_headers(WATCH, move |call| {
        let (script, recorded) = (script.clone(), recorded.clone());
        Reply::streaming(move |sender, receiver| script(call.nth, sender, receiver, recorded))
    });
    (server, start_revisions)
}

/// Asserts that the client opened several watch streams within two seconds, with backoff.
pub fn assert_reopened_with_backoff(server: &ScriptedServer) {
    let streams = server.count(WATCH);
    assert!(
        (3..20).contains(&streams),
        "{streams} streams in two seconds"
    );
}

pub async fn connect_with_timeout(server: &ScriptedServer, request_timeout: Duration) -> Client {
    let builder = Client::builder([server.endpoint()]).request_timeout(request_timeout);
    builder.connect().await.unwrap()
}

pub async fn connect(server: &ScriptedServer) -> Client {
    Client::connect([server.endpoint()]).await.unwrap()
}
