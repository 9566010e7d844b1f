//! A scripted server that stores keys, and decides about each transaction: whether it arrives, when, and whether its
//! answer does.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use actix_etcd::{
    Client,
    proto::{
        self, Compare, KeyValue, RangeRequest, RangeResponse, RequestOp, ResponseHeader,
        ResponseOp, TxnRequest, TxnResponse, WatchRequest, WatchResponse,
        compare::{CompareResult, CompareTarget, TargetUnion},
        request_op::Request,
        response_op::Response,
        watch_request::RequestUnion,
    },
};
use bytes::Bytes;
use prost::Message;
use testbed::Reply;

use crate::support::lease_server::Lessor;

const TXN: &str = "/etcdserverpb.KV/Txn";

/// What becomes of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Answered,
    /// It is done, and nobody hears of it.
    AnswerLost,
    /// It is under way, and arrives when the test lets it.
    Late,
    Refused,
}

type Decide = Box<dyn FnMut(&TxnRequest) -> Fate + Send>;

/// The server; its leases live for as long as they are kept.
pub struct ScriptedStore {
    _lessor: Lessor,
    state: Arc<Mutex<State>>,
}

struct State {
    revision: i64,
    keys: BTreeMap<Bytes, KeyValue>,
    late: Vec<TxnRequest>,
    decide: Decide,
}

impl ScriptedStore {
    pub async fn start() -> (Self, Client) {
        let lessor = Lessor::start().await;
        let state = Arc::new(Mutex::new(State {
            revision: 1,
            keys: BTreeMap::new(),
            late: Vec::new(),
            decide: Box::new(|_| Fate::Answered),
        }));
        let shared = state.clone();
        lessor.server.on(TXN, move |call| {
            let request = TxnRequest::decode(call.body).unwrap();
            shared.lock().unwrap().take(request)
        });
        let shared = state.clone();
        lessor.server.on("/etcdserverpb.KV/Range", move |call| {
            let asked = RangeRequest::decode(call.body).unwrap();
            Reply::message(&shared.lock().unwrap().range(&asked))
        });
        let shared = state.clone();
        lessor
            .server
            .on_headers("/etcdserverpb.Watch/Watch", move |_| watches(&shared));
        let etcd = Client::connect([lessor.server.endpoint()]).await.unwrap();
        (
            Self {
                _lessor: lessor,
                state,
            },
            etcd,
        )
    }

    /// Decides about every transaction from now on.
    pub fn decide(&self, decide: impl FnMut(&TxnRequest) -> Fate + Send + 'static) {
        self.state.lock().unwrap().decide = Box::new(decide);
    }

    /// How many transactions are under way.
    pub fn late(&self) -> usize {
        self.state.lock().unwrap().late.len()
    }

    /// What is under way arrives.
    pub fn arrive(&self) {
        let mut state = self.state.lock().unwrap();
        for request in std::mem::take(&mut state.late) {
            state.apply(request);
        }
    }

    pub fn keys(&self) -> Vec<KeyValue> {
        self.state.lock().unwrap().keys.values().cloned().collect()
    }
}

/// Whether a transaction would delete something.
pub fn deletes(request: &TxnRequest) -> bool {
    let delete = |op: &RequestOp| matches!(op.request, Some(Request::RequestDeleteRange(_)));
    request.success.iter().any(delete)
}

/// Whether it would put something.
pub fn puts(request: &TxnRequest) -> bool {
    let put = |op: &RequestOp| matches!(op.request, Some(Request::RequestPut(_)));
    request.success.iter().any(put)
}

