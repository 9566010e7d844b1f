//! Errors: what failed, where, why, what to do, and whether a write may have been applied.

mod code;
mod etcd_messages;
mod kind;
mod outcome;
#[cfg(test)]
mod tests;

pub use code::Code;
pub(crate) use etcd_messages::{kind_of_message, strip_rpc_prefix};
pub use kind::ErrorKind;
pub use outcome::Outcome;

use std::{borrow::Cow, fmt, sync::Arc};

use crate::proto::rpc::{Rpc, SplitRejection};

/// A result whose error is this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Arc<dyn std::error::Error + Send + Sync + 'static>;

/// Why a call failed.
///
/// [`kind`](Self::kind) returns the reason, and [`outcome`](Self::outcome) whether a write can have been applied. The
/// printed text names the operation, the endpoint, the reason and what to do.
#[derive(Clone)]
pub struct Error(Box<Details>);

#[derive(Clone)]
struct Details {
    kind: ErrorKind,
    outcome: Outcome,
    /// A clause that replaces the kind's own text; for an error of the server, the server's message.
    reason: Cow<'static, str>,
    code: Option<Code>,
    rpc: Option<Rpc>,
    endpoint: Option<Arc<str>>,
    user: Option<Arc<str>>,
    attempts: u32,
    source: Option<Source>,
}

impl Error {
    /// Returns what went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns whether a write can have been applied.
    pub fn outcome(&self) -> Outcome {
        self.0.outcome
    }

    /// Returns the endpoint of the last attempt, if there was one.
    pub fn endpoint(&self) -> Option<&str> {
        self.0.endpoint.as_deref()
    }

    /// Returns the gRPC code of the server's response; `None` if the error is the client's own.
    pub fn code(&self) -> Option<Code> {
        self.0.code
    }

    /// Returns the server's error message; `None` if the error is the client's own.
    pub fn server_message(&self) -> Option<&str> {
        self.0.code.map(|_| &*self.0.reason)
    }

    /// Returns the number of attempts to send the request; 0 if there was none.
    pub fn attempts(&self) -> u32 {
        self.0.attempts
    }

    /// Returns whether the reason may pass by itself: a later call can succeed. See [`ErrorKind::is_transient`].
    pub fn is_transient(&self) -> bool {
        self.0.kind.is_transient()
    }

    /// Returns whether making the same call again is safe and can succeed: the reason is
    /// [transient](Self::is_transient), and the request was not applied or changes nothing.
    pub fn is_retryable(&self) -> bool {
        let is_read = self.0.rpc.is_some_and(|rpc| !rpc.is_write());
        self.is_transient() && (is_read || self.0.outcome != Outcome::Unknown)
    }

    /// Returns whether credentials, tokens or permissions are the reason. See [`ErrorKind::is_auth`].
    pub fn is_auth(&self) -> bool {
        self.0.kind.is_auth()
    }

    /// Returns whether the state of the cluster contradicts the request. See [`ErrorKind::is_conflict`].
    pub fn is_conflict(&self) -> bool {
        self.0.kind.is_conflict()
    }

