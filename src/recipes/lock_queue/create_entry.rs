//! Creates a session's key in a lock queue.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{
    Ownership, QueueEntry, QueueKeys, contenders::check_contenders,
    late_key_cleanup::delete_when_late,
};
use crate::{
    error::{Error, ErrorKind, Outcome, Result},
    kv::{Compare, OpResponse, TxnResponse, get, put},
    recipes::{
        session::{LocalMutex, LocalMutexGuard, Session},
        txn_read::first_key,
    },
    retry::availability::{RETRY_DELAY, is_temporary},
    runtime::holders::Holder,
};

/// Delay before the key is tried again while it is bound to the lease of another session.
const OTHER_LEASE_DELAY: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JoinMode {
    /// Join behind the existing keys.
    AtEnd,
    /// Join only if no key blocks the entry.
    IfUnblocked,
    /// Join only if no blocking key was created after this revision.
    IfNoneSince(i64),
}

/// Result of one request to create the key.
#[derive(Debug, PartialEq, Eq)]
enum CreateResult {
    /// The key exists with this create revision. `adopted`: an earlier request created it.
    Present { token: i64, adopted: bool },
    /// The key exists, but is bound to another lease.
    OtherLease,
    /// The condition of the mode does not hold.
    Occupied,
}

/// Repeats the request until it succeeds or fails with an error that does not pass by itself.
pub(super) struct CreateEntry {
    /// Its token is 0 until the key is created.
    pub(super) ownership: Ownership,
    pub(super) keys: QueueKeys,
    pub(super) owned_session: Option<Arc<Session>>,
    pub(super) local_mutex: LocalMutex,
    pub(super) holder: Holder,
    pub(super) value: Bytes,
    pub(super) mode: JoinMode,
    /// Whether a request got no response. It may still create the key.
    pub(super) outcome_unknown: bool,
}

type CreatedEntry = oneshot::Sender<Result<Option<QueueEntry>>>;

impl CreateEntry {
    pub(super) async fn run(mut self, guard: LocalMutexGuard, mut created: CreatedEntry) {
        let result = self.create(&mut created).await;
        let entry = result.map(|result| match result {
            CreateResult::Present { token, adopted } => Some(QueueEntry {
                ownership: Ownership {
                    token,
                    ..self.ownership.clone()
                },
                keys: self.keys,
                _owned_session: self.owned_session,
                adopted,
                local_guard: Some(guard),
                holder: Some(self.holder),
            }),
            CreateResult::OtherLease | CreateResult::Occupied => None,
        });
        // If the caller no longer waits, the entry is dropped here and deletes its key.
        let _ = created.send(entry);
    }

    async fn create(&mut self, created: &mut CreatedEntry) -> Result<CreateResult> {
        loop {
            let delay = match self.create_once().await {
                Ok(CreateResult::OtherLease) => OTHER_LEASE_DELAY,
                Ok(result) => return Ok(result),
                Err(error) if error.kind() == ErrorKind::LeaseNotFound => {
                    // The response makes the client report the loss at once instead of at the next keepalive.
                    let ownership = &self.ownership;
                    let _ = ownership.client.keep_alive_once(ownership.lease()).await;
                    let reason = "etcd no longer has the lease of the session";
                    let (kind, outcome) = (ErrorKind::SessionLost, Outcome::Rejected);
                    return Err(Error::new(kind, outcome, reason));
                }
                Err(error) => {
                    if error.outcome() == Outcome::Unknown {
                        self.outcome_unknown = true;
                        delete_when_late(&self.ownership, &self.local_mutex);
                    }
                    if !is_temporary(&error) {
                        return Err(error);
                    }
                    RETRY_DELAY
                }
            };
            if created.is_closed() && !self.outcome_unknown {
                return Ok(CreateResult::Occupied);
            }
            tokio::select! {
                loss = self.ownership.session_lease.ended() => return Err(loss.into()),
                () = tokio::time::sleep(delay) => {}
            }
        }
    }

    async fn create_once(&self) -> Result<CreateResult> {
        let Ownership { client, key, .. } = &self.ownership;
        let lease = self.ownership.lease();
        let blocking = self.keys.blocking();
        let mut conditions = vec![Compare::create_revision(key.clone()).eq(0)];
        let created = Compare::create_revision(blocking.clone());
        match self.mode {
            JoinMode::AtEnd => {}
            JoinMode::IfUnblocked => conditions.push(created.eq(0).prefix()),
            JoinMode::IfNoneSince(revision) => conditions.push(created.lt(revision + 1).prefix()),
        }
        let oldest = get(blocking).prefix().first_by_create_revision();
        let response = client
            .txn()
            .when(conditions)
            .then([put(key.clone(), self.value.clone()).lease(lease)])
            .otherwise([get(key.clone()), oldest])
            .await?;
        let result = create_result(&response, lease, self.mode);
        if result == CreateResult::Occupied
            && let Some(OpResponse::Get(oldest)) = response.responses.get(1)
        {
            check_contenders(&self.keys, &oldest.kvs)?;
        }
        Ok(result)
    }
}

fn create_result(response: &TxnResponse, lease: i64, mode: JoinMode) -> CreateResult {
    if response.succeeded {
        return CreateResult::Present {
            token: response.header.revision,
            adopted: false,
        };
    }
    match first_key(response) {
        Some(found) if found.lease == lease => CreateResult::Present {
            token: found.create_revision,
            adopted: true,
        },
        _ if mode == JoinMode::AtEnd => CreateResult::OtherLease,
        _ => CreateResult::Occupied,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kv::GetResponse,
        proto::{KeyValue, ResponseHeader},
    };

    const LEASE: i64 = 0x0070_ffab;

    fn response(succeeded: bool, found: Option<(i64, i64)>) -> TxnResponse {
        let header = ResponseHeader {
            revision: 9,
            ..ResponseHeader::default()
        };
        let kvs = found.map(|(lease, create_revision)| KeyValue {
            lease,
            create_revision,
            ..KeyValue::default()
        });
        TxnResponse {
            header,
            succeeded,
            responses: vec![OpResponse::Get(GetResponse {
                header,
                kvs: kvs.into_iter().collect(),
                more: false,
                count: 0,
            })],
        }
    }

    #[test]
    fn existing_key_is_adopted_only_with_same_lease() {
        let adopted = CreateResult::Present {
            token: 4,
            adopted: true,
        };
        let created = CreateResult::Present {
            token: 9,
            adopted: false,
        };
        let (at_end, if_empty) = (JoinMode::AtEnd, JoinMode::IfUnblocked);
        assert_eq!(create_result(&response(true, None), LEASE, at_end), created);
        let same_lease = response(false, Some((LEASE, 4)));
        assert_eq!(create_result(&same_lease, LEASE, at_end), adopted);
        let other_lease = response(false, Some((LEASE + 1, 4)));
        assert_eq!(
            create_result(&other_lease, LEASE, at_end),
            CreateResult::OtherLease
        );
        assert_eq!(
            create_result(&other_lease, LEASE, if_empty),
            CreateResult::Occupied
        );
        assert_eq!(
            create_result(&response(false, None), LEASE, if_empty),
            CreateResult::Occupied
        );
    }
}
