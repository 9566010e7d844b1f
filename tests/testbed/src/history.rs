//! What really happened to the keys, read back from etcd by revision: the truth that tests are checked against.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::cluster::Cluster;
use crate::gateway::{self, decode, encode, number};
use crate::member::Member;
use crate::runtime;

/// How long etcd may be silent while its history is read.
const PATIENCE: Duration = Duration::from_secs(10);

/// One key changed at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// When: the store's revision, shared by all changes of one transaction.
    pub revision: i64,
    /// Which key.
    pub key: Vec<u8>,
    /// What it became; none if it was deleted.
    pub value: Option<Vec<u8>>,
    /// How often it was changed since it was created; 0 if it was deleted.
    pub version: i64,
    /// The revision that created it; 0 if it was deleted.
    pub create_revision: i64,
    /// The lease it hangs on; 0 for none.
    pub lease: i64,
}

impl Cluster {
    /// Every change there was to keys with this prefix, in order, from the first revision etcd still has to the
    /// newest one.
    pub async fn history(&self, prefix: impl AsRef<[u8]>) -> Vec<Change> {
        let prefix = prefix.as_ref().to_vec();
        let revision = self.revision().await;
        let cluster = self.clone();
        let changes = runtime::run(async move {
            let mut errors = Vec::new();
            for member in cluster.running() {
                match cluster.read_history(&member, revision).await {
                    Ok(changes) => return changes,
                    Err(why) => errors.push(why),
                }
            }
            panic!("no member tells the history: {errors:?}");
        });
        changes
            .await
            .into_iter()
            .filter(|change| change.key.starts_with(&prefix))
            .collect()
    }

    /// The store's newest revision.
    pub async fn revision(&self) -> i64 {
        let answer = self
            .api_any("/v3/kv/range", json!({"key": "AA==", "count_only": true}))
            .await;
        number(&answer["header"]["revision"])
    }

    /// All keys are watched: every revision changes one, so the newest is seen to arrive.
    async fn read_history(&self, member: &Member, newest: i64) -> Result<Vec<Change>, String> {
        let mut from = 1;
        'again: loop {
            let mut changes: Vec<Change> = Vec::new();
            if newest < 2 {
                return Ok(changes);
            }
            let create = json!({"create_request": {
                "key": encode([0]), "range_end": encode([0]), "start_revision": from.to_string(),
            }});
            let token = self.token(member, false).await?;
            let opened = gateway::stream(
                member.gateway_port(),
                "/v3/watch",
                &create,
                token.as_deref(),
            );
            let mut stream = timeout(PATIENCE, opened)
                .await
                .map_err(|_| "the watch does not open")??;
            loop {
                let item = timeout(PATIENCE, stream.next())
                    .await
                    .map_err(|_| "the watch is silent")??;
                let result = &item["result"];
                let compacted: i64 = number(&result["compact_revision"]);
                if compacted > 0 {
                    from = compacted;
                    continue 'again;
                }
                if result["canceled"].as_bool() == Some(true) || item["error"].is_object() {
                    return Err(format!("the watch is refused: {item}"));
                }
                changes.extend(
                    result["events"]
                        .as_array()
                        .into_iter()
                        .flatten()
                        .map(change),
                );
                if changes.last().is_some_and(|last| last.revision >= newest) {
                    return Ok(changes);
                }
            }
        }
    }
}

fn change(event: &Value) -> Change {
    let kv = &event["kv"];
    let deleted = event["type"].as_str() == Some("DELETE");
    Change {
        revision: number(&kv["mod_revision"]),
        key: decode(&kv["key"]),
        value: (!deleted).then(|| decode(&kv["value"])),
        version: number(&kv["version"]),
        create_revision: number(&kv["create_revision"]),
        lease: number(&kv["lease"]),
    }
}

/// The first key after all that have this prefix.
pub(crate) fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}
