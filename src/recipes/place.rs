//! A place in a queue: a key whose create revision says who comes before whom.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{
    held::{Ownership, PAUSE},
    queue::passes,
    tenure::OwnershipLost,
    turns::{Turn, Waiting},
};
use crate::{
    error::{ErrorKind, Outcome, Result},
    kv::{OpResponse, TxnResponse, delete, get},
    lease::LeaseLost,
    watch::WatchEvent,
};

/// A write without an answer can arrive at the server's log that late.
const LATE: Duration = Duration::from_secs(10);
/// The longest pause between two attempts of what is refused.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A key in the queue. Dropped, it is deleted in the background.
pub(super) struct Place {
    pub(super) held: Ownership,
    pub(super) prefix: Bytes,
    /// A key of this session was there already.
    pub(super) adopted: bool,
    /// An attempt to create the key was never answered: it may create the key again once it is deleted.
    pub(super) unsure: Option<Waiting>,
    /// Given up when the key is gone, so that the next task of the session makes a new one.
    pub(super) turn: Option<Turn>,
}

/// Who is before us.
#[derive(Debug, PartialEq, Eq)]
enum Ahead {
    Nobody,
    /// The one to wait for, and the revision from which on to watch it.
    Key(Bytes, i64),
    /// Our own key is gone.
    Removed,
}

impl Place {
    /// Waits until nobody is before us; fails when the session is lost or our key is gone.
    pub(super) async fn first(&self) -> Result<()> {
        tokio::select! {
            biased;
            loss = self.held.tenure.over() => Err(loss.into()),
            first = self.wait() => first,
        }
    }

    /// Whether nobody is before us.
    pub(super) async fn is_first(&self) -> Result<bool> {
        Ok(self.ahead().await? == Ahead::Nobody)
    }

    /// A key goes with its lease, and that is seen before the session hears of its lease.
    async fn why_removed(&self) -> OwnershipLost {
        let lease = self.held.tenure.lease();
        match self.held.client.time_to_live(lease).await {
            Ok(answer) if answer.remaining.is_none() => OwnershipLost::Session(LeaseLost::Revoked),
            Ok(_) | Err(_) => OwnershipLost::Taken,
        }
    }

    async fn wait(&self) -> Result<()> {
        loop {
            let step = match self.ahead().await {
                Ok(Ahead::Nobody) => break,
                Ok(Ahead::Removed) => return Err(self.why_removed().await.into()),
                Ok(Ahead::Key(key, from)) => self.wait_for(key, from).await,
                Err(error) => Err(error),
            };
            match step {
                Ok(()) => {}
                Err(error) if passes(&error) => tokio::time::sleep(PAUSE).await,
                Err(error) => return Err(error),
            }
        }
        Ok(self.held.tenure.certain().await?)
    }

    /// Reads whether our key is there and who is right before it, both at one revision.
    async fn ahead(&self) -> Result<Ahead> {
        let before = get(self.prefix.clone())
            .prefix()
            .keys_only()
            .max_create_revision(self.held.token - 1)
            .last_by_create_revision();
        let read = self.held.txn().then([before]).await?;
        Ok(who_is_ahead(&read))
    }