    /// Creates an error, for fakes in tests.
    pub fn new(kind: ErrorKind, outcome: Outcome, reason: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Details {
            kind,
            outcome,
            reason: reason.into(),
            code: None,
            rpc: None,
            endpoint: None,
            user: None,
            attempts: 0,
            source: None,
        }))
    }

    /// Creates the error of a client that has been shut down. The request was not sent.
    pub(crate) fn shut_down() -> Self {
        Self::new(ErrorKind::Shutdown, Outcome::NotSent, "")
    }

    /// Creates the error of invalid input. Nothing was sent.
    pub(crate) fn invalid(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidArgument, Outcome::NotSent, reason)
    }

    /// Creates the error of a server's response, classified by its message, or by its code if the message is unknown.
    pub(crate) fn from_status(code: Code, message: &str) -> Self {
        let text = strip_rpc_prefix(message);
        let (kind, outcome) = match kind_of_message(text) {
            Some(kind) => (kind, kind.outcome_of_response()),
            None => etcd_messages::classify_code(code),
        };
        let mut error = Self::new(kind, outcome, text.to_owned());
        error.0.code = Some(code);
        error
    }

    /// Corrects "request too large" if the message about it has another size than the request: the response was too
    /// large.
    #[must_use]
    pub(crate) fn with_request_size(mut self, size: usize) -> Self {
        let details = &mut *self.0;
        if details.kind == ErrorKind::RequestTooLarge
            && etcd_messages::concerns_other_size(&details.reason, size)
        {
            details.kind = ErrorKind::ResponseTooLarge;
            details.outcome = ErrorKind::ResponseTooLarge.outcome_of_response();
        }
        self
    }

    /// Returns the reason alone, without operation, endpoint and advice: for a list of failures.
    pub(crate) fn brief(&self) -> String {
        let details = &*self.0;
        if details.reason.is_empty() {
            details.kind.description().to_owned()
        } else {
            details.reason.clone().into_owned()
        }
    }

    /// Adds the operation that failed.
    #[must_use]
    pub(crate) fn with_rpc(mut self, rpc: Rpc) -> Self {
        self.0.rpc = Some(rpc);
        self
    }

    #[must_use]
    pub(crate) fn with_endpoint(mut self, endpoint: Arc<str>) -> Self {
        self.0.endpoint = Some(endpoint);
        self
    }

    /// Adds the user of a request that lacks a permission.
    #[must_use]
    pub(crate) fn with_user(mut self, user: Option<Arc<str>>) -> Self {
        self.0.user = user;
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

    /// Replaces the outcome, for a call with an earlier attempt whose outcome is unknown.
    #[must_use]
    pub(crate) fn with_outcome(mut self, outcome: Outcome) -> Self {
        self.0.outcome = outcome;
        self
    }
}

/// Prints operation, endpoint, number of attempts, reason, outcome and advice:
/// `put failed at http://10.0.0.1:2379: the connection was lost; it may have been applied (outcome unknown)`.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let details = &*self.0;
        if let Some(rpc) = details.rpc {
            write!(f, "{} failed", rpc.name)?;
            if let Some(endpoint) = &details.endpoint {
                write!(f, " at {endpoint}")?;
            }
            if details.attempts > 1 {
                write!(f, " after {} attempts", details.attempts)?;
            }
            f.write_str(": ")?;
        }
        match details.code {
            Some(code) => {
                f.write_str(details.kind.description())?;
                if let Some(user) = &details.user {
                    write!(f, " for user `{user}`")?;
                }
                write!(f, " ({code:?}: {:?})", details.reason)?;
            }
            None if details.reason.is_empty() => f.write_str(details.kind.description())?,
            None => f.write_str(&details.reason)?,
        }
        if let (None, Some(endpoint)) = (details.rpc, &details.endpoint) {
            write!(f, " at {endpoint}")?;
        }
        if details.outcome == Outcome::Unknown
            && let Some(rpc) = details.rpc.filter(|rpc| rpc.is_write())
        {
            // The kind alone suggests that no member applied the write.
            f.write_str(if rpc.split_rejection != SplitRejection::None && self.is_auth() {
                "; other members may have applied it if they run etcd before 3.7 (outcome unknown)"
            } else {
                "; it may have been applied (outcome unknown)"
            })?;
        }
        match details.kind.advice() {
            "" => Ok(()),
            advice => write!(f, "; {advice}"),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let details = &*self.0;
        let mut out = f.debug_struct("Error");
        out.field("kind", &details.kind)
            .field("outcome", &details.outcome);
        if let Some(rpc) = details.rpc {
            out.field("rpc", &rpc.path);
        }
        if let Some(code) = details.code {
            out.field("code", &code);
        }
        if !details.reason.is_empty() {
            out.field("reason", &details.reason);
        }
        if let Some(endpoint) = &details.endpoint {
            out.field("endpoint", endpoint);
        }
        out.field("attempts", &details.attempts);
        if let Some(source) = &details.source {
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
