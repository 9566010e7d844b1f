//! The authentication token in use.
//!
//! Every request reads the token from the [`TokenCell`] without a lock. Tokens are numbered by generation. The old
//! token stays in the cell until the next one arrives: a request sent meanwhile is rejected as "invalid token" at
//! worst, never as "no user".

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use actix::{Message, Recipient, WeakRecipient};
use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use http::HeaderValue;
use tokio::{sync::oneshot, time::Instant};
use zeroize::Zeroizing;

use crate::{
    error::{Error, ErrorKind, Outcome},
    transport::channel::Channel,
};

/// Requests a token newer than this generation.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct RenewToken {
    pub(crate) generation: u64,
    pub(crate) reason: RenewalReason,
    /// The channel for the login; `None` for any ready member.
    pub(crate) through: Option<LoginChannel>,
    /// Receives the result when the new token is in the cell.
    pub(crate) renewed: oneshot::Sender<Result<(), Error>>,
}

impl RenewToken {
    /// Requests the next token without waiting for it.
    pub(crate) fn request(actor: &Recipient<Self>, generation: u64, reason: RenewalReason) {
        let (renewed, _) = oneshot::channel();
        actor.do_send(Self {
            generation,
            reason,
            through: None,
            renewed,
        });
    }
}

/// A channel on which to log in.
pub(crate) struct LoginChannel(pub(crate) Channel);

impl fmt::Debug for LoginChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoginChannel({})", self.0.endpoint())
    }
}

/// Why a token must be renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RenewalReason {
    /// A member rejected it; the same token again would be rejected, too.
    Rejected,
    /// It lapsed or was retired, or there is none yet.
    Missing,
}

/// A token and its generation. Generation 0 means that no token was requested yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Token {
    /// `None` if the cluster requires no token.
    pub(crate) value: Option<HeaderValue>,
    pub(crate) generation: u64,
    /// Time at which the token was received.
    pub(crate) issued: Option<Instant>,
}

/// The token in use.
#[derive(Default)]
pub(crate) struct TokenCell {
    token: ArcSwap<Token>,
    /// Whether a request was sent with the token.
    used: AtomicBool,
    /// Tokens up to this generation are retired: requests wait for the next one.
    retired: AtomicU64,
    renewer: OnceLock<WeakRecipient<RenewToken>>,
    /// Name of the user of the last login, for error messages.
    user: ArcSwapOption<Arc<str>>,
}

impl TokenCell {
    /// Returns the token for a request.
    pub(crate) fn load(&self) -> arc_swap::Guard<Arc<Token>> {
        // Read before written: many requests share this cache line.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        self.token.load()
    }

    /// Returns the token for a request that cannot wait for a new one. The value of a retired token is omitted, because
    /// a member might never respond to it.
    pub(crate) fn load_without_waiting(&self) -> Token {
        let token = Token::clone(&self.load());
        let is_retired = self.is_retired(token.generation);
        Token {
            value: token.value.filter(|_| !is_retired),
            ..token
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.token.load().generation
    }

    pub(crate) fn has_value(&self) -> bool {
        self.token.load().value.is_some()
    }

    /// Returns whether this is the value of the current token.
    pub(crate) fn holds(&self, value: &HeaderValue) -> bool {
        self.token.load().value.as_ref() == Some(value)
    }

    /// Stores the next token. Must not be called concurrently.
    pub(crate) fn replace(&self, value: Option<HeaderValue>) {
        let generation = self.generation() + 1;
        let issued = Some(Instant::now());
        self.token.store(Arc::new(Token {
            value,
            generation,
            issued,
        }));
        self.used.store(false, Ordering::Relaxed);
    }

    /// Stores the name of the user that logs in; `None` for a token, whose user is not known.
    pub(crate) fn set_user(&self, user: Option<&str>) {
        self.user.store(user.map(|user| Arc::new(user.into())));
    }

    /// Returns the name of the user of the last login, if there was one.
    pub(crate) fn user(&self) -> Option<Arc<str>> {
        self.user.load().as_deref().cloned()
    }

    /// Sets the actor that renews tokens. Later calls are ignored.
    pub(crate) fn set_renewer(&self, actor: &Recipient<RenewToken>) {
        let _ = self.renewer.set(actor.downgrade());
    }

    /// Retires a token that no request has used, so that an idle client does not log in. Returns `false` if the token
    /// was used.
    pub(crate) fn lapse(&self, generation: u64) -> bool {
        if self.used.load(Ordering::Relaxed) {
            return false;
        }
        self.retire(generation);
        true
    }

    /// Requests a token newer than this generation, with a login on this channel. Returns `None` if tokens are not
    /// renewed.
    pub(crate) fn renew_through(
        &self,
        generation: u64,
        channel: &Channel,
    ) -> Option<oneshot::Receiver<Result<(), Error>>> {
        let actor = self.renewer.get().and_then(WeakRecipient::upgrade)?;
        let (renewed, result) = oneshot::channel();
        actor.do_send(RenewToken {
            generation,
            reason: RenewalReason::Missing,
            through: Some(LoginChannel(channel.clone())),
            renewed,
        });
        Some(result)
    }

    /// Retires the current token because the client follows another cluster, and requests the next one. Does nothing if
    /// there is no renewer: a fixed token may be valid in both clusters.
    pub(super) fn retire_after_cluster_change(&self) {
        let Some(actor) = self.renewer.get().and_then(WeakRecipient::upgrade) else {
            return;
        };
        let generation = self.generation();
        if generation != 0 {
            self.retire(generation);
            RenewToken::request(&actor, generation, RenewalReason::Missing);
        }
    }

    /// Makes requests wait for the next token. The value stays, because a request without a token has no user.
    pub(crate) fn retire(&self, generation: u64) {
        self.retired.fetch_max(generation, Ordering::Release);
    }

    pub(crate) fn is_retired(&self, generation: u64) -> bool {
        generation <= self.retired.load(Ordering::Acquire)
    }
}

impl fmt::Debug for TokenCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenCell(generation {})", self.generation())
    }
}

/// Returns a token as a header value that is never printed and is wiped from memory when dropped.
pub(crate) fn header_value(token: &str) -> Result<HeaderValue, Error> {
    let owned = Bytes::from_owner(Zeroizing::new(token.as_bytes().to_vec()));
    let mut value = HeaderValue::from_maybe_shared(owned).map_err(|_| {
        Error::new(
            ErrorKind::CredentialsUnavailable,
            Outcome::NotSent,
            "the token contains characters that are not allowed in a header",
        )
    })?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_token_does_not_lapse() {
        let cell = TokenCell::default();
        cell.replace(Some(header_value("first").unwrap()));
        cell.load();
        assert!(!cell.lapse(1));
        cell.replace(Some(header_value("second").unwrap()));
        assert!(
            cell.holds(&header_value("second").unwrap()),
            "a comparison does not count as a use"
        );
        assert!(cell.lapse(2));
        assert!(cell.is_retired(2));
        cell.replace(None);
        assert!(!cell.is_retired(3));
    }
}