    /// Waits until a key is deleted, or something happens to the watch: who comes next is read anew.
    async fn wait_for(&self, key: Bytes, from: i64) -> Result<()> {
        let watch = self.held.client.watch(key).filter_puts();
        let mut watch = watch.start_revision(from).await?;
        while let Some(item) = watch.next().await {
            match item {
                // Of a cluster that was restored from an old backup, nothing is known.
                WatchEvent::Events(_) | WatchEvent::RevisionRegressed { .. } => return Ok(()),
                WatchEvent::Ended(why) => {
                    let error = why.to_error();
                    // What was compacted away shows in the next read.
                    let reread = error.kind() == ErrorKind::Compacted;
                    return if reread { Ok(()) } else { Err(error) };
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Deletes the key and tells whether it was ours until then. Goes on in the background where that fails.
    pub(super) async fn leave(mut self) -> Result<bool> {
        let patience = Instant::now() + self.held.client.request_timeout();
        let mut unknown = false;
        loop {
            match remove(&self.held).await {
                Ok(removed) => {
                    self.turn = None;
                    self.sweep();
                    return Ok(removed || unknown);
                }
                Err(error) => {
                    unknown |= error.outcome() == Outcome::Unknown;
                    if !passes(&error) || Instant::now() > patience {
                        return Err(error);
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn sweep(&mut self) {
        if let Some(turns) = self.unsure.take() {
            sweep(&self.held, turns);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(turn) = self.turn.take() else {
            return;
        };
        let held = self.held.clone();
        let unsure = self.unsure.take();
        // Where the client has ended, so has its session.
        self.held.client.run(move || {
            actix_rt::spawn(async move {
                tokio::select! {
                    // The key goes with the lease.
                    _ = held.tenure.over() => {}
                    () = remove_at_last(&held, turn) => {}
                }
                if let Some(turns) = unsure {
                    sweep(&held, turns);
                }
            });
        });
    }
}

fn who_is_ahead(read: &TxnResponse) -> Ahead {
    if !read.succeeded {
        return Ahead::Removed;
    }
    let found = match read.responses.first() {
        Some(OpResponse::Get(found)) => found.first(),
        _ => None,
    };
    match found {
        Some(before) => Ahead::Key(before.key.clone(), read.header.revision + 1),
        None => Ahead::Nobody,
    }
}

async fn remove(held: &Ownership) -> Result<bool> {
    let done = held.txn().then([delete(held.key.clone())]).await?;
    Ok(done.succeeded)
}

/// Tries until the key is gone. The turn is kept while it is not known whether a delete will arrive: the next task of
/// the session would find the key, take it for its own, and lose it to that delete. Where deletes are refused, others
/// have their turn between two attempts, and hear of the refusal themselves.
async fn remove_at_last(held: &Ownership, turn: Turn) {
    let turns = Turn::mutex(&turn).clone();
    let mut turn = Some(turn);
    let mut pause = PAUSE;
    let mut arrived = Instant::now();
    loop {
        let error = match remove(held).await {
            Ok(_) => return,
            Err(error) if error.kind() == ErrorKind::Shutdown => return,
            Err(error) => error,
        };
        if error.outcome() == Outcome::Unknown {
            arrived = Instant::now() + LATE;
        }
        if passes(&error) {
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        tracing::warn!(%error, key = ?held.key, "a key of a lock or an election is not deleted yet");
        if Instant::now() >= arrived {
            turn = None;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        if turn.is_none() {
            turn = Some(turns.clone().lock_owned().await);
        }
    }
}

/// For as long as an attempt to create the key may still arrive, deletes it whenever none of the session's tasks
/// wants it.
pub(super) fn sweep(held: &Ownership, turns: Waiting) {
    let held = held.clone();
    held.client.clone().run(move || {
        actix_rt::spawn(async move {
            let end = Instant::now() + LATE;
            while Instant::now() < end {
                tokio::select! {
                    _ = held.tenure.over() => return,
                    () = tokio::time::sleep(LATE / 10) => {}
                }
                let Ok(turn) = turns.clone().try_lock_owned() else {
                    continue;
                };
                // Where nobody can be asked, the next round asks again.
                if let Ok(Some(late)) = late(&held).await {
                    tokio::select! {
                        _ = held.tenure.over() => return,
                        () = remove_at_last(&late, turn) => {}
                    }
                }
            }
        });
    });
}

/// The key, if it was created by an attempt that came late.
async fn late(held: &Ownership) -> Result<Option<Ownership>> {
    let found = held.client.get(held.key.clone()).await?;
    let ours = found.first().filter(|found| found.lease == held.lease());
    Ok(ours.map(|found| Ownership {
        token: found.create_revision,
        ..held.clone()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kv::GetResponse,
        proto::{KeyValue, ResponseHeader},
    };

    fn read(succeeded: bool, before: &[&'static str]) -> TxnResponse {
        let header = ResponseHeader {
            revision: 40,
            ..ResponseHeader::default()
        };
        let kvs = before.iter().map(|key| KeyValue {
            key: Bytes::from_static(key.as_bytes()),
            ..KeyValue::default()
        });
        let found = GetResponse {
            header,
            kvs: kvs.collect(),
            more: false,
            count: 0,
        };
        TxnResponse {
            header,
            succeeded,
            responses: if succeeded {
                vec![OpResponse::Get(found)]
            } else {
                Vec::new()
            },
        }
    }

    #[test]
    fn the_one_before_us_is_watched_from_the_revision_after_it_was_read() {
        assert_eq!(
            who_is_ahead(&read(true, &["l/1"])),
            Ahead::Key(Bytes::from_static(b"l/1"), 41)
        );
        assert_eq!(who_is_ahead(&read(true, &[])), Ahead::Nobody);
    }

    #[test]
    fn who_has_no_key_any_more_is_never_first() {
        assert_eq!(who_is_ahead(&read(false, &[])), Ahead::Removed);
    }
}
