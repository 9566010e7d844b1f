//! A server with many keys. It sends their changes once a key is put.

use std::sync::Arc;

use actix_etcd::proto::{
    Event, KeyValue, PutResponse, RangeRequest, RangeResponse, ResponseHeader, WatchRequest,
    WatchResponse, watch_request::RequestUnion,
};
use prost::Message;
use testbed::{Receiver, Reply, ScriptedServer, Sender};
use tokio::sync::Semaphore;

use crate::workload::Workload;

/// Events per response.
const BATCH: u64 = 100;

fn header(revision: i64) -> ResponseHeader {
    ResponseHeader {
        cluster_id: 1,
        member_id: 1,
        revision,
        raft_term: 2,
    }
}

pub async fn start(workload: Workload) -> ScriptedServer {
    let server = ScriptedServer::start().await;
    let begin = Arc::new(Semaphore::new(0));
    server.on("/etcdserverpb.KV/Range", move |call| {
        let request = RangeRequest::decode(call.body).expect("a range request");
        Reply::message(&page(workload, &request))
    });
    let started = begin.clone();
    server.on("/etcdserverpb.KV/Put", move |_| {
        started.add_permits(1);
        Reply::message(&PutResponse {
            header: Some(header(workload.first_revision())),
            prev_kv: None,
        })
    });
    server.on_headers("/etcdserverpb.Watch/Watch", move |_| {
        let begin = begin.clone();
        Reply::streaming(move |sender, receiver| watch(workload, sender, receiver, begin))
    });
    server
}

/// Returns the key-values from the first requested key on.
fn page(workload: Workload, request: &RangeRequest) -> RangeResponse {
    let first = String::from_utf8_lossy(&request.key);
    let Some(number) = first.strip_prefix(Workload::PREFIX) else {
        return RangeResponse {
            header: Some(header(workload.first_revision())),
            ..RangeResponse::default()
        };
    };
    // The next page starts after the last key: at that key with a zero byte.
    let after_key = u64::from(number.ends_with('\0'));
    let digits = number.trim_end_matches('\0');
    let first = digits.parse().map_or(0, |number: u64| number + after_key);
    let limit = u64::try_from(request.limit).expect("a limit").max(1);
    let end = (first + limit).min(workload.keys);
    let kvs = (first..end).map(|number| KeyValue {
        key: Workload::key(number).into(),
        value: workload.value(0).into(),
        create_revision: i64::try_from(number).expect("a revision") + 2,
        mod_revision: i64::try_from(number).expect("a revision") + 2,
        version: 1,
        lease: 0,
    });
    RangeResponse {
        header: Some(header(workload.first_revision())),
        kvs: kvs.collect(),
        more: end < workload.keys,
        count: i64::try_from(workload.keys - first.min(workload.keys)).expect("a count"),
    }
}

async fn watch(
    workload: Workload,
    mut sender: Sender,
    mut receiver: Receiver,
    begin: Arc<Semaphore>,
) {
    let create = loop {
        match receiver.recv_message::<WatchRequest>().await {
            Some(request) => {
                if let Some(RequestUnion::CreateRequest(create)) = request.request_union {
                    break create;
                }
            }
            None => return,
        }
    };
    let response = |events: Vec<Event>, revision: i64| WatchResponse {
        header: Some(header(revision)),
        watch_id: create.watch_id,
        events,
        ..WatchResponse::default()
    };
    let created = WatchResponse {
        created: true,
        ..response(Vec::new(), workload.first_revision())
    };
    if sender.send(&created).await.is_err() {
        return;
    }
    if create.key.starts_with(Workload::PREFIX.as_bytes()) && begin.acquire().await.is_ok() {
        let mut change = 1;
        while change <= workload.events {
            let end = (change + BATCH).min(workload.events + 1);
            let events = (change..end)
                .map(|change| event(workload, change))
                .collect();
            let last = workload.first_revision() + i64::try_from(end - 1).expect("a revision");
            if sender.send(&response(events, last)).await.is_err() {
                return;
            }
            change = end;
        }
    }
    sender.closed().await;
}

fn event(workload: Workload, change: u64) -> Event {
    let number = workload.changed_key(change);
    Event {
        kv: Some(KeyValue {
            key: Workload::key(number).into(),
            value: workload.value(change).into(),
            create_revision: i64::try_from(number).expect("a revision") + 2,
            mod_revision: workload.first_revision() + i64::try_from(change).expect("a revision"),
            version: 2,
            lease: 0,
        }),
        ..Event::default()
    }
}
