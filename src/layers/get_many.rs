//! Reading any number of keys at one revision.
//!
//! 128 keys in one transaction cost etcd little more than one key. Unless a revision is given, the first transaction is
//! read alone, because its response has the revision of all others. These are then sent at once and need no quorum: the
//! state at a given revision does not change.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! let users = ["users/1", "users/2", "users/3"];
//! let found = etcd.get_many(users).await?;
//! for (key, kv) in users.iter().zip(&found.kvs) {
//!     match kv {
//!         Some(kv) => println!("{key} = {:?}", kv.value_str()),
//!         None => println!("{key} does not exist"),
//!     }
//! }
//! # Ok(())
//! # }
//! ```

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::task::JoinSet;

use crate::{
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    kv::{KeyValue, OpResponse, ResponseHeader, get, txn},
    request::{ClientHandle, IntoBytes, ResponseFuture, macros::etcd_request},
};

/// Operations per transaction that etcd allows by default (`--max-txn-ops`).
pub(crate) const DEFAULT_MAX_TXN_OPS: usize = 128;
/// Keys of the first transaction. Few, because all others wait for its revision.
const FIRST_KEYS: usize = 16;
/// Keys per task: one transaction, unless the server refuses it.
const KEYS_PER_TASK: usize = DEFAULT_MAX_TXN_OPS;
/// Tasks, and so transactions, in flight.
const MAX_TASKS: usize = 16;

/// Reads any number of keys at one revision.
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct GetMany<C = ()> {
    keys: Vec<Bytes>,
    read: ReadOptions,
    client: C,
}

#[derive(Debug, Clone, Copy, Default)]
struct ReadOptions {
    revision: i64,
    /// Cluster of the first response; 0 before. With `follow_cluster_change` it can change.
    cluster: u64,
    serializable: bool,
    keys_only: bool,
    timeout: Option<Duration>,
}

/// Creates a request that reads any number of keys at one revision.
pub fn get_many<K: IntoBytes>(keys: impl IntoIterator<Item = K>) -> GetMany {
    GetMany {
        keys: keys.into_iter().map(IntoBytes::into_bytes).collect(),
        read: ReadOptions::default(),
        client: (),
    }
}

impl Client {
    /// Reads any number of keys at one revision, many per transaction. The response has them in the order of the
    /// request, with `None` for keys that do not exist.
    ///
    /// Fails with [`ErrorKind::Compacted`] if the revision is compacted before all keys are read, and with
    /// [`ErrorKind::ClusterChanged`] if the client follows another cluster meanwhile.
    ///
    /// etcd 3.5.0 to 3.5.6 can crash when a transaction of reads is cancelled (etcd #14110 and #14891). Use a later
    /// release.
    pub fn get_many<K: IntoBytes>(&self, keys: impl IntoIterator<Item = K>) -> GetMany<Self> {
        get_many(keys).on(self)
    }
}

impl GetMany {
    /// Binds the request to a client: awaiting it sends it.
    pub fn on<C: ClientHandle>(self, client: &C) -> GetMany<C> {
        GetMany {
            keys: self.keys,
            read: self.read,
            client: client.clone(),
        }
    }
}

impl<C> GetMany<C> {
    /// Reads the state at this revision. Default: 0, the newest.
    pub fn revision(mut self, revision: i64) -> Self {
        self.read.revision = revision;
        self
    }

    /// Reads from one member per transaction without consulting the others: faster, but the data may be stale. It is
    /// still of one revision. Default: the first transaction is linearizable, the others read at its
    /// revision.
    pub fn serializable(mut self) -> Self {
        self.read.serializable = true;
        self
    }

    /// Returns keys without values. Default: with values.
    pub fn keys_only(mut self) -> Self {
        self.read.keys_only = true;
        self
    }

    /// Longest time that each transaction may take, retries included. Default: the client's `request_timeout`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.read.timeout = Some(timeout);
        self
    }
}

impl<Client: ClientHandle> IntoFuture for GetMany<Client> {
    type Output = Result<GetManyResponse>;
    type IntoFuture = ResponseFuture<GetManyResponse>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(read_all(self))
    }
}

etcd_request!(GetMany -> GetManyResponse, ClientHandle);

/// The response to a [`GetMany`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GetManyResponse {
    /// The revision of all values; 0 if no key was requested.
    pub revision: i64,
    /// One entry per requested key, in the order of the request; `None` if the key did not exist.
    pub kvs: Vec<Option<KeyValue>>,
}

async fn read_all<C: ClientHandle>(request: GetMany<C>) -> Result<GetManyResponse> {
    let GetMany {
        keys,
        mut read,
        client,
    } = request;
    let keys: Arc<[Bytes]> = keys.into();
    let max_ops = Arc::new(AtomicUsize::new(DEFAULT_MAX_TXN_OPS));
    let mut kvs = Vec::with_capacity(keys.len());
    let mut unread = 0..keys.len();
    if read.revision == 0 && !keys.is_empty() {
        // Keys that fit into one transaction are not worth two.
        let first = match keys.len() {
            all @ ..=DEFAULT_MAX_TXN_OPS => 0..all,
            _ => 0..FIRST_KEYS,
        };
        unread.start = first.end;
        let part = read_part(client.clone(), keys.clone(), first, read, max_ops.clone());
        let part = part.await?;
        (read.revision, read.cluster) = (part.revision, part.cluster);
        kvs.extend(part.kvs);
        // The state at a given revision is the same on every member that has it, so a quorum is asked only for members
        // that lag behind.
        read.serializable = true;
    }
    let (mut tasks, mut finished) = (JoinSet::new(), FinishedParts::default());
    let mut number = 0;
    while !unread.is_empty() || !tasks.is_empty() {
        while tasks.len() < MAX_TASKS && !unread.is_empty() {
            let part = unread.start..unread.end.min(unread.start + KEYS_PER_TASK);
            unread.start = part.end;
            let reading = read_part(client.clone(), keys.clone(), part, read, max_ops.clone());
            let task_number = number;
            number += 1;
            tasks.spawn(async move { (task_number, reading.await) });
        }
        if let Some(ended) = tasks.join_next().await {
            let (task_number, part) = ended.map_err(|_| reading_stopped())?;
            let part = part?;
            check_cluster(read.cluster, part.cluster)?;
            read.cluster = part.cluster;
            finished.add(task_number, part.kvs, &mut kvs);
        }
    }
    Ok(GetManyResponse {
        revision: read.revision,
        kvs,
    })
}

