//! Changes of a configuration.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use actix::Message;
use bytes::Bytes;
use tokio_stream::{Stream, wrappers::WatchStream};

use super::LiveConfig;
use crate::error::Error;

/// A version that is not used, because it could not be decoded or the validation rejected it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RejectedConfig {
    /// Revision of the change.
    pub revision: i64,
    /// The key or prefix of the configuration.
    pub key: Bytes,
    /// Why it was rejected.
    pub error: Error,
}

impl fmt::Display for RejectedConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "revision {}: {}", self.revision, self.error)
    }
}

/// An event of a configuration. The last one is [`Ended`](Self::Ended).
#[non_exhaustive]
pub enum ConfigEvent<T> {
    /// There is a new value.
    Changed {
        /// The new value.
        value: Arc<T>,
        /// Revision of the change; that of the read if the value is the default.
        revision: i64,
    },
    /// A version was rejected. The last accepted value stays in use.
    Rejected(RejectedConfig),
    /// The updates ended with this error. The last accepted value stays in use.
    Ended(Error),
}

impl<T: Send + Sync + 'static> Message for ConfigEvent<T> {
    type Result = ();
}

impl<T> Clone for ConfigEvent<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Changed { value, revision } => Self::Changed {
                value: value.clone(),
                revision: *revision,
            },
            Self::Rejected(rejected) => Self::Rejected(rejected.clone()),
            Self::Ended(error) => Self::Ended(error.clone()),
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for ConfigEvent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed { value, revision } => f
                .debug_struct("Changed")
                .field("value", value)
                .field("revision", revision)
                .finish(),
            Self::Rejected(rejected) => f.debug_tuple("Rejected").field(rejected).finish(),
            Self::Ended(error) => f.debug_tuple("Ended").field(error).finish(),
        }
    }
}

/// A stream of the changes of a configuration; see [`LiveConfig::changed`]. A slow reader gets the latest value only.
#[must_use = "a stream does nothing until it is read"]
pub struct ConfigChanges<T> {
    config: LiveConfig<T>,
    ticks: WatchStream<()>,
    /// Numbers of the last accepted and the last rejected version that were returned.
    seen: (u64, u64),
    task_ended: bool,
    ended: bool,
}

impl<T: Send + Sync + 'static> ConfigChanges<T> {
    /// Creates a stream of the versions after these numbers.
    pub(super) fn after(config: LiveConfig<T>, seen: (u64, u64)) -> Self {
        Self {
            ticks: WatchStream::new(config.ticks()),
            config,
            seen,
            task_ended: false,
            ended: false,
        }
    }

    /// Returns the next event, and `None` after [`ConfigEvent::Ended`].
    pub async fn next(&mut self) -> Option<ConfigEvent<T>> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<ConfigEvent<T>>> {
        while !self.ended {
            let state = self.config.state();
            if state.accepted > self.seen.0 {
                self.seen.0 = state.accepted;
                return Poll::Ready(Some(ConfigEvent::Changed {
                    value: state.value.clone(),
                    revision: state.revision,
                }));
            }
            if let Some((number, rejected)) = &state.rejected
                && *number > self.seen.1
            {
                self.seen.1 = *number;
                return Poll::Ready(Some(ConfigEvent::Rejected(rejected.clone())));
            }
            if self.task_ended {
                self.ended = true;
                let error = state.ended.clone().unwrap_or_else(Error::shut_down);
                return Poll::Ready(Some(ConfigEvent::Ended(error)));
            }
            drop(state);
            self.task_ended = ready!(Pin::new(&mut self.ticks).poll_next(cx)).is_none();
        }
        Poll::Ready(None)
    }
}

impl<T: Send + Sync + 'static> Stream for ConfigChanges<T> {
    type Item = ConfigEvent<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll(cx)
    }
}

impl<T> fmt::Debug for ConfigChanges<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigChanges").finish_non_exhaustive()
    }
}
