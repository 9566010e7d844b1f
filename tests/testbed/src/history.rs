//! All changes of the keys, read back from etcd by revision. Tests compare their results with this history.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::cluster::Cluster;
use crate::gateway::{self, decode, encode, number};
use crate::member::Member;
use crate::runtime;

/// Longest wait for the next watch response while the history is read.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// A change of one key at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Revision of the change, shared by all changes of one transaction.
    pub revision: i64,
    /// The key.
    pub key: Vec<u8>,
    /// The new value; `None` if the key was deleted.
    pub value: Option<Vec<u8>>,
    /// Version of the key; 0 if it was deleted.
    pub version: i64,
    /// Revision that created the key; 0 if it was deleted.
    pub create_revision: i64,
    /// Lease attached to the key; 0 for none.
    pub lease: i64,
}

impl Cluster {
    /// Returns all changes of keys with a prefix, in order, from the oldest revision that is not compacted to the
    /// newest.
    pub async fn history(&self, prefix: impl AsRef<[u8]>) -> Vec<Change> {
        let prefix = prefix.as_ref().to_vec();
        let revision = self.revision().await;
        let cluster = self.clone();
        let changes = runtime::run(async move {
            let mut errors = Vec::new();
            for member in cluster.running() {
                match cluster.read_history(&member, revision).await {
                    Ok(changes) => return changes,
                    Err(error) => errors.push(error),
                }
            }
            panic!("cannot read the history from any member: {errors:?}");
        });
        changes
            .await
            .into_iter()
            .filter(|change| change.key.starts_with(&prefix))
            .collect()
    }

    /// Returns the newest revision of the store.
    pub async fn revision(&self) -> i64 {
        let response = self
            .api_any("/v3/kv/range", json!({"key": "AA==", "count_only": true}))
            .await;
        number(&response["header"]["revision"])
    }

    /// Watches all keys. Every revision changes a key, so the watch is complete when `newest` arrives.
    async fn read_history(&self, member: &Member, newest: i64) -> Result<Vec<Change>, String> {
        let mut from = 1;
        'from_revision: loop {
            let mut changes: Vec<Change> = Vec::new();
            if newest < 2 {
                return Ok(changes);
            }
            let create = json!({"create_request": {
                "key": encode([0]), "range_end": encode([0]), "start_revision": from.to_string(),
            }});
            let token = self.token(member, false).await?;
            let open = gateway::stream(
                member.gateway_port(),
                "/v3/watch",
                &create,
                token.as_deref(),
            );
            let mut stream = timeout(READ_TIMEOUT, open)
                .await
                .map_err(|_| "the watch did not open in time")??;
            loop {
                let item = timeout(READ_TIMEOUT, stream.next())
                    .await
                    .map_err(|_| "the watch sent no response in time")??;
                let result = &item["result"];
                let compacted: i64 = number(&result["compact_revision"]);
                if compacted > 0 {
                    from = compacted;
                    continue 'from_revision;
                }
                if result["canceled"].as_bool() == Some(true) || item["error"].is_object() {
                    return Err(format!("the watch was rejected: {item}"));
                }
                changes.extend(
                    result["events"]
                        .as_array()
                        .into_iter()
                        .flatten()
                        .map(parse_change),
                );
                if changes.last().is_some_and(|last| last.revision >= newest) {
                    return Ok(changes);
                }
            }
        }
    }
}

fn parse_change(event: &Value) -> Change {
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

/// Returns the first key after all keys with a prefix.
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
