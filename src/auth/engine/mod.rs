//! Logging in, and renewing the token that every request carries.
//!
//! # Contract
//! The [`AuthActor`] stores tokens in the client's [`TokenCell`](crate::connection::token::TokenCell), from which
//! requests read them without a lock. Each token has a generation.
//!
//! Receives
//! - [`RenewToken`](crate::connection::token::RenewToken): logs in, unless the cell holds a newer token or a login is
//!   in flight, and responds once the new token is in the cell;
//! - [`RenewalDue`](messages::RenewalDue): renews the token before it expires, if requests have used it; otherwise
//!   retires it, so that an idle client does not log in;
//! - [`LoginFinished`](messages::LoginFinished): stores the token and responds to every request that waits for it;
//! - [`AuthShutdown`](messages::AuthShutdown): stops.
//!
//! Its only output besides these responses is the token in the cell.
//!
//! # States
//! *Idle* or *in flight*: at most one login is in flight, regardless of how many requests wait for it. While a login is
//! in flight, the old token stays in the cell: a request sent meanwhile is rejected as "invalid token" at worst, never
//! as "no user".
//!
//! If authentication is not enabled on the cluster, requests carry no token. The client logs in as soon as one of them
//! is rejected for that reason.
//!
//! Decisions are pure code: [`login_queue`] and [`token_lifetime`].

mod actor;
mod login;
mod login_queue;
mod messages;
mod token_lifetime;

pub(crate) use self::{
    actor::{AuthActor, AuthOptions},
    messages::AuthShutdown,
};
