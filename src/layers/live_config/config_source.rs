//! How a configuration is built from keys, and when it is accepted.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use bytes::Bytes;

use super::RejectedConfig;
use crate::{
    error::{Error, ErrorKind, Outcome, Result},
    layers::{
        cache::{CacheSnapshot, CachedRange},
        codec::{Codec, CodecError},
    },
};

type Build<T> = Arc<dyn Fn(&CacheSnapshot) -> Result<Option<T>> + Send + Sync>;
type Validate<T> = Arc<dyn Fn(&T) -> Result<(), CodecError> + Send + Sync>;

/// Builds and validates the versions of a configuration.
pub(super) struct ConfigSource<T> {
    pub(super) range: CachedRange,
    /// Returns `None` if there is no key.
    build: Build<T>,
    validate: Option<Validate<T>>,
    default: Option<Arc<T>>,
}

impl<T> Clone for ConfigSource<T> {
    fn clone(&self) -> Self {
        Self {
            range: self.range.clone(),
            build: self.build.clone(),
            validate: self.validate.clone(),
            default: self.default.clone(),
        }
    }
}

/// A version of a configuration that was accepted.
#[derive(Debug)]
pub(super) struct AcceptedConfig<T> {
    pub(super) value: Arc<T>,
    /// Revision of the change that it comes from.
    pub(super) revision: i64,
}

impl<T: 'static> ConfigSource<T> {
    /// Decodes the value of a key.
    pub(super) fn of_key<C: Codec<T>>(key: Bytes) -> Self {
        let own = key.clone();
        Self {
            range: CachedRange::Key(key),
            build: Arc::new(move |keys| {
                let entry = keys.get(&own);
                entry.map(|entry| entry.decode::<T, C>()).transpose()
            }),
            validate: None,
            default: None,
        }
    }

    /// Calls a function with all keys that have a prefix.
    pub(super) fn of_prefix<E: Into<CodecError>>(
        prefix: Bytes,
        build: impl Fn(&CacheSnapshot) -> Result<T, E> + Send + Sync + 'static,
    ) -> Self {
        let name = prefix.clone();
        Self {
            range: CachedRange::Prefix(prefix),
            build: Arc::new(move |keys| {
                if keys.is_empty() {
                    return Ok(None);
                }
                let value = build(keys).map(Some);
                value.map_err(|error| rejected(&name, &error.into().to_string()))
            }),
            validate: None,
            default: None,
        }
    }

    pub(super) fn set_validate<E: Into<CodecError>>(
        &mut self,
        validate: impl Fn(&T) -> Result<(), E> + Send + Sync + 'static,
    ) {
        self.validate = Some(Arc::new(move |value| validate(value).map_err(Into::into)));
    }

    pub(super) fn set_default(&mut self, value: T) {
        self.default = Some(Arc::new(value));
    }

    /// Builds the version that these keys contain.
    pub(super) fn evaluate(
        &self,
        keys: &CacheSnapshot,
    ) -> Result<AcceptedConfig<T>, RejectedConfig> {
        let revision = match &self.range {
            CachedRange::Key(key) => keys.get(key).map(|entry| entry.mod_revision()),
            CachedRange::Prefix(_) => keys.iter().map(|entry| entry.mod_revision()).max(),
        };
        let revision = revision.unwrap_or(keys.revision());
        // A panic of the application's functions must not end the task.
        let built = catch_unwind(AssertUnwindSafe(|| self.build_valid(keys)));
        let built = built.unwrap_or_else(|_| {
            Err(rejected(
                self.range.key(),
                "the function that builds or validates it panicked",
            ))
        });
        match built {
            Ok(value) => Ok(AcceptedConfig { value, revision }),
            Err(error) => Err(RejectedConfig {
                revision,
                key: self.range.key().clone(),
                error,
            }),
        }
    }

    fn build_valid(&self, keys: &CacheSnapshot) -> Result<Arc<T>> {
        let Some(value) = (self.build)(keys)? else {
            let missing = || rejected(self.range.key(), "it does not exist and has no default");
            return self.default.clone().ok_or_else(missing);
        };
        if let Some(validate) = &self.validate {
            validate(&value).map_err(|error| rejected(self.range.key(), &error.to_string()))?;
        }
        Ok(Arc::new(value))
    }
}

fn rejected(key: &[u8], reason: &str) -> Error {
    let reason = format!(
        "the configuration `{}` was rejected: {reason}",
        key.escape_ascii()
    );
    Error::new(ErrorKind::ConfigRejected, Outcome::NotSent, reason)
}
