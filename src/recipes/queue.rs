//! The queue that locks and elections are: one key a session under a prefix, ordered by create revision.
//!
//! The layout is that of the Go client's `concurrency` package: `<name>/<lease in hex>`.

use std::{pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{sync::oneshot, time::timeout};

use super::{
    held::{Ownership, PAUSE},
    place::{Place, sweep},
    session::{Session, Shared},
    tenure::{OwnershipLost, Tenure},
    turns::{Turn, Waiting},
};
use crate::{
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    kv::{Compare, OpResponse, TxnResponse, get, put},
    retry::{RetryDecision, decision::remedy},
};

/// Between two looks at a key of ours that another session has taken over.
const FOREIGN: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub(super) struct Queue {
    pub(super) client: Client,
    session: Arc<Shared>,
    pub(super) prefix: Bytes,
}

/// Whether a key is put behind others, or only where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Join {
    Behind,
    IfEmpty,
}

/// What an attempt to join came to.
#[derive(Debug, PartialEq, Eq)]
enum Joined {
    /// Our key is there, with that create revision.
    At { token: i64, adopted: bool },
    /// A key of our name belongs to another lease.
    Foreign,
    /// There are others.
    Occupied,
}

impl Queue {
    pub(super) fn new(session: &Session, name: &Bytes) -> Self {
        Self {
            client: session.client().clone(),
            session: session.shared().clone(),
            prefix: prefix(name),
        }
    }

    pub(super) fn tenure(&self) -> Result<Tenure, OwnershipLost> {
        Tenure::current(&self.session)
    }

    pub(super) fn turns(&self) -> Waiting {
        self.session.turns.of(&self.prefix)
    }

    /// Waits for our turn among the tasks of this session.
    pub(super) async fn turn(&self, tenure: &Tenure) -> Result<Turn> {
        tokio::select! {
            biased;
            loss = tenure.over() => Err(loss.into()),
            turn = self.turns().lock_owned() => Ok(turn),
        }
    }

    /// Puts our key behind those that are there.
    pub(super) async fn join(&self, value: Bytes) -> Result<Place> {
        let tenure = self.tenure()?;
        let turn = self.turn(&tenure).await?;
        let place = self.create(tenure, turn, value, Join::Behind).await?;
        place.ok_or_else(|| OwnershipLost::Taken.into())
    }

    /// The same, and waits until it is the first; nothing where it is told to leave, when it has left. In an outage it
    /// goes on leaving in the background.
    pub(super) async fn first_unless(
        &self,
        value: Bytes,
        leave: &mut oneshot::Receiver<()>,
    ) -> Result<Option<Place>> {
        let tenure = self.tenure()?;
        let turn = tokio::select! {
            biased;
            _ = &mut *leave => return Ok(None),
            turn = self.turn(&tenure) => turn?,
        };
        let mut joining = pin!(self.create(tenure, turn, value, Join::Behind));
        let place = tokio::select! {
            biased;
            _ = &mut *leave => {
                // Only when the put under way has arrived there is something to delete.
                let joined = timeout(self.client.request_timeout(), joining).await;
                if let Ok(Ok(Some(place))) = joined {
                    left(place).await;
                }
                return Ok(None);
            }
            joined = &mut joining => joined?.ok_or(OwnershipLost::Taken)?,
        };
        let stays = tokio::select! {
            biased;
            _ = leave => false,
            first = place.first() => first.map(|()| true)?,
        };
        if !stays {
            left(place).await;
            return Ok(None);
        }
        Ok(Some(place))
    }

    /// Puts our key if there is no other; nothing is left behind where there is.
    pub(super) async fn join_if_empty(&self, value: Bytes) -> Result<Option<Place>> {
        let tenure = self.tenure()?;
        let Ok(turn) = self.turns().try_lock_owned() else {
            return Ok(None);
        };
        let place = self.create(tenure, turn, value, Join::IfEmpty).await?;
        match place {
            // It was there already: put by an attempt that was never answered, perhaps behind others.
            Some(place) if place.adopted && !place.is_first().await? => {
                place.leave().await?;
                Ok(None)
            }
            place => Ok(place),
        }
    }

    /// On a task of its own, which goes on when its caller is gone: a put that was cancelled halfway could be applied
    /// after the delete that should undo it.
    async fn create(
        &self,
        tenure: Tenure,
        turn: Turn,
        value: Bytes,
        join: Join,
    ) -> Result<Option<Place>> {
        let held = Ownership {
            client: self.client.clone(),
            key: key(&self.prefix, tenure.lease()),
            tenure: tenure.clone(),
            token: 0,
        };
        let attempt = Attempt {
            held,
            prefix: self.prefix.clone(),
            turns: self.turns(),
            value,
            join,
            unsure: false,
        };
        let (tell, told) = oneshot::channel();
        let started = self.client.run(move || {
            actix_rt::spawn(attempt.run(turn, tell));
        });
        if !started {
            return Err(Error::shut_down());
        }
        tokio::select! {
            biased;
            loss = tenure.over() => Err(loss.into()),
            joined = told => joined.map_err(|_| Error::shut_down())?,
        }
    }
}

async fn left(place: Place) {
    if let Err(error) = place.leave().await {
        tracing::debug!(%error, "a queue was not left at once");
    }
}

