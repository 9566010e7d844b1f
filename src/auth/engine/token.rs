//! The token in use: where calls read it, and how they ask for another one.

use std::{
    borrow::Cow,
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use actix::{Addr, WeakAddr};
use arc_swap::ArcSwap;
use bytes::Bytes;
use http::HeaderValue;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until, timeout_at},
};
use zeroize::Zeroizing;

use super::{Close, Need, RenewToken, actor::AuthActor};
use crate::{
    error::{Error, ErrorKind, Outcome},
    retry::table::{Passing, passing},
    runtime::supervisor::Crash,
};

/// Between two logins that failed, growing from the first to the second.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A token and which one it is. Generation 0 says that nobody has asked for one yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Token {
    /// `None` where the cluster wants none.
    pub(crate) value: Option<HeaderValue>,
    pub(crate) generation: u64,
}

/// The token in use, read by every call without a lock.
#[derive(Default)]
pub(crate) struct TokenCell {
    token: ArcSwap<Token>,
    /// Whether any request took the token along.
    used: AtomicBool,
    /// Up to this generation, tokens are of no use: calls wait for the next one.
    useless: AtomicU64,
    renewer: OnceLock<WeakAddr<AuthActor>>,
}

impl TokenCell {
    /// The token, for a request.
    pub(crate) fn load(&self) -> arc_swap::Guard<Arc<Token>> {
        // Looked at before it is written: many calls share this line of memory.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        self.token.load()
    }

    /// The token for what cannot wait for another one: without a value where it is of no use, as some member would not
    /// answer to it.
    pub(crate) fn at_hand(&self) -> Token {
        let token = Token::clone(&self.load());
        Token {
            value: token.value.filter(|_| !self.is_useless(token.generation)),
            generation: token.generation,
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.token.load().generation
    }

    pub(super) fn holds(&self, value: &HeaderValue) -> bool {
        self.token.load().value.as_ref() == Some(value)
    }

    /// Puts the next token in the place of the last. Only one may do so at a time.
    pub(crate) fn replace(&self, value: Option<HeaderValue>) {
        let generation = self.generation() + 1;
        self.token.store(Arc::new(Token { value, generation }));
        self.used.store(false, Ordering::Relaxed);
    }

    /// Lets a token end that no request took along: whoever needs the next one waits for it. `false` if one did.
    pub(super) fn lapse(&self, generation: u64) -> bool {
        if self.used.load(Ordering::Relaxed) {
            return false;
        }
        self.let_go(generation);
        true
    }

    /// Takes a token out of use that a member leaves without an answer, where another one can be had. etcd's simple
    /// tokens name an index, and a member of another cluster waits until it has got there itself: it would never
    /// refuse the token, nor answer.
    pub(crate) fn give_up(&self, generation: u64) {
        let Some(actor) = self.renewer.get().and_then(WeakAddr::upgrade) else {
            return;
        };
        if generation == 0 || generation != self.generation() {
            return;
        }
        tracing::warn!(
            generation,
            "a member does not answer to the token; another one is asked for"
        );
        self.let_go(generation);
        ask_for_next(&actor, generation, Need::Useless);
    }

    /// Calls wait for the next token from now on. The value stays: a call without any would be one without a user.
    fn let_go(&self, generation: u64) {
        self.useless.fetch_max(generation, Ordering::Release);
    }

    pub(super) fn is_useless(&self, generation: u64) -> bool {
        generation <= self.useless.load(Ordering::Acquire)
    }
}

impl fmt::Debug for TokenCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenCell(generation {})", self.generation())
    }
}

