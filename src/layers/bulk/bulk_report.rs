//! The result of a bulk.

use std::{fmt, ops::Range, time::Duration};

use bytes::Bytes;

use crate::error::{Error, Result};

/// The result of consecutive writes of the input, which were sent in one transaction.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BulkPartResult {
    /// Positions of the writes in the input; the first write has position 0.
    pub positions: Range<u64>,
    /// Key of the first write.
    pub first_key: Bytes,
    /// Key of the last write.
    pub last_key: Bytes,
    /// The revision at which the writes were applied ([`OnUnknown::ReadBack`](super::OnUnknown::ReadBack) may return a
    /// later one), or why they failed. Either all of them were applied or none. If the
    /// [outcome](Error::outcome) of the error is `Unknown`, they may have been applied.
    pub result: Result<i64>,
}

/// The result of a bulk; see [`Bulk::finish`](super::Bulk::finish).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BulkReport {
    /// Number of writes that are known to be applied.
    pub written: u64,
    /// Number of writes that failed; those with an unknown outcome may be applied.
    pub failed: u64,
    /// Number of writes that were accepted, but not sent, because the bulk stopped.
    pub unsent: u64,
    /// Size of the written keys and values.
    pub written_bytes: u64,
    /// A revision at which all written keys are visible; 0 if none was written.
    pub revision: i64,
    /// Number of writes at the start of the input that are all known to be written. An import of the same input can be
    /// resumed at this position.
    pub resume_point: u64,
    /// Key of the last write before the resume point. A sorted input without repeated keys can be resumed after this
    /// key.
    pub resume_key: Option<Bytes>,
    /// The failed writes, in the order in which they failed.
    pub failures: Vec<BulkPartResult>,
    /// Time since the start of the bulk.
    pub elapsed: Duration,
}

/// Not all writes of a bulk are known to be applied. Converts into [`Error`], its [`reason`](Self::reason).
#[derive(Debug, Clone)]
pub struct BulkFailed(Box<(BulkReport, Error)>);

impl BulkFailed {
    pub(super) fn new(report: BulkReport, reason: Error) -> Self {
        Self(Box::new((report, reason)))
    }

    /// Returns what was written, what failed, and where to resume.
    pub fn report(&self) -> &BulkReport {
        &self.0.0
    }

    /// Returns the reason that stopped the bulk, or else that of the first failure.
    pub fn reason(&self) -> &Error {
        &self.0.1
    }
}

impl fmt::Display for BulkFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (report, reason) = &*self.0;
        write!(
            f,
            "bulk failed: {} writes were applied, {} failed, {} were not sent; the first {} of the input are written: \
             {reason}",
            report.written, report.failed, report.unsent, report.resume_point
        )
    }
}

impl std::error::Error for BulkFailed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self.reason())
    }
}

impl From<BulkFailed> for Error {
    fn from(failed: BulkFailed) -> Self {
        failed.0.1
    }
}
