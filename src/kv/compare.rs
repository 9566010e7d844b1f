//! The conditions of a transaction.

use super::IntoBytes;
use crate::{
    error::Result,
    proto::{
        self,
        compare::{CompareResult, CompareTarget, TargetUnion},
    },
    request::key_range::{Span, spans},
};

/// A condition on a key, or on every key of a range.
#[derive(Debug, Clone)]
#[must_use = "a condition is for a transaction's `when`"]
pub struct Compare {
    span: Span,
    result: CompareResult,
    target: CompareTarget,
    union: TargetUnion,
}

/// A number of a key that is going to be compared.
#[derive(Debug, Clone)]
#[must_use = "say what it is compared with: `eq`, `ne`, `gt` or `lt`"]
pub struct CompareKey {
    span: Span,
    target: CompareTarget,
}

/// A value that is going to be compared.
#[derive(Debug, Clone)]
#[must_use = "say what it is compared with: `eq`, `ne`, `gt` or `lt`"]
pub struct CompareValue {
    span: Span,
}

/// The version of a key: how often it was written since it was created; 0 where it does not exist.
pub fn version(key: impl IntoBytes) -> CompareKey {
    CompareKey::new(key, CompareTarget::Version)
}

/// The revision at which a key was created; 0 where it does not exist.
pub fn create_revision(key: impl IntoBytes) -> CompareKey {
    CompareKey::new(key, CompareTarget::Create)
}

/// The revision at which a key was last changed; 0 where it does not exist.
pub fn mod_revision(key: impl IntoBytes) -> CompareKey {
    CompareKey::new(key, CompareTarget::Mod)
}

/// The lease of a key; 0 where it has none.
pub fn lease(key: impl IntoBytes) -> CompareKey {
    CompareKey::new(key, CompareTarget::Lease)
}

/// The value of a key. A comparison with the value of a key that does not exist never holds.
pub fn value(key: impl IntoBytes) -> CompareValue {
    CompareValue {
        span: Span::key(key.into_bytes()),
    }
}

impl CompareKey {
    fn new(key: impl IntoBytes, target: CompareTarget) -> Self {
        Self {
            span: Span::key(key.into_bytes()),
            target,
        }
    }

    fn with(self, result: CompareResult, number: i64) -> Compare {
        let union = match self.target {
            CompareTarget::Version | CompareTarget::Value => TargetUnion::Version(number),
            CompareTarget::Create => TargetUnion::CreateRevision(number),
            CompareTarget::Mod => TargetUnion::ModRevision(number),
            CompareTarget::Lease => TargetUnion::Lease(number),
        };
        Compare {
            span: self.span,
            result,
            target: self.target,
            union,
        }
    }

    /// Is it equal?
    pub fn eq(self, number: impl Into<i64>) -> Compare {
        self.with(CompareResult::Equal, number.into())
    }

    /// Is it different?
    pub fn ne(self, number: impl Into<i64>) -> Compare {
        self.with(CompareResult::NotEqual, number.into())
    }

    /// Is it greater?
    pub fn gt(self, number: impl Into<i64>) -> Compare {
        self.with(CompareResult::Greater, number.into())
    }

    /// Is it less?
    pub fn lt(self, number: impl Into<i64>) -> Compare {
        self.with(CompareResult::Less, number.into())
    }
}

impl CompareValue {
    fn with(self, result: CompareResult, value: impl IntoBytes) -> Compare {
        Compare {
            span: self.span,
            result,
            target: CompareTarget::Value,
            union: TargetUnion::Value(value.into_bytes()),
        }
    }

    /// Is it equal?
    pub fn eq(self, value: impl IntoBytes) -> Compare {
        self.with(CompareResult::Equal, value)
    }

    /// Is it different?
    pub fn ne(self, value: impl IntoBytes) -> Compare {
        self.with(CompareResult::NotEqual, value)
    }

    /// Is it greater, byte by byte?
    pub fn gt(self, value: impl IntoBytes) -> Compare {
        self.with(CompareResult::Greater, value)
    }

    /// Is it less, byte by byte?
    pub fn lt(self, value: impl IntoBytes) -> Compare {
        self.with(CompareResult::Less, value)
    }
}

spans!(Compare);

impl Compare {
    pub(super) fn wire(&self) -> Result<proto::Compare> {
        let (key, range_end) = self.span.resolve()?;
        Ok(proto::Compare {
            result: self.result.into(),
            target: self.target.into(),
            key,
            range_end,
            target_union: Some(self.union.clone()),
        })
    }
}
