//! Whether a failed write can have been applied.

/// What is known about a write whose call failed.
///
/// The client itself retries a write only if the outcome is [`NotSent`](Self::NotSent), or
/// [`Rejected`](Self::Rejected) for a transient reason. Therefore a write is never applied twice. Lease grants,
/// revocations and other requests that have the same effect if they are applied twice are retried with any outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The request did not leave this process, or the server provably did not process it. It was not applied; calling
    /// again is safe.
    NotSent,
    /// The cluster rejected the request. It was not applied and never will be; calling again is safe, but succeeds only
    /// after the reason has passed.
    Rejected,
    /// The request was sent and no response proves its result. It may have been applied, or may still be.
    ///
    /// To find out, read the key with a linearizable read: the write was applied if the key has the (unique) value, or
    /// a greater `mod_revision` than before. A request in flight can still arrive, so a missing change proves nothing.
    /// To write again safely, use a transaction with a condition on the `mod_revision` known before: only one of the
    /// two writes can be applied.
    Unknown,
}
