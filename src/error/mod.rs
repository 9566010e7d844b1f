//! What a failed call tells: what happened, where, and whether a write may have been applied.

mod kind;
mod table;
#[cfg(test)]
mod tests;

pub use kind::ErrorKind;
pub(crate) use table::{kind_of_message, strip_rpc_prefix};
/// The status codes of gRPC.
pub use tonic::Code;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// A result whose error is this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is known about a write whose call failed.
///
/// The client retries by itself only what is [`NotSent`](Self::NotSent) or [`Rejected`](Self::Rejected) for a passing
/// reason, so a write is never applied twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The request never left this process, or provably was not handed to the server's handler. It was not applied;
    /// making the call again is safe.
    NotSent,
    /// The cluster refused the request. It was not applied, and never will be; making the call again is safe, though
    /// pointless unless the reason has passed.
    Rejected,
    /// The request was on its way and no answer proves what became of it: it may have been applied, or may still be.
    ///
    /// To find out, read the key back with a linearizable read: the write was applied if the key holds the value, when
    /// values are unique, or if its `mod_revision` is above the one known before. As a request under way may still
    /// arrive, "not there yet" is no proof. To write again without risk, use a transaction guarded by the
    /// `mod_revision` known before: whichever of the two arrives first, only one is applied.
    Unknown,
}

type Source = Arc<dyn std::error::Error + Send + Sync + 'static>;

/// Why a call failed.
///
/// [`kind`](Self::kind) says what happened, [`outcome`](Self::outcome) whether a write can have been applied. Printed,
/// it is a sentence for people.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    outcome: Outcome,
    /// What is to be said beyond the kind's own words; of a server's answer, its text.
    detail: Cow<'static, str>,
    code: Option<Code>,
    endpoint: Option<Arc<str>>,
    attempts: u32,
    source: Option<Source>,
}

impl Error {
    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether a write can have been applied.
    pub fn outcome(&self) -> Outcome {
        self.0.outcome
    }

    /// The endpoint the last attempt was made on, if there was one.
    pub fn endpoint(&self) -> Option<&str> {
        self.0.endpoint.as_deref()
    }

    /// The gRPC code of the server's answer; `None` if the error is the client's own.
    pub fn code(&self) -> Option<Code> {
        self.0.code
    }

    /// The server's own words; `None` if the error is the client's own.
    pub fn server_message(&self) -> Option<&str> {
        self.0.code.map(|_| &*self.0.detail)
    }

    /// How many times the request was tried; 0 if it never came to that.
    pub fn attempts(&self) -> u32 {
        self.0.attempts
    }

    /// An error that was not met but made: for actors that stand in for etcd in tests.
    pub fn new(kind: ErrorKind, outcome: Outcome, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            outcome,
            detail: message.into(),
            code: None,
            endpoint: None,
            attempts: 0,
            source: None,
        }))
    }

    /// The client has been shut down; the request was not sent.
    pub(crate) fn shut_down() -> Self {
        Self::new(ErrorKind::Shutdown, Outcome::NotSent, "")
    }

    /// Bad input: nothing was sent.
    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidArgument, Outcome::NotSent, message)
    }

    /// A server's answer, by its message first, then by its code.
    pub(crate) fn from_status(code: Code, message: &str) -> Self {
        let text = strip_rpc_prefix(message);
        let (kind, outcome) = match kind_of_message(text) {
            Some(kind) => (kind, kind.outcome_of_answer()),
            None => table::classify_code(code),
        };
        let mut error = Self::new(kind, outcome, text.to_owned());
        error.0.code = Some(code);
        error
    }

    /// What happened, without where, how often and what to do: for a list of failures.
    pub(crate) fn brief(&self) -> String {
        let inner = &*self.0;
        if inner.detail.is_empty() {
            inner.kind.what().to_owned()
        } else {
            inner.detail.clone().into_owned()
        }
    }

    #[must_use]
    pub(crate) fn with_endpoint(mut self, endpoint: Arc<str>) -> Self {
        self.0.endpoint = Some(endpoint);
        self
    }

    #[must_use]
    pub(crate) fn with_source(
        mut self,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    #[must_use]
    pub(crate) fn with_attempts(mut self, attempts: u32) -> Self {
        self.0.attempts = attempts;
        self
    }

    /// For who knows more than the answer tells: an earlier attempt of the same call whose end is unknown.
    #[must_use]
    pub(crate) fn with_outcome(mut self, outcome: Outcome) -> Self {
        self.0.outcome = outcome;
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        f.write_str(inner.kind.what())?;
        match inner.code {
            Some(code) => write!(f, " (the server said {code:?}: {:?})", inner.detail)?,
            None if inner.detail.is_empty() => {}
            None => write!(f, ": {}", inner.detail)?,
        }
        if let Some(endpoint) = &inner.endpoint {
            write!(f, ", at {endpoint}")?;
        }
        if inner.attempts > 1 {
            write!(f, ", after {} attempts", inner.attempts)?;
        }
        if inner.outcome == Outcome::Unknown {
            f.write_str("; a write may or may not have been applied")?;
        }
        write!(f, "; {}", inner.kind.advice())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        let mut out = f.debug_struct("Error");
        out.field("kind", &inner.kind)
            .field("outcome", &inner.outcome);
        if let Some(code) = inner.code {
            out.field("code", &code);
        }
        if !inner.detail.is_empty() {
            out.field("detail", &inner.detail);
        }
        if let Some(endpoint) = &inner.endpoint {
            out.field("endpoint", endpoint);
        }
        out.field("attempts", &inner.attempts);
        if let Some(source) = &inner.source {
            out.field("source", source);
        }
        out.finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}
