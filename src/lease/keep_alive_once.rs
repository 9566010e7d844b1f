//! Renewing a lease once.

use std::time::Duration;

use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

use super::engine::{
    clock::{later, now},
    keeper::RenewLeaseOnce,
};
use crate::{
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    proto::LeaseKeepAliveResponse,
    request::request,
    retry::table,
};

/// A member that does not answer is not waited for longer.
pub(crate) const ONCE_RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Renews a lease once.
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct KeepAliveOnce<C = ()> {
    id: i64,
    timeout: Option<Duration>,
    client: C,
}

request!(KeepAliveOnce { id } -> KeepAliveOnceResponse);

/// A request that renews a lease once. It uses the keepalive stream of the leases that are kept. Fails with
/// [`ErrorKind::LeaseNotFound`] if there is no such lease.
pub fn keep_alive_once(lease: impl Into<i64>) -> KeepAliveOnce {
    KeepAliveOnce {
        id: lease.into(),
        timeout: None,
        client: (),
    }
}

impl<C> KeepAliveOnce<C> {
    /// Which lease is to be renewed.
    pub fn lease(&self) -> i64 {
        self.id
    }

    async fn perform(self, client: &Client, timeout: Duration) -> Result<KeepAliveOnceResponse> {
        if self.id <= 0 {
            return Err(Error::invalid("a lease's id is a positive number"));
        }
        let deadline = Instant::from_std(later(now(), timeout));
        let mut elsewhere = false;
        let mut last = None;
        while Instant::now() < deadline {
            let (response, received) = oneshot::channel();
            let keeper = client.lease_keeper();
            if !keeper.connected() {
                return Err(Error::shut_down());
            }
            keeper.do_send(RenewLeaseOnce {
                lease: self.id,
                elsewhere,
                response,
            });
            let patience = deadline.min(Instant::now() + ONCE_RESPONSE_TIMEOUT);
            match timeout_at(patience, received).await {
                Ok(Ok(Ok(ttl))) => {
                    let answer = LeaseKeepAliveResponse {
                        id: self.id,
                        ttl,
                        ..LeaseKeepAliveResponse::default()
                    };
                    return answer.try_into();
                }
                Ok(Ok(Err(error))) => {
                    if table::passing(error.kind()) == table::Passing::Never {
                        return Err(error);
                    }
                    last = Some(error);
                    tokio::time::sleep(PAUSE).await;
                }
                // The keeper crashed or ended on the way.
                Ok(Err(_)) => tokio::time::sleep(PAUSE).await,
                Err(_) => {}
            }
            elsewhere = true;
        }
        let text = last.map_or_else(
            || "no member answered".to_owned(),
            |error| format!("the last attempt failed: {error}"),
        );
        Err(Error::new(
            ErrorKind::DeadlineExceeded,
            Outcome::Unknown,
            text,
        ))
    }
}

/// What a [`KeepAliveOnce`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeepAliveOnceResponse {
    /// Its id.
    pub lease: i64,
    /// What it has left now.
    pub ttl: Duration,
}

impl TryFrom<LeaseKeepAliveResponse> for KeepAliveOnceResponse {
    type Error = Error;

    fn try_from(answer: LeaseKeepAliveResponse) -> Result<Self> {
        match u64::try_from(answer.ttl) {
            Ok(seconds @ 1..) => Ok(Self {
                lease: answer.id,
                ttl: Duration::from_secs(seconds),
            }),
            _ => Err(Error::new(
                ErrorKind::LeaseNotFound,
                Outcome::Rejected,
                "the server does not have it",
            )),
        }
    }
}