/// Some of the requested keys.
struct ReadPart {
    revision: i64,
    cluster: u64,
    kvs: Vec<Option<KeyValue>>,
}

/// Parts that were read before an earlier one.
#[derive(Default)]
struct FinishedParts {
    waiting: BTreeMap<usize, Vec<Option<KeyValue>>>,
    next: usize,
}

impl FinishedParts {
    /// Adds a part, and appends all parts whose predecessors are complete to `kvs`.
    fn add(&mut self, number: usize, part: Vec<Option<KeyValue>>, kvs: &mut Vec<Option<KeyValue>>) {
        self.waiting.insert(number, part);
        while let Some(part) = self.waiting.remove(&self.next) {
            kvs.extend(part);
            self.next += 1;
        }
    }
}

/// Reads a part of the keys, one transaction after the other. The first response determines the revision if `read` has
/// none. A transaction with too many operations or with a response that is too large is sent again in smaller parts.
async fn read_part<C: ClientHandle>(
    client: C,
    keys: Arc<[Bytes]>,
    part: Range<usize>,
    mut read: ReadOptions,
    max_ops: Arc<AtomicUsize>,
) -> Result<ReadPart> {
    let mut kvs = Vec::with_capacity(part.len());
    let mut unread = VecDeque::from([part]);
    while let Some(mut part) = unread.pop_front() {
        let limit = max_ops.load(Relaxed).max(1);
        if part.len() > limit {
            unread.push_front(part.start + limit..part.end);
            part.end = part.start + limit;
        }
        let error = match read_txn(&client, &keys[part.clone()], read, &mut kvs).await {
            Ok(header) => {
                if read.revision == 0 {
                    read.revision = header.revision;
                }
                read.cluster = header.cluster_id;
                continue;
            }
            Err(error) => error,
        };
        match error.kind() {
            ErrorKind::TooManyOps if part.len() > 1 => {
                max_ops.fetch_min(part.len() / 2, Relaxed);
                unread.push_front(part);
            }
            ErrorKind::ResponseTooLarge if part.len() > 1 => {
                let middle = part.start + part.len() / 2;
                unread.push_front(middle..part.end);
                unread.push_front(part.start..middle);
            }
            // A member that lags behind does not have the revision yet; a quorum has.
            ErrorKind::FutureRevision if read.serializable => {
                read.serializable = false;
                unread.push_front(part);
            }
            _ => return Err(error),
        }
    }
    Ok(ReadPart {
        revision: read.revision,
        cluster: read.cluster,
        kvs,
    })
}

/// Reads keys in one transaction, appends them to `kvs`, and returns the header of the response.
async fn read_txn<C: ClientHandle>(
    client: &C,
    keys: &[Bytes],
    read: ReadOptions,
    kvs: &mut Vec<Option<KeyValue>>,
) -> Result<ResponseHeader> {
    let read_key = |key: &Bytes| {
        let mut one = get(key.clone()).revision(read.revision);
        if read.serializable {
            one = one.serializable();
        }
        if read.keys_only {
            one = one.keys_only();
        }
        one
    };
    let mut request = txn().then(keys.iter().map(read_key).collect::<Vec<_>>());
    if let Some(timeout) = read.timeout {
        request = request.timeout(timeout);
    }
    let response = request.on(client).await?;
    check_cluster(read.cluster, response.header.cluster_id)?;
    if response.responses.len() != keys.len() {
        return Err(unexpected_responses());
    }
    for found in response.responses {
        let OpResponse::Get(found) = found else {
            return Err(unexpected_responses());
        };
        kvs.push(found.kvs.into_iter().next());
    }
    Ok(response.header)
}

/// Fails if a response comes from another cluster than the first one, which is 0 before the first response.
fn check_cluster(first: u64, cluster: u64) -> Result<()> {
    if first == 0 || first == cluster {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::ClusterChanged,
        Outcome::NotSent,
        "the client changed to another cluster before all keys were read",
    ))
}

fn unexpected_responses() -> Error {
    Error::new(
        ErrorKind::Protocol,
        Outcome::Unknown,
        "the responses of the transaction do not match its reads",
    )
}

fn reading_stopped() -> Error {
    Error::new(
        ErrorKind::Internal,
        Outcome::NotSent,
        "the task that reads keys ended without a result",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_appended_in_order() {
        let part = |number: i64| {
            let version = number;
            vec![Some(KeyValue {
                version,
                ..KeyValue::default()
            })]
        };
        let (mut finished, mut kvs) = (FinishedParts::default(), Vec::new());
        finished.add(1, part(1), &mut kvs);
        finished.add(2, part(2), &mut kvs);
        assert!(kvs.is_empty());
        finished.add(0, part(0), &mut kvs);
        let versions: Vec<_> = kvs.iter().flatten().map(|kv| kv.version).collect();
        assert_eq!(versions, [0, 1, 2]);
        assert!(finished.waiting.is_empty());
    }
}
