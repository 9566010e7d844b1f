//! A scripted server that stores keys, and can delay or reject a transaction or lose its response.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex},
};

use actix_etcd::{
    Client,
    proto::{
        self, Compare, Event, KeyValue, LeaseRevokeRequest, LeaseRevokeResponse,
        LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, RangeRequest, RangeResponse, RequestOp,
        ResponseHeader, ResponseOp, TxnRequest, TxnResponse, WatchRequest, WatchResponse,
        compare::{CompareResult, CompareTarget, TargetUnion},
        event::EventType,
        range_request::SortOrder,
        request_op::Request,
        response_op::Response,
        watch_request::RequestUnion,
    },
};
use bytes::Bytes;
use prost::Message;
use testbed::Reply;
use tokio::sync::broadcast;

use crate::support::{
    lease_server::{LeaseServer, REVOKE},
    scripted_put::RANGE,
    watch_server::WATCH,
};

pub const TXN: &str = "/etcdserverpb.KV/Txn";
const TIME_TO_LIVE: &str = "/etcdserverpb.Lease/LeaseTimeToLive";

/// How the server handles a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxnFate {
    Applied,
    /// Applied, but the client receives an error instead of the response.
    ResponseLost,
    /// Kept until [`ScriptedStore::apply_delayed`]. The client receives an error at once.
    Delayed,
    Rejected,
    /// Not applied; the client receives this status.
    Fails(u32, &'static str),
    /// Applied, but the client receives this status.
    AppliedButFails(u32, &'static str),
    /// Kept until [`ScriptedStore::apply_delayed`]. The client receives this status at once.
    DelayedAndFails(u32, &'static str),
}

type TxnScript = Box<dyn FnMut(&TxnRequest) -> TxnFate + Send>;

/// The server. Its leases never expire, but can be revoked.
pub struct ScriptedStore {
    pub lease_server: LeaseServer,
    state: Arc<Mutex<State>>,
}

struct State {
    revision: i64,
    keys: BTreeMap<Bytes, KeyValue>,
    delayed: Vec<TxnRequest>,
    script: TxnScript,
    events: broadcast::Sender<Event>,
    revoked: HashSet<i64>,
}

impl ScriptedStore {
    pub async fn start() -> (Self, Client) {
        let lease_server = LeaseServer::start().await;
        let state = Arc::new(Mutex::new(State {
            revision: 1,
            keys: BTreeMap::new(),
            delayed: Vec::new(),
            script: Box::new(|_| TxnFate::Applied),
            // More than any test has: a watch that falls behind would lose events.
            events: broadcast::Sender::new(4096),
            revoked: HashSet::new(),
        }));
        let shared = state.clone();
        lease_server.server.on(TXN, move |call| {
            let request = TxnRequest::decode(call.body).unwrap();
            shared.lock().unwrap().handle(request)
        });
        let shared = state.clone();
        lease_server.server.on(RANGE, move |call| {
            let request = RangeRequest::decode(call.body).unwrap();
            Reply::message(&shared.lock().unwrap().range(&request))
        });
        let shared = state.clone();
        lease_server.server.on(TIME_TO_LIVE, move |call| {
            let request = LeaseTimeToLiveRequest::decode(call.body).unwrap();
            Reply::message(&shared.lock().unwrap().time_to_live(&request))
        });
        let shared = state.clone();
        lease_server.server.on(REVOKE, move |call| {
            let request = LeaseRevokeRequest::decode(call.body).unwrap();
            shared.lock().unwrap().revoke(request.id);
            Reply::message(&LeaseRevokeResponse::default())
        });
        let shared = state.clone();
        lease_server
            .server
            .on_headers(WATCH, move |_| watch_keys(&shared));
        let etcd = Client::connect([lease_server.server.endpoint()])
            .await
            .unwrap();
        (
            Self {
                lease_server,
                state,
            },
            etcd,
        )
    }

    /// Sets the script that decides the fate of every later transaction.
    pub fn on_txn(&self, script: impl FnMut(&TxnRequest) -> TxnFate + Send + 'static) {
        self.state.lock().unwrap().script = Box::new(script);
    }

    /// Returns the number of delayed transactions.
    pub fn delayed(&self) -> usize {
        self.state.lock().unwrap().delayed.len()
    }

    /// Applies all delayed transactions.
    pub fn apply_delayed(&self) {
        let mut state = self.state.lock().unwrap();
        for request in std::mem::take(&mut state.delayed) {
            if !state.needs_missing_lease(&request) {
                state.apply(request);
            }
        }
    }

    pub fn keys(&self) -> Vec<KeyValue> {
        self.state.lock().unwrap().keys.values().cloned().collect()
    }
}

/// Returns whether a transaction deletes keys if its comparisons succeed.
pub fn deletes(request: &TxnRequest) -> bool {
    let delete = |op: &RequestOp| matches!(op.request, Some(Request::RequestDeleteRange(_)));
    request.success.iter().any(delete)
}

/// Returns whether a transaction puts keys if its comparisons succeed.
pub fn puts(request: &TxnRequest) -> bool {
    let put = |op: &RequestOp| match &op.request {
        Some(Request::RequestPut(_)) => true,
        Some(Request::RequestTxn(nested)) => puts(nested),
        _ => false,
    };
    request.success.iter().any(put)
}

/// Returns whether a transaction puts a key with this prefix if its comparisons succeed.
pub fn puts_below(request: &TxnRequest, prefix: &[u8]) -> bool {
    let put = |op: &RequestOp| match &op.request {
        Some(Request::RequestPut(put)) => put.key.starts_with(prefix),
        Some(Request::RequestTxn(nested)) => puts_below(nested, prefix),
        _ => false,
    };
    request.success.iter().any(put)
}

/// Creates every requested watch of a key or a range, and sends the events from then on.
fn watch_keys(state: &Arc<Mutex<State>>) -> Reply {
    let state = state.clone();
    Reply::streaming(async move |mut sender, mut receiver| {
        let mut events = state.lock().unwrap().events.subscribe();
        let mut watched = Vec::new();
        loop {
            let response = |watch_id| WatchResponse {
                header: Some(state.lock().unwrap().header()),
                watch_id,
                ..Default::default()
            };
            let responses = tokio::select! {
                request = receiver.recv_message::<WatchRequest>() => match request {
                    None => return,
                    Some(request) => match request.request_union {
                        Some(RequestUnion::CreateRequest(create)) => {
                            watched.push((create.watch_id, create.key, create.range_end));
                            let created = true;
                            vec![WatchResponse { created, ..response(create.watch_id) }]
                        }
                        Some(RequestUnion::CancelRequest(cancel)) => {
                            watched.retain(|(id, ..)| *id != cancel.watch_id);
                            let canceled = true;
                            vec![WatchResponse { canceled, ..response(cancel.watch_id) }]
                        }
                        _ => Vec::new(),
                    },
                },
                event = events.recv() => {
                    let event = event.unwrap();
                    let key = event.kv.as_ref().unwrap().key.clone();
                    let of_key = watched.iter().filter(|(_, watched, end)| {
                        *watched == key || (!end.is_empty() && (watched..end).contains(&&key))
                    });
                    let event_of = |id| WatchResponse { events: vec![event.clone()], ..response(id) };
                    of_key.map(|(id, ..)| event_of(*id)).collect()
                }
            };
            for response in responses {
                if sender.send(&response).await.is_err() {
                    return;
                }
            }
        }
    })
}

/// Returns whether a key has the number or the value that a comparison names.
fn equals(kv: &KeyValue, compare: &Compare) -> bool {
    match compare.target_union {
        Some(TargetUnion::CreateRevision(expected)) => kv.create_revision == expected,
        Some(TargetUnion::ModRevision(expected)) => kv.mod_revision == expected,
        Some(TargetUnion::Version(expected)) => kv.version == expected,
        Some(TargetUnion::Lease(expected)) => kv.lease == expected,
        // Protobuf does not encode a zero.
        None => match compare.target() {
            CompareTarget::Create => kv.create_revision == 0,
            CompareTarget::Mod => kv.mod_revision == 0,
            CompareTarget::Version => kv.version == 0,
            CompareTarget::Lease => kv.lease == 0,
            CompareTarget::Value => panic!("the scripted store does not compare values"),
        },
        // A condition on the value of a missing key does not hold.
        Some(TargetUnion::Value(ref expected)) => kv.version > 0 && kv.value == *expected,
    }
}

impl State {
    fn header(&self) -> ResponseHeader {
        ResponseHeader {
            cluster_id: 1,
            member_id: 1,
            revision: self.revision,
            raft_term: 2,
        }
    }

    fn handle(&mut self, request: TxnRequest) -> Reply {
        let timed_out = Reply::status(14, "etcdserver: request timed out");
        match (self.script)(&request) {
            _ if self.needs_missing_lease(&request) => {
                Reply::status(5, "etcdserver: requested lease not found")
            }
            TxnFate::Applied => Reply::message(&self.apply(request)),
            TxnFate::ResponseLost => {
                self.apply(request);
                timed_out
            }
            TxnFate::Delayed => {
                self.delayed.push(request);
                timed_out
            }
            TxnFate::Rejected => Reply::status(7, "etcdserver: permission denied"),
            TxnFate::Fails(code, text) => Reply::status(code, text),
            TxnFate::AppliedButFails(code, text) => {
                self.apply(request);
                Reply::status(code, text)
            }
            TxnFate::DelayedAndFails(code, text) => {
                self.delayed.push(request);
                Reply::status(code, text)
            }
        }
    }

    /// Returns whether the transaction would bind a key to a lease that was revoked.
    fn needs_missing_lease(&self, request: &TxnRequest) -> bool {
        let is_missing = |op: &RequestOp| match &op.request {
            Some(Request::RequestPut(put)) => self.revoked.contains(&put.lease),
            _ => false,
        };
        self.succeeds(request) && request.success.iter().any(is_missing)
    }

    fn revoke(&mut self, lease: i64) {
        self.revoked.insert(lease);
        let bound = self.keys.values().filter(|kv| kv.lease == lease);
        let bound: Vec<_> = bound.map(|kv| kv.key.clone()).collect();
        for key in bound {
            self.delete(key);
        }
    }

    fn succeeds(&self, request: &TxnRequest) -> bool {
        let mut conditions = request.compare.iter();
        conditions.all(|compare| self.compare_succeeds(compare))
    }

    fn apply(&mut self, request: TxnRequest) -> TxnResponse {
        let before = self.revision;
        self.apply_at(request, before)
    }

    /// Applies a transaction, or a nested one, that began at revision `before`.
    fn apply_at(&mut self, request: TxnRequest, before: i64) -> TxnResponse {
        let succeeded = self.succeeds(&request);
        let ops = if succeeded {
            request.success
        } else {
            request.failure
        };
        let responses = ops
            .into_iter()
            .map(|op| self.apply_operation(op, before))
            .collect();
        TxnResponse {
            header: Some(self.header()),
            succeeded,
            responses,
        }
    }

    fn compare_succeeds(&self, compare: &Compare) -> bool {
        let end = &compare.range_end;
        let in_range = |key: &Bytes| {
            *key == compare.key || (!end.is_empty() && (&compare.key..end).contains(&key))
        };
        let missing = KeyValue::default();
        let mut found: Vec<_> = self.keys.values().filter(|kv| in_range(&kv.key)).collect();
        if found.is_empty() && end.is_empty() {
            found.push(&missing);
        }
        let has_result = |kv: &KeyValue| match (compare.result(), compare.target()) {
            (CompareResult::Equal, _) => equals(kv, compare),
            (CompareResult::NotEqual, _) => !equals(kv, compare),
            (CompareResult::Greater, CompareTarget::Version) => kv.version > 0,
            (CompareResult::Less, CompareTarget::Create) => match compare.target_union {
                Some(TargetUnion::CreateRevision(limit)) => kv.create_revision < limit,
                _ => false,
            },
            other => panic!("the scripted store does not compare with {other:?}"),
        };
        found.into_iter().all(has_result)
    }

    fn apply_operation(&mut self, op: RequestOp, before: i64) -> ResponseOp {
        let response = match op.request.unwrap() {
            Request::RequestRange(range) => Response::ResponseRange(self.range(&range)),
            Request::RequestPut(put) => {
                self.revision = before + 1;
                let kv = self.keys.entry(put.key.clone()).or_default();
                if kv.version == 0 {
                    kv.create_revision = self.revision;
                }
                kv.key = put.key;
                if !put.ignore_value {
                    kv.value = put.value;
                }
                if !put.ignore_lease {
                    kv.lease = put.lease;
                }
                kv.version += 1;
                kv.mod_revision = self.revision;
                let put = Event {
                    kv: Some(kv.clone()),
                    ..Default::default()
                };
                // An error means that there is no watch.
                let _ = self.events.send(put);
                Response::ResponsePut(proto::PutResponse::default())
            }
            Request::RequestDeleteRange(delete) => {
                self.delete(delete.key);
                Response::ResponseDeleteRange(proto::DeleteRangeResponse::default())
            }
            Request::RequestTxn(nested) => Response::ResponseTxn(self.apply_at(nested, before)),
        };
        ResponseOp {
            response: Some(response),
        }
    }

    fn delete(&mut self, key: Bytes) {
        if self.keys.remove(&key).is_none() {
            return;
        }
        self.revision += 1;
        let mut deleted = Event {
            kv: Some(KeyValue {
                key,
                mod_revision: self.revision,
                ..Default::default()
            }),
            ..Default::default()
        };
        deleted.set_type(EventType::Delete);
        // An error means that there is no watch.
        let _ = self.events.send(deleted);
    }

    fn time_to_live(&self, request: &LeaseTimeToLiveRequest) -> LeaseTimeToLiveResponse {
        let bound = self.keys.values().filter(|kv| kv.lease == request.id);
        LeaseTimeToLiveResponse {
            header: Some(self.header()),
            id: request.id,
            ttl: 60,
            granted_ttl: 60,
            keys: bound.map(|kv| kv.key.clone()).collect(),
        }
    }

    fn range(&self, request: &RangeRequest) -> RangeResponse {
        let end = &request.range_end;
        let mut kvs: Vec<_> = self
            .keys
            .values()
            .filter(|kv| {
                kv.key == request.key || (!end.is_empty() && (&request.key..end).contains(&&kv.key))
            })
            .filter(|kv| {
                request.max_create_revision == 0
                    || kv.create_revision <= request.max_create_revision
            })
            .cloned()
            .collect();
        match request.sort_order() {
            SortOrder::Ascend => kvs.sort_by_key(|kv| kv.create_revision),
            SortOrder::None | SortOrder::Descend => kvs.sort_by_key(|kv| -kv.create_revision),
        }
        RangeResponse {
            header: Some(self.header()),
            count: i64::try_from(kvs.len()).unwrap(),
            kvs,
            more: false,
        }
    }
}
