//! Claims an item: one transaction marks it as taken by this session.
//!
//! The transaction requires that the item has not changed since it was read, and changes it. So at most one claim of all
//! takers is applied, and a copy that arrives late is not: it can be repeated until its result is known. If that cannot be
//! known, a task deletes the claim.

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{item_hold::REFUSED_BACKOFF, next_item::ReadyItem, queue_keys::QueueKeys};
use crate::{
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    kv::{Compare, KeyValue, OpResponse, TxnResponse, delete, get, put},
    recipes::session::{SessionLease, session_lost_if_no_lease},
    retry::availability::{RETRY_DELAY, is_temporary},
};

pub(super) struct ClaimTask {
    /// Does not keep the client running.
    pub(super) client: Client,
    pub(super) lease: SessionLease,
    pub(super) claim: Bytes,
    pub(super) item: ReadyItem,
    /// Value of the claim, by which its taker recognizes it.
    pub(super) id: Bytes,
}

/// An item that this session has taken.
#[derive(Debug, PartialEq)]
pub(super) struct ClaimedItem {
    pub(super) kv: KeyValue,
    /// The create revision of the claim.
    pub(super) token: i64,
}

impl ClaimTask {
    pub(super) fn new(
        client: Client,
        lease: SessionLease,
        keys: &QueueKeys,
        item: ReadyItem,
    ) -> Self {
        Self {
            client,
            lease,
            claim: keys.claim_of(&item.key),
            item,
            id: format!("{:016x}", fastrand::u64(..)).into(),
        }
    }

    /// Repeats the transaction until its result is known. Returns `None` if another taker was faster, or if nobody waits
    /// for the result and nothing was sent. Runs on the client's thread.
    pub(super) async fn run<T>(&self, result: &oneshot::Sender<T>) -> Result<Option<ClaimedItem>> {
        let mut outcome_unknown = false;
        while !result.is_closed() || outcome_unknown {
            let error = match self.send().await {
                Ok(response) => {
                    // Otherwise an earlier copy may have been applied.
                    let is_unclaimed = !response.succeeded && !outcome_unknown;
                    let claimed = claimed_item(response, &self.id);
                    if !is_unclaimed && !matches!(claimed, Ok(Some(_))) {
                        self.remove_in_background();
                    }
                    return claimed;
                }
                Err(error) => error,
            };
            if error.kind() == ErrorKind::LeaseNotFound {
                // The response makes the client report the loss at once instead of at the next keepalive.
                let _ = self.client.keep_alive_once(self.lease.id()).await;
                return Err(session_lost_if_no_lease(error));
            }
            outcome_unknown |= error.outcome() == Outcome::Unknown;
            if !is_temporary(&error) {
                if outcome_unknown {
                    self.remove_in_background();
                }
                return Err(error);
            }
            tokio::select! {
                // etcd deletes the claim with its lease.
                loss = self.lease.ended() => return Err(loss.into()),
                () = tokio::time::sleep(RETRY_DELAY) => {}
            }
        }
        Ok(None)
    }

    /// Deletes the claim, if a copy of the transaction was applied, because nobody has the item.
    fn remove_in_background(&self) {
        let (client, lease) = (self.client.clone(), self.lease.clone());
        let (claim, id) = (self.claim.clone(), self.id.clone());
        actix_rt::spawn(async move {
            tokio::select! {
                biased;
                // etcd deletes the claim with its lease.
                _ = lease.ended() => {}
                () = remove_claim(&client, &claim, &id) => {}
            }
        });
    }

    async fn send(&self) -> Result<TxnResponse> {
        let item = &self.item.key;
        let unchanged = Compare::mod_revision(item).eq(self.item.mod_revision);
        let unclaimed = Compare::create_revision(&self.claim).eq(0);
        let claim = put(&self.claim, &self.id).lease(self.lease.id());
        let count_take = put(item, "").ignore_value().ignore_lease();
        self.client
            .txn()
            .when([unchanged, unclaimed])
            .then((claim, count_take, get(item)))
            .otherwise([get(&self.claim), get(item)])
            .await
    }
}

/// Deletes the claim with this value. Repeats that until etcd has answered or the client is shut down.
async fn remove_claim(client: &Client, claim: &Bytes, id: &Bytes) {
    let mut backoff = REFUSED_BACKOFF.start();
    loop {
        let is_own = Compare::value(claim).eq(id);
        let removed = client.txn().when(is_own).then([delete(claim)]).await;
        let error = match removed {
            Ok(_) => return,
            Err(error) if error.kind() == ErrorKind::Shutdown => return,
            Err(error) => error,
        };
        if !is_temporary(&error) {
            tracing::warn!(%error, key = ?claim, "claim of a queue's item not deleted yet");
        }
        tokio::time::sleep(backoff.next_delay(fastrand::f64())).await;
    }
}

/// Returns the item, if this taker has claimed it: with this transaction, or with an earlier copy whose response was lost.
fn claimed_item(response: TxnResponse, id: &Bytes) -> Result<Option<ClaimedItem>> {
    let mut found = response.responses.into_iter().filter_map(|op| match op {
        OpResponse::Get(found) => Some(found.kvs.into_iter().next()),
        _ => None,
    });
    let (item, token) = if response.succeeded {
        (found.next().flatten(), response.header.revision)
    } else {
        let claim = found.next().flatten();
        let Some(claim) = claim.filter(|claim| claim.value == id) else {
            return Ok(None);
        };
        (found.next().flatten(), claim.create_revision)
    };
    match item {
        Some(kv) => Ok(Some(ClaimedItem { kv, token })),
        // Somebody has deleted the item after the claim.
        None if !response.succeeded => Ok(None),
        None => {
            let reason = "the response of the transaction does not match its operations";
            Err(Error::new(ErrorKind::Protocol, Outcome::Unknown, reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kv::GetResponse, proto::ResponseHeader};

    fn response(succeeded: bool, found: [Option<(&'static str, i64)>; 2]) -> TxnResponse {
        let header = ResponseHeader {
            revision: 40,
            ..ResponseHeader::default()
        };
        let get = |kv: Option<(&'static str, i64)>| {
            let kv = kv.map(|(value, create_revision)| KeyValue {
                value: value.into(),
                create_revision,
                ..KeyValue::default()
            });
            OpResponse::Get(GetResponse {
                header,
                kvs: kv.into_iter().collect(),
                more: false,
                count: 0,
            })
        };
        TxnResponse {
            header,
            succeeded,
            responses: found.map(get).into(),
        }
    }

    fn token(response: TxnResponse) -> Option<i64> {
        let item = claimed_item(response, &Bytes::from("mine")).unwrap();
        item.map(|item| item.token)
    }

    #[test]
    fn only_own_claims_are_recognized() {
        let item = Some(("value", 7));
        assert_eq!(token(response(true, [item, None])), Some(40));
        assert_eq!(token(response(false, [Some(("mine", 39)), item])), Some(39));
        assert_eq!(token(response(false, [Some(("other", 39)), item])), None);
        assert_eq!(token(response(false, [None, item])), None);
        assert_eq!(token(response(false, [Some(("mine", 39)), None])), None);
    }
}
