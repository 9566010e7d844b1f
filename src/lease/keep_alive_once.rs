//! Renews a lease once.

use std::time::Duration;

use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

use super::{
    engine::{
        keeper::{OnceRenewal, RenewLeaseOnce},
        lease_service::LeaseClient,
    },
    grant::zero_id,
};
use crate::{
    call::deadline_in,
    error::{Error, ErrorKind, Outcome, Result},
    proto::LeaseKeepAliveResponse,
    request::macros::request,
    retry::{RetryDecision, decision::remedy},
};

/// Time to wait for the response of one member.
pub(crate) const ONCE_RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Delay between two attempts.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Renews a lease once.
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct KeepAliveOnce<C = ()> {
    id: i64,
    timeout: Option<Duration>,
    client: C,
}

request!(KeepAliveOnce { id } -> KeepAliveOnceResponse, LeaseClient);

/// Creates a request that renews a lease once. It shares the keepalive stream of kept leases. Fails with
/// [`ErrorKind::LeaseNotFound`] if the lease does not exist.
pub fn keep_alive_once(lease: impl Into<i64>) -> KeepAliveOnce {
    KeepAliveOnce {
        id: lease.into(),
        timeout: None,
        client: (),
    }
}

impl<C> KeepAliveOnce<C> {
    /// Returns the id of the lease.
    pub fn lease(&self) -> i64 {
        self.id
    }

    async fn perform(
        self,
        client: &impl LeaseClient,
        timeout: Duration,
    ) -> Result<KeepAliveOnceResponse> {
        let renewal = renew(client, self.id, timeout).await?;
        let response = LeaseKeepAliveResponse {
            id: self.id,
            ttl: renewal.ttl,
            ..LeaseKeepAliveResponse::default()
        };
        response.try_into()
    }
}

/// Renews a lease once. The TTL in the result is zero or less if the lease does not exist.
pub(super) async fn renew(
    client: &impl LeaseClient,
    id: i64,
    timeout: Duration,
) -> Result<OnceRenewal> {
    if id == 0 {
        return Err(zero_id());
    }
    let deadline = deadline_in(timeout);
    let mut elsewhere = false;
    let mut last_error = None;
    while Instant::now() < deadline {
        let token = client.caller().tokens.current(deadline).await?;
        let (response, received) = oneshot::channel();
        let keeper = &client.leases().keeper;
        if !keeper.connected() {
            return Err(Error::shut_down());
        }
        keeper.do_send(RenewLeaseOnce {
            lease: id,
            elsewhere,
            response,
        });
        let attempt_deadline = deadline.min(Instant::now() + ONCE_RESPONSE_TIMEOUT);
        match timeout_at(attempt_deadline, received).await {
            Ok(Ok(Ok(renewal))) => return Ok(renewal),
            Ok(Ok(Err(error))) => {
                let tokens = &client.caller().tokens;
                match remedy(error.kind()) {
                    RetryDecision::Fail => return Err(error),
                    RetryDecision::RenewToken => {
                        if !tokens.renewed(&token, error.kind(), deadline).await? {
                            return Err(error);
                        }
                    }
                    RetryDecision::NextMember
                    | RetryDecision::Backoff
                    | RetryDecision::After(_) => {}
                }
                last_error = Some(error);
                tokio::time::sleep(RETRY_DELAY).await;
            }
            // The keeper panicked or stopped.
            Ok(Err(_)) => tokio::time::sleep(RETRY_DELAY).await,
            Err(_) => {}
        }
        elsewhere = true;
    }
    if let Some(error) = last_error.take_if(|error| error.is_auth()) {
        return Err(error);
    }
    let reason = last_error.map_or_else(
        || "no member responded to the keepalive in time".to_owned(),
        |error| format!("the last keepalive failed: {}", error.brief()),
    );
    Err(Error::new(
        ErrorKind::DeadlineExceeded,
        Outcome::Unknown,
        reason,
    ))
}

/// Response to a [`KeepAliveOnce`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeepAliveOnceResponse {
    /// Id of the lease.
    pub lease: i64,
    /// TTL, counted from the renewal.
    pub ttl: Duration,
}

impl TryFrom<LeaseKeepAliveResponse> for KeepAliveOnceResponse {
    type Error = Error;

    fn try_from(response: LeaseKeepAliveResponse) -> Result<Self> {
        match u64::try_from(response.ttl) {
            Ok(seconds @ 1..) => Ok(Self {
                lease: response.id,
                ttl: Duration::from_secs(seconds),
            }),
            _ => Err(Error::new(
                ErrorKind::LeaseNotFound,
                Outcome::Rejected,
                "the lease does not exist",
            )),
        }
    }
}