/// Puts a key, over as many attempts as it takes.
struct Attempt {
    held: Ownership,
    prefix: Bytes,
    turns: Waiting,
    value: Bytes,
    join: Join,
    unsure: bool,
}

impl Attempt {
    async fn run(mut self, turn: Turn, mut tell: oneshot::Sender<Result<Option<Place>>>) {
        let joined = self.join(&mut tell).await;
        let told = joined.map(|joined| match joined {
            Joined::At { token, adopted } => Some(Place {
                held: Ownership {
                    token,
                    ..self.held.clone()
                },
                prefix: self.prefix,
                adopted,
                unsure: self.unsure.then(|| self.turns.clone()),
                turn: Some(turn),
            }),
            Joined::Foreign | Joined::Occupied => None,
        });
        if self.unsure && !matches!(told, Ok(Some(_))) {
            sweep(&self.held, self.turns);
        }
        // A place that nobody takes is left when it is dropped.
        let _ = tell.send(told);
    }

    async fn join(&mut self, tell: &mut oneshot::Sender<Result<Option<Place>>>) -> Result<Joined> {
        loop {
            let pause = match self.once().await {
                Ok(Joined::Foreign) => FOREIGN,
                Ok(joined) => return Ok(joined),
                Err(error) if error.kind() == ErrorKind::LeaseNotFound => {
                    // A kept lease that is asked for and gone is told to be lost, long before its next keepalive.
                    let _ = self.held.client.keep_alive_once(self.held.lease()).await;
                    let loss = "the server does not have its lease any more";
                    let (kind, outcome) = (ErrorKind::SessionLost, Outcome::Rejected);
                    return Err(Error::new(kind, outcome, loss));
                }
                Err(error) => {
                    self.unsure |= error.outcome() == Outcome::Unknown;
                    if !passes(&error) {
                        return Err(error);
                    }
                    PAUSE
                }
            };
            if tell.is_closed() && !self.unsure {
                return Ok(Joined::Occupied);
            }
            tokio::select! {
                loss = self.held.tenure.over() => return Err(loss.into()),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn once(&self) -> Result<Joined> {
        let key = &self.held.key;
        let condition = match self.join {
            Join::Behind => Compare::create_revision(key.clone()).eq(0),
            Join::IfEmpty => Compare::create_revision(self.prefix.clone()).eq(0).prefix(),
        };
        let ours = put(key.clone(), self.value.clone()).lease(self.held.lease());
        let done = self
            .held
            .client
            .txn()
            .when([condition])
            .then([ours])
            .otherwise([get(key.clone())])
            .await?;
        Ok(joined(&done, self.held.lease(), self.join))
    }
}

fn joined(done: &TxnResponse, lease: i64, join: Join) -> Joined {
    if done.succeeded {
        return Joined::At {
            token: done.header.revision,
            adopted: false,
        };
    }
    let found = match done.responses.first() {
        Some(OpResponse::Get(found)) => found.first(),
        _ => None,
    };
    match found {
        Some(found) if found.lease == lease => Joined::At {
            token: found.create_revision,
            adopted: true,
        },
        _ if join == Join::IfEmpty => Joined::Occupied,
        _ => Joined::Foreign,
    }
}

/// Whether the same may well succeed later. What a lock waits for is bounded by its session, not by one call.
pub(super) fn passes(error: &Error) -> bool {
    remedy(error.kind()) != RetryDecision::Fail
        || matches!(
            error.kind(),
            ErrorKind::DeadlineExceeded | ErrorKind::Overloaded
        )
}

/// Where the keys of a name are.
pub(super) fn prefix(name: &Bytes) -> Bytes {
    [name, &b"/"[..]].concat().into()
}

fn key(prefix: &Bytes, lease: i64) -> Bytes {
    let mut key = prefix.to_vec();
    key.extend_from_slice(format!("{lease:x}").as_bytes());
    key.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kv::GetResponse,
        proto::{KeyValue, ResponseHeader},
    };

    const LEASE: i64 = 0x0070_ffab;

    fn answer(succeeded: bool, found: Option<(i64, i64)>) -> TxnResponse {
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
    fn keys_are_laid_out_as_go_does() {
        let prefix = prefix(&Bytes::from_static(b"jobs/cleaner"));
        assert_eq!(key(&prefix, LEASE), "jobs/cleaner/70ffab");
    }

    #[test]
    fn a_key_that_was_there_is_ours_only_by_its_lease() {
        let adopted = Joined::At {
            token: 4,
            adopted: true,
        };
        let created = Joined::At {
            token: 9,
            adopted: false,
        };
        let (behind, alone) = (Join::Behind, Join::IfEmpty);
        assert_eq!(joined(&answer(true, None), LEASE, behind), created);
        let ours = answer(false, Some((LEASE, 4)));
        assert_eq!(joined(&ours, LEASE, behind), adopted);
        let theirs = answer(false, Some((LEASE + 1, 4)));
        assert_eq!(joined(&theirs, LEASE, behind), Joined::Foreign);
        assert_eq!(joined(&theirs, LEASE, alone), Joined::Occupied);
        assert_eq!(joined(&answer(false, None), LEASE, alone), Joined::Occupied);
    }
}
