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
    let put_begin = begin.clone();
    server.on("/etcdserverpb.KV/Put", move |_| {
        put_begin.add_permits(1);
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
    // Id of the watch and its next change.
    let mut watch: Option<(i64, u64)> = None;
    let mut started = false;
    loop {
        let next = watch.filter(|(_, change)| *change <= workload.events);
        tokio::select! {
            biased;
            request = receiver.recv_message::<WatchRequest>() => {
                let response = match request.map(|request| request.request_union) {
                    Some(Some(RequestUnion::CreateRequest(create))) => {
                        let change = create.start_revision - workload.first_revision();
                        if create.key.starts_with(Workload::PREFIX.as_bytes()) {
                            watch = Some((create.watch_id, u64::try_from(change).unwrap_or(1)));
                        }
                        WatchResponse {
                            created: true,
                            ..response(workload, create.watch_id, change - 1)
                        }
                    }
                    Some(Some(RequestUnion::CancelRequest(cancel))) => {
                        watch = watch.filter(|(id, _)| *id != cancel.watch_id);
                        WatchResponse {
                            canceled: true,
                            ..response(workload, cancel.watch_id, 0)
                        }
                    }
                    Some(_) => continue,
                    None => return,
                };
                if sender.send(&response).await.is_err() {
                    return;
                }
            }
            permit = begin.acquire(), if next.is_some() && !started => started = permit.is_ok(),
            () = std::future::ready(()), if next.is_some() && started => {
                let Some((id, change)) = next else { continue };
                let end = (change + BATCH).min(workload.events + 1);
                let last = i64::try_from(end - 1).expect("a revision");
                let batch = WatchResponse {
                    events: (change..end).map(|change| event(workload, change)).collect(),
                    ..response(workload, id, last)
                };
                watch = Some((id, end));
                if sender.send(&batch).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Returns a response as of a change.
fn response(workload: Workload, watch_id: i64, change: i64) -> WatchResponse {
    WatchResponse {
        header: Some(header(workload.first_revision() + change)),
        watch_id,
        ..WatchResponse::default()
    }
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