/// A token as it may stand in metadata, never printed, and wiped from memory with its last user.
pub(crate) fn header_value(token: &str) -> Result<HeaderValue, Error> {
    let owned = Bytes::from_owner(Zeroizing::new(token.as_bytes().to_vec()));
    let mut value = HeaderValue::from_maybe_shared(owned).map_err(|_| {
        Error::new(
            ErrorKind::CredentialsUnavailable,
            Outcome::NotSent,
            "the token has characters that cannot be sent",
        )
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// Where requests get their tokens from.
#[derive(Debug, Clone)]
pub(crate) struct Tokens {
    cell: Arc<TokenCell>,
    actor: Option<Addr<AuthActor>>,
}

impl Tokens {
    /// The cell's token, whatever it is; nobody renews it.
    pub(crate) fn fixed(cell: Arc<TokenCell>) -> Self {
        Self { cell, actor: None }
    }

    pub(crate) fn renewed_by(cell: Arc<TokenCell>, actor: Addr<AuthActor>) -> Self {
        // A cell has one renewer for its whole life.
        let _ = cell.renewer.set(actor.downgrade());
        Self {
            cell,
            actor: Some(actor),
        }
    }

    /// The token to send; waits for the first one where the client has to log in.
    pub(crate) async fn current(&self, deadline: Instant) -> Result<Token, Error> {
        loop {
            let token = Token::clone(&self.cell.load());
            match &self.actor {
                Some(actor) if self.cell.is_useless(token.generation) => {
                    renew(actor, token.generation, Need::Useless, deadline).await?;
                }
                _ => return Ok(token),
            }
        }
    }

    /// Gets a new token in place of the one that was refused, or waits for the one that is on its way. `false` where
    /// another one would be the same.
    pub(crate) async fn renewed(
        &self,
        refused: &Token,
        why: ErrorKind,
        deadline: Instant,
    ) -> Result<bool, Error> {
        match &self.actor {
            Some(actor) => renew(actor, refused.generation, Need::Refused, deadline)
                .await
                .map(|()| true),
            None => Ok(changed_underway(refused, why)),
        }
    }

    /// A member refused the token of something that does not wait for the next one: that is got, and what comes next
    /// waits for it. `false` where another one would be the same, or the token is not what was refused.
    pub(crate) fn turned_down(&self, refused: &Token, why: ErrorKind) -> bool {
        if passing(why) != Passing::WithToken {
            return false;
        }
        let Some(actor) = &self.actor else {
            return changed_underway(refused, why);
        };
        self.cell.let_go(refused.generation);
        ask_for_next(actor, refused.generation, Need::Refused);
        true
    }

    /// Whether calls wait for a token now.
    pub(crate) fn are_awaited(&self) -> bool {
        self.actor.is_some() && self.cell.is_useless(self.cell.generation())
    }

    /// Makes the actor panic, for tests of what that costs.
    pub(crate) fn crash(&self) {
        if let Some(actor) = &self.actor {
            actor.do_send(Crash);
        }
    }

    /// Ends the actor: there will be no more tokens.
    pub(crate) fn close(&self) {
        if let Some(actor) = &self.actor {
            actor.do_send(Close);
        }
    }
}

/// Who logs in by certificate has no token: the rights changed while the request was under way.
fn changed_underway(refused: &Token, why: ErrorKind) -> bool {
    refused.value.is_none() && why == ErrorKind::AuthOldRevision
}

/// Gets a newer token than this one. A login that fails for a passing reason is made again, until the deadline: the
/// caller has its own, which is not that of whoever started the login.
async fn renew(
    actor: &Addr<AuthActor>,
    generation: u64,
    need: Need,
    deadline: Instant,
) -> Result<(), Error> {
    let mut pause = PAUSE;
    let mut last = None;
    loop {
        let (renewed, told) = oneshot::channel();
        actor.do_send(RenewToken {
            generation,
            need,
            renewed,
        });
        match timeout_at(deadline, told).await {
            Ok(Ok(Ok(()))) => return Ok(()),
            Ok(Ok(Err(error))) if passes(&error) => {
                sleep_until(deadline.min(Instant::now() + pause)).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                last = Some(error);
            }
            // What became of the login says nothing of the call that waits for it.
            Ok(Ok(Err(error))) => return Err(error.with_outcome(Outcome::NotSent)),
            Ok(Err(_)) if !actor.connected() => return Err(Error::shut_down()),
            // The actor crashed on the way: its next life is asked again.
            Ok(Err(_)) => tokio::task::yield_now().await,
            Err(_) => return Err(too_late(last)),
        }
    }
}

fn passes(error: &Error) -> bool {
    match passing(error.kind()) {
        Passing::Elsewhere | Passing::Later => true,
        Passing::WithToken | Passing::Never => error.kind() == ErrorKind::DeadlineExceeded,
    }
}

fn too_late(last: Option<Error>) -> Error {
    let late = |text| Error::new(ErrorKind::DeadlineExceeded, Outcome::NotSent, text);
    let text = "the client could not log in in time";
    match last {
        None => late(Cow::Borrowed(text)),
        Some(last) => late(format!("{text}: {}", last.brief()).into()).with_source(last),
    }
}

/// Asks for the next token without waiting for it; who needs it does.
fn ask_for_next(actor: &Addr<AuthActor>, generation: u64, need: Need) {
    let (renewed, _) = oneshot::channel();
    actor.do_send(RenewToken {
        generation,
        need,
        renewed,
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        auth::engine::{LoggedIn, NewToken},
        transport::channel::Metadata,
    };

    #[test]
    fn nothing_that_carries_a_token_prints_it() {
        let value = Some(header_value("correct.horse").unwrap());
        let token = Token {
            value: value.clone(),
            generation: 1,
        };
        let metadata = Metadata {
            token: value.clone(),
            ..Metadata::default()
        };
        let landed = LoggedIn {
            flight: 1,
            result: Ok(NewToken { value, end: None }),
        };
        let shown = format!("{token:?} {metadata:?} {landed:?}");
        assert!(!shown.contains("horse"), "{shown}");
        let refused = header_value("correct\nhorse").unwrap_err();
        let shown = format!("{refused} {refused:?}");
        assert!(!shown.contains("horse"), "{shown}");
    }

    #[test]
    fn a_token_that_was_used_does_not_lapse() {
        let cell = TokenCell::default();
        cell.replace(Some(header_value("first").unwrap()));
        cell.load();
        assert!(!cell.lapse(1));
        cell.replace(Some(header_value("second").unwrap()));
        assert!(
            cell.holds(&header_value("second").unwrap()),
            "this is no use of it"
        );
        assert!(cell.lapse(2));
        assert!(cell.is_useless(2));
        cell.replace(None);
        assert!(!cell.is_useless(3));
    }
}
