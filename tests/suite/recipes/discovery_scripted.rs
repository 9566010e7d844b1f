//! A list of instances where the history is not what it was: what etcd can't be made to do on demand.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use actix_etcd::{
    Client,
    proto::{
        Event, KeyValue, RangeResponse, ResponseHeader, WatchRequest, WatchResponse,
        watch_request::RequestUnion,
    },
};
use testbed::{Reply, ScriptedServer};
use tokio::sync::Notify;

use crate::support::wait::until;

/// What was seen before anything went wrong.
const SEEN: i64 = 900;

fn header(revision: i64) -> ResponseHeader {
    ResponseHeader {
        cluster_id: 1,
        member_id: 1,
        revision,
        raft_term: 2,
    }
}

fn kv(key: &str, revision: i64) -> KeyValue {
    KeyValue {
        key: key.to_owned().into(),
        value: format!(r#"{{"Addr":"{key}"}}"#).into(),
        create_revision: revision,
        mod_revision: revision,
        ..KeyValue::default()
    }
}

/// A member that has one key, at a revision the test sets. Its first watch ends when the test says so; the second is
/// attached at a revision below what the first had seen, and tells of a key if it starts where the first one ended.
struct Member {
    server: ScriptedServer,
    revision: Arc<AtomicI64>,
    behind: Arc<Notify>,
}

impl Member {
    async fn start() -> Self {
        let server = ScriptedServer::start().await;
        let (revision, behind) = (Arc::new(AtomicI64::new(SEEN)), Arc::<Notify>::default());
        let now = revision.clone();
        server.on("/etcdserverpb.KV/Range", move |_| {
            let now = now.load(Ordering::SeqCst);
            Reply::message(&RangeResponse {
                header: Some(header(now)),
                kvs: vec![kv(&format!("web/read-{now}"), now)],
                more: false,
                count: 1,
            })
        });
        let fell = behind.clone();
        server.on_headers("/etcdserverpb.Watch/Watch", move |call| {
            let behind = fell.clone();
            Reply::streaming(async move |mut sender, mut receiver| {
                let create = loop {
                    let asked = receiver.recv_message::<WatchRequest>().await;
                    match asked.and_then(|asked| asked.request_union) {
                        Some(RequestUnion::CreateRequest(create)) => break create,
                        Some(_) => {}
                        None => return,
                    }
                };
                let told = if call.nth == 0 { SEEN } else { 1 };
                let created = WatchResponse {
                    header: Some(header(told)),
                    watch_id: create.watch_id,
                    created: true,
                    ..Default::default()
                };
                sender.send(&created).await.unwrap();
                if call.nth == 0 {
                    behind.notified().await;
                    return;
                }
                if create.start_revision == SEEN + 1 {
                    let next = WatchResponse {
                        header: Some(header(SEEN + 1)),
                        watch_id: create.watch_id,
                        events: vec![Event {
                            kv: Some(kv("web/next", SEEN + 1)),
                            ..Event::default()
                        }],
                        ..Default::default()
                    };
                    let _ = sender.send(&next).await;
                }
                sender.closed().await;
            })
        });
        Self {
            server,
            revision,
            behind,
        }
    }

    /// Is found to be behind what was seen, and answers reads with this revision.
    fn falls_behind(&self, revision: i64) {
        self.revision.store(revision, Ordering::SeqCst);
        self.behind.notify_one();
    }
}

#[tokio::test]
async fn a_cluster_restored_from_an_old_backup_is_read_anew() {
    let member = Member::start().await;
    let etcd = Client::connect([member.server.endpoint()]).await.unwrap();
    let list = etcd.discover("web").await.unwrap();
    assert_eq!(list.instances()[0].key, format!("web/read-{SEEN}"));
    member.falls_behind(5);
    until("the list is what was restored", || {
        list.instances()[0].key == "web/read-5"
    })
    .await;
    assert_eq!(list.instances().len(), 1);
    assert_eq!(list.instances().revision(), 5);
}

#[tokio::test]
async fn after_a_member_that_lags_nothing_is_skipped() {
    let member = Member::start().await;
    let etcd = Client::connect([member.server.endpoint()]).await.unwrap();
    let list = etcd.discover("web").await.unwrap();
    // The cluster is ahead of what was seen: the member alone is not.
    member.falls_behind(SEEN + 50);
    until("what comes next is told", || list.instances().len() == 2).await;
    let keys: Vec<_> = list.instances().iter().map(|one| one.key.clone()).collect();
    assert_eq!(keys, ["web/next".to_owned(), format!("web/read-{SEEN}")]);
}