/// Watches that tell nothing.
fn watches(state: &Arc<Mutex<State>>) -> Reply {
    let state = state.clone();
    Reply::streaming(async move |mut sender, mut receiver| {
        while let Some(asked) = receiver.recv_message::<WatchRequest>().await {
            if let Some(RequestUnion::CreateRequest(create)) = asked.request_union {
                let created = WatchResponse {
                    header: Some(state.lock().unwrap().header()),
                    watch_id: create.watch_id,
                    created: true,
                    ..Default::default()
                };
                if sender.send(&created).await.is_err() {
                    return;
                }
            }
        }
    })
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

    fn take(&mut self, request: TxnRequest) -> Reply {
        let lost = Reply::status(14, "etcdserver: request timed out");
        match (self.decide)(&request) {
            Fate::Answered => Reply::message(&self.apply(request)),
            Fate::AnswerLost => {
                self.apply(request);
                lost
            }
            Fate::Late => {
                self.late.push(request);
                lost
            }
            Fate::Refused => Reply::status(7, "etcdserver: permission denied"),
        }
    }

    fn apply(&mut self, request: TxnRequest) -> TxnResponse {
        let succeeded = request.compare.iter().all(|compare| self.holds(compare));
        let ops = if succeeded {
            request.success
        } else {
            request.failure
        };
        let before = self.revision;
        let responses = ops.into_iter().map(|op| self.perform(op, before)).collect();
        TxnResponse {
            header: Some(self.header()),
            succeeded,
            responses,
        }
    }

    fn holds(&self, compare: &Compare) -> bool {
        let end = &compare.range_end;
        let meant = |key: &Bytes| {
            *key == compare.key || (!end.is_empty() && (&compare.key..end).contains(&key))
        };
        let none = KeyValue::default();
        let mut found: Vec<_> = self.keys.values().filter(|kv| meant(&kv.key)).collect();
        if found.is_empty() && end.is_empty() {
            found.push(&none);
        }
        assert_eq!(compare.result(), CompareResult::Equal);
        found.iter().all(|kv| match compare.target_union {
            Some(TargetUnion::CreateRevision(wanted)) => kv.create_revision == wanted,
            Some(TargetUnion::ModRevision(wanted)) => kv.mod_revision == wanted,
            Some(TargetUnion::Version(wanted)) => kv.version == wanted,
            Some(TargetUnion::Lease(wanted)) => kv.lease == wanted,
            // A zero is not written down.
            None => match compare.target() {
                CompareTarget::Create => kv.create_revision == 0,
                CompareTarget::Version => kv.version == 0,
                other => panic!("not in this script: {other:?}"),
            },
            Some(TargetUnion::Value(_)) => panic!("not in this script: a value"),
        })
    }

    fn perform(&mut self, op: RequestOp, before: i64) -> ResponseOp {
        let response = match op.request.unwrap() {
            Request::RequestRange(asked) => Response::ResponseRange(self.range(&asked)),
            Request::RequestPut(put) => {
                self.revision = before + 1;
                let kv = self.keys.entry(put.key.clone()).or_default();
                if kv.version == 0 {
                    kv.create_revision = self.revision;
                }
                kv.key = put.key;
                kv.value = put.value;
                kv.lease = put.lease;
                kv.version += 1;
                kv.mod_revision = self.revision;
                Response::ResponsePut(proto::PutResponse::default())
            }
            Request::RequestDeleteRange(delete) => {
                let found = self.keys.remove(&delete.key);
                self.revision += i64::from(found.is_some());
                Response::ResponseDeleteRange(proto::DeleteRangeResponse::default())
            }
            Request::RequestTxn(_) => panic!("not in this script: a transaction in another"),
        };
        ResponseOp {
            response: Some(response),
        }
    }

    fn range(&self, asked: &RangeRequest) -> RangeResponse {
        let end = &asked.range_end;
        let mut kvs: Vec<_> = self
            .keys
            .values()
            .filter(|kv| {
                kv.key == asked.key || (!end.is_empty() && (&asked.key..end).contains(&&kv.key))
            })
            .filter(|kv| {
                asked.max_create_revision == 0 || kv.create_revision <= asked.max_create_revision
            })
            .cloned()
            .collect();
        kvs.sort_by_key(|kv| -kv.create_revision);
        RangeResponse {
            header: Some(self.header()),
            count: i64::try_from(kvs.len()).unwrap(),
            kvs,
            more: false,
        }
    }
}
