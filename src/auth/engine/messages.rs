//! Messages of the [`AuthActor`](super::AuthActor).

use actix::Message;
use http::HeaderValue;
use tokio::time::Instant;

use crate::error::Error;

/// A login succeeded or failed.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct LoginFinished {
    /// Number of the login. Results of earlier logins are ignored.
    pub(super) login: u64,
    pub(super) result: Result<NewToken, Error>,
}

/// The result of a login.
#[derive(Debug, Clone)]
pub(super) struct NewToken {
    /// `None` if authentication is not enabled on the cluster.
    pub(super) value: Option<HeaderValue>,
    /// Time at which the token expires, if known.
    pub(super) expires_at: Option<Instant>,
}

/// The token of this generation expires soon.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct RenewalDue {
    pub(super) generation: u64,
}

/// Stops the actor.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct AuthShutdown;

#[cfg(test)]
mod tests {
    use super::{LoginFinished, NewToken};
    use crate::connection::token::header_value;

    #[test]
    fn login_result_does_not_print_the_token() {
        let value = Some(header_value("correct.horse").unwrap());
        let finished = LoginFinished {
            login: 1,
            result: Ok(NewToken {
                value,
                expires_at: None,
            }),
        };
        let printed = format!("{finished:?}");
        assert!(!printed.contains("horse"), "{printed}");
    }
}
