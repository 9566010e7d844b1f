//! Authentication: the token that goes along with every request.
//!
//! Callers read the token from the [`TokenCell`] without a lock. Each token has a generation. A call whose token was
//! refused says which one that was ([`RenewToken`]); the [`AuthActor`](actor::AuthActor) gets a new one, once, however
//! many calls say the same, and the calls go on when it is there. The old token stays in the cell until then: a call
//! that goes out meanwhile is refused as "invalid token" at worst, never as "no user".
//!
//! Where authentication is not enabled, calls go without a token; the day one of them is refused for that, the client
//! logs in.
//!
//! Where the end of a token is known ([`lifetime`]), the next one is got before it; calls use the old one meanwhile. A
//! token that nobody has used is let go instead, so idle clients do not keep the cluster busy with logins.
//!
//! What the actor decides is pure code: [`flight`] and [`lifetime`].

use actix::Message;
use http::HeaderValue;
use tokio::time::Instant;

use crate::error::Error;

pub(crate) mod actor;
mod flight;
mod lifetime;

/// An attempt to log in ended.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct LoggedIn {
    pub(crate) flight: u64,
    pub(crate) result: Result<NewToken, Error>,
}

/// What a login gave.
#[derive(Debug, Clone)]
pub(crate) struct NewToken {
    /// `None` where authentication is not enabled.
    pub(crate) value: Option<HeaderValue>,
    /// When it ends, where that is known.
    pub(crate) end: Option<Instant>,
}

/// The token of this generation ends soon: it is time for the next one.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct RenewalDue {
    pub(crate) generation: u64,
}

/// The client ends.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Close;

#[cfg(test)]
mod tests {
    use super::{LoggedIn, NewToken};
    use crate::connection::token::header_value;

    #[test]
    fn login_result_does_not_print_the_token() {
        let value = Some(header_value("correct.horse").unwrap());
        let logged_in = LoggedIn {
            flight: 1,
            result: Ok(NewToken { value, end: None }),
        };
        let printed = format!("{logged_in:?}");
        assert!(!printed.contains("horse"), "{printed}");
    }
}
