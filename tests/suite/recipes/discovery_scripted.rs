//! Discovery on a scripted member whose revision falls behind, as after a restore from a backup.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use actix_etcd::{
    Client,
    proto::{Event, KeyValue, RangeResponse, WatchResponse},
};
use testbed::{Reply, ScriptedServer};
use tokio::sync::Notify;

use crate::support::{
    scripted_put::RANGE,
    wait::until,
    watch_server::{WATCH, created, header, next_create},
};

/// Revision that the client has seen before the member falls behind.
const SEEN: i64 = 900;

fn kv(key: &str, revision: i64) -> KeyValue {
    KeyValue {
        key: key.to_owned().into(),
        value: format!(r#"{{"Addr":"{key}"}}"#).into(),
        create_revision: revision,
        mod_revision: revision,
        ..KeyValue::default()
    }
}

/// A member with one key, whose revision the test sets.
///
/// Its first watch ends when the test calls [`Member::fall_behind`]. The second watch is created at revision 1, and
/// sends one event if it starts right after [`SEEN`].
struct Member {
    server: ScriptedServer,
    revision: Arc<AtomicI64>,
    end_first_watch: Arc<Notify>,
}

impl Member {
    async fn start() -> Self {
        let server = ScriptedServer::start().await;
        let revision = Arc::new(AtomicI64::new(SEEN));
        let end_first_watch = Arc::<Notify>::default();
        let shared_revision = revision.clone();
        server.on(RANGE, move |_| {
            let revision = shared_revision.load(Ordering::SeqCst);
            Reply::message(&RangeResponse {
                header: Some(header(revision)),
                kvs: vec![kv(&format!("web/read-{revision}"), revision)],
                more: false,
                count: 1,
            })
        });
        let end_watch = end_first_watch.clone();
        server.on_headers(WATCH, move |call| {
            let end_watch = end_watch.clone();
            Reply::streaming(async move |mut sender, mut receiver| {
                let create = next_create(&mut receiver).await;
                let created_at = if call.nth == 0 { SEEN } else { 1 };
                let response = created(create.watch_id, created_at);
                sender.send(&response).await.unwrap();
                if call.nth == 0 {
                    end_watch.notified().await;
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
            end_first_watch,
        }
    }

    /// Ends the first watch. The next watch is created below the seen revision, and reads return `revision`.
    fn fall_behind(&self, revision: i64) {
        self.revision.store(revision, Ordering::SeqCst);
        self.end_first_watch.notify_one();
    }
}

#[tokio::test]
async fn list_is_read_again_after_cluster_restore() {
    let member = Member::start().await;
    let etcd = Client::connect([member.server.endpoint()]).await.unwrap();
    let list = etcd.discover("web").await.unwrap();
    assert_eq!(list.instances()[0].key, format!("web/read-{SEEN}"));
    member.fall_behind(5);
    until("the list equals the restored state", || {
        list.instances()[0].key == "web/read-5"
    })
    .await;
    assert_eq!(list.instances().len(), 1);
    assert_eq!(list.instances().revision(), 5);
}

#[tokio::test]
async fn lagging_member_causes_no_missed_change() {
    let member = Member::start().await;
    let etcd = Client::connect([member.server.endpoint()]).await.unwrap();
    let list = etcd.discover("web").await.unwrap();
    // Reads return a newer revision than seen, so only this member lags, not the cluster.
    member.fall_behind(SEEN + 50);
    until("the next change is listed", || list.instances().len() == 2).await;
    let keys: Vec<_> = list
        .instances()
        .iter()
        .map(|instance| instance.key.clone())
        .collect();
    assert_eq!(keys, ["web/next".to_owned(), format!("web/read-{SEEN}")]);
}
