//! The conditions of a transaction.

use super::IntoBytes;
use crate::{
    error::Result,
    proto::{
        self,
        compare::{CompareResult, CompareTarget, TargetUnion},
    },
    request::key_range::{KeyRange, key_range_methods},
};

/// A condition on a key, or on every key of a range: `Compare::version("k").eq(0)`.
#[derive(Debug, Clone)]
#[must_use = "a condition has no effect until it is passed to `Txn::when`"]
pub struct Compare {
    range: KeyRange,
    result: CompareResult,
    target: CompareTarget,
    union: TargetUnion,
}

impl Compare {
    /// Compares the version of a key: the number of writes since it was created, 0 if it does not exist.
    pub fn version(key: impl IntoBytes) -> CompareNumber {
        CompareNumber::new(key, CompareTarget::Version)
    }

    /// Compares the revision at which a key was created, 0 if it does not exist.
    pub fn create_revision(key: impl IntoBytes) -> CompareNumber {
        CompareNumber::new(key, CompareTarget::Create)
    }

    /// Compares the revision at which a key was last changed, 0 if it does not exist.
    pub fn mod_revision(key: impl IntoBytes) -> CompareNumber {
        CompareNumber::new(key, CompareTarget::Mod)
    }

    /// Compares the id of a key's lease, 0 if it has none.
    pub fn lease(key: impl IntoBytes) -> CompareNumber {
        CompareNumber::new(key, CompareTarget::Lease)
    }

    /// Compares the value of a key. The condition does not hold if the key does not exist.
    pub fn value(key: impl IntoBytes) -> CompareValue {
        CompareValue {
            range: KeyRange::key(key.into_bytes()),
        }
    }

    pub(super) fn wire(&self) -> Result<proto::Compare> {
        let (key, range_end) = self.range.resolve()?;
        Ok(proto::Compare {
            result: self.result.into(),
            target: self.target.into(),
            key,
            range_end,
            target_union: Some(self.union.clone()),
        })
    }
}

key_range_methods!(Compare);

/// The left side of a comparison of numbers. Created by [`Compare::version`], [`Compare::create_revision`],
/// [`Compare::mod_revision`] and [`Compare::lease`].
#[derive(Debug, Clone)]
#[must_use = "finish the comparison with `eq`, `ne`, `gt` or `lt`"]
pub struct CompareNumber {
    range: KeyRange,
    target: CompareTarget,
}

impl CompareNumber {
    fn new(key: impl IntoBytes, target: CompareTarget) -> Self {
        Self {
            range: KeyRange::key(key.into_bytes()),
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
            range: self.range,
            result,
            target: self.target,
            union,
        }
    }

    /// Holds if both are equal.
    pub fn eq(self, number: impl Into<i64>) -> Compare {
        self.with(CompareResult::Equal, number.into())
    }

    /// Holds if they differ.
    pub fn ne(self, number: impl Into<i64>) -> Compare {
        self.with(CompareResult::NotEqual, number.into())
    }

    /// Holds if the key's number is greater.
    pub fn gt(self, number: impl Into<i64>) -> Compare {
        self.with(CompareResult::Greater, number.into())
    }

    /// Holds if the key's number is less.
    pub fn lt(self, number: impl Into<i64>) -> Compare {
        self.with(CompareResult::Less, number.into())
    }
}

/// The left side of a comparison of values. Created by [`Compare::value`].
#[derive(Debug, Clone)]
#[must_use = "finish the comparison with `eq`, `ne`, `gt` or `lt`"]
pub struct CompareValue {
    range: KeyRange,
}

impl CompareValue {
    fn with(self, result: CompareResult, value: impl IntoBytes) -> Compare {
        Compare {
            range: self.range,
            result,
            target: CompareTarget::Value,
            union: TargetUnion::Value(value.into_bytes()),
        }
    }

    /// Holds if both are equal.
    pub fn eq(self, value: impl IntoBytes) -> Compare {
        self.with(CompareResult::Equal, value)
    }

    /// Holds if they differ.
    pub fn ne(self, value: impl IntoBytes) -> Compare {
        self.with(CompareResult::NotEqual, value)
    }

    /// Holds if the key's value is greater, byte by byte.
    pub fn gt(self, value: impl IntoBytes) -> Compare {
        self.with(CompareResult::Greater, value)
    }

    /// Holds if the key's value is less, byte by byte.
    pub fn lt(self, value: impl IntoBytes) -> Compare {
        self.with(CompareResult::Less, value)
    }
}
