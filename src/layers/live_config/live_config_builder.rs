//! The options of a configuration, and its start.

use std::{
    fmt,
    future::IntoFuture,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use actix::{Message, Recipient};
use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::{
    ConfigEvent, LiveConfig,
    config_source::ConfigSource,
    config_task::{ConfigCell, ConfigState, ConfigTask},
};
use crate::{
    client::{Client, subscription::Subscription},
    error::{Error, Result},
    layers::{
        cache::{
            CacheEvent, CacheSnapshot, CacheStart,
            file_writer::{FileOptions, FileWriter},
        },
        codec::{Codec, CodecError},
    },
    request::{EtcdRequest, IntoBytes, ResponseFuture},
};

/// Default of [`LiveConfigBuilder::max_bytes`].
const MAX_BYTES: usize = 16 << 20;

/// A request for a [`LiveConfig`]. Without a client (`LiveConfigBuilder<T>`), it is a message to the actor
/// [`Etcd`](crate::Etcd).
///
/// Awaiting it fails with [`ErrorKind::ConfigRejected`](crate::ErrorKind::ConfigRejected) or
/// [`ErrorKind::CodecFailed`](crate::ErrorKind::CodecFailed) if there is no version that is accepted, and with the error
/// of the read if the keys cannot be read within the client's `request_timeout`, unless it
/// [waits](LiveConfigBuilder::wait) or has a [file](LiveConfigBuilder::snapshot_file). Later failures do not end it.
#[must_use = "a configuration starts when this is awaited"]
pub struct LiveConfigBuilder<T, C = ()> {
    source: ConfigSource<T>,
    options: ConfigOptions,
    client: C,
}

#[derive(Debug, Clone)]
struct ConfigOptions {
    wait: bool,
    max_bytes: usize,
    file: Option<FileOptions>,
    start_timeout: Option<Duration>,
}

impl<T, C: Clone> Clone for LiveConfigBuilder<T, C> {
    fn clone(&self) -> Self {
        Self {
            source: self.source.clone(),
            options: self.options.clone(),
            client: self.client.clone(),
        }
    }
}

impl<T, C> fmt::Debug for LiveConfigBuilder<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveConfigBuilder")
            .field("range", &self.source.range)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Creates a request for the value of a key, decoded by the codec `C`, without a client.
pub fn live_config<T, C>(key: impl IntoBytes) -> LiveConfigBuilder<T>
where
    T: Send + Sync + 'static,
    C: Codec<T>,
{
    LiveConfigBuilder::new(ConfigSource::of_key::<C>(key.into_bytes()))
}

/// Creates a request for a configuration that a function builds from all keys with a prefix, without a client.
pub fn live_config_of_prefix<T, E>(
    prefix: impl IntoBytes,
    build: impl Fn(&CacheSnapshot) -> Result<T, E> + Send + Sync + 'static,
) -> LiveConfigBuilder<T>
where
    T: Send + Sync + 'static,
    E: Into<CodecError>,
{
    LiveConfigBuilder::new(ConfigSource::of_prefix(prefix.into_bytes(), build))
}

impl Client {
    /// Keeps the value of a key, decoded by the codec `C`, always current; see
    /// [`layers::live_config`](crate::layers::live_config).
    pub fn live_config<T, C>(&self, key: impl IntoBytes) -> LiveConfigBuilder<T, Self>
    where
        T: Send + Sync + 'static,
        C: Codec<T>,
    {
        live_config::<T, C>(key).on(self)
    }

    /// Keeps a value always current that a function builds from all keys with a prefix. The function is not called, and
    /// the default is used, while there is no key. It must be quick: it runs on the thread of the caller at the start,
    /// and on the client's thread after that.
    pub fn live_config_of_prefix<T, E>(
        &self,
        prefix: impl IntoBytes,
        build: impl Fn(&CacheSnapshot) -> Result<T, E> + Send + Sync + 'static,
    ) -> LiveConfigBuilder<T, Self>
    where
        T: Send + Sync + 'static,
        E: Into<CodecError>,
    {
        live_config_of_prefix(prefix, build).on(self)
    }
}

impl<T: Send + Sync + 'static, C> LiveConfigBuilder<T, C> {
    /// Validates each version before it is used. A version for which the function returns an error is rejected, and the
    /// last accepted one stays in use. The function must be quick: it runs on the thread of the caller at the start, and
    /// on the client's thread after that. Default: every version that can be decoded is accepted.
    pub fn validate<E: Into<CodecError>>(
        mut self,
        validate: impl Fn(&T) -> Result<(), E> + Send + Sync + 'static,
    ) -> Self {
        self.source.set_validate(validate);
        self
    }

    /// The value while no key exists. It is not validated. Default: none; the start then fails if there is no key, and a
    /// later deletion is rejected.
    pub fn default_value(mut self, value: T) -> Self {
        self.source.set_default(value);
        self
    }

    /// Waits without a deadline until there is an accepted version: temporary errors, such as an unreachable cluster,
    /// are retried. Other errors, such as a denied permission, fail at once. Fails when the client is shut down.
    /// Dropping the future stops waiting. Default: fails if the first version is rejected, or after the client's
    /// `request_timeout`.
    pub fn wait(mut self) -> Self {
        self.options.wait = true;
        self
    }

    /// Bound on the memory of the keys, see [`CacheBuilder::max_bytes`](crate::layers::cache::CacheBuilder::max_bytes).
    /// Default: 16 MiB.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.options.max_bytes = bytes;
        self
    }

    /// Saves the last accepted version to a file that only its owner can read. The start uses it if etcd cannot be
    /// reached, or if the version in etcd is rejected. See
    /// [`CacheBuilder::snapshot_file`](crate::layers::cache::CacheBuilder::snapshot_file). Default: no file.
    pub fn snapshot_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.options.file = Some(FileOptions::new(path.into()));
        self
    }

    /// How long the start waits for etcd before it uses the [file](Self::snapshot_file). Default: the client's
    /// `request_timeout`.
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.options.start_timeout = Some(timeout);
        self
    }
}

impl<T: Send + Sync + 'static> LiveConfigBuilder<T> {
    fn new(source: ConfigSource<T>) -> Self {
        Self {
            source,
            options: ConfigOptions {
                wait: false,
                max_bytes: MAX_BYTES,
                file: None,
                start_timeout: None,
            },
            client: (),
        }
    }

    /// Binds the request to a client.
    pub fn on(self, client: &Client) -> LiveConfigBuilder<T, Client> {
        LiveConfigBuilder {
            source: self.source,
            options: self.options,
            client: client.clone(),
        }
    }

    /// Returns a message to the actor [`Etcd`](crate::Etcd) that starts sending [`ConfigEvent`]s to `recipient`.
    pub fn deliver_to(self, recipient: Recipient<ConfigEvent<T>>) -> SubscribeConfig<T> {
        SubscribeConfig {
            config: self,
            recipient,
        }
    }
}

impl<T: Send + Sync + 'static> LiveConfigBuilder<T, Client> {
    /// Starts the configuration and sends its value and each change to an actor, see [`LiveConfig::deliver_to`]. Fails
    /// as awaiting the request does.
    pub async fn deliver_to(self, recipient: Recipient<ConfigEvent<T>>) -> Result<Subscription> {
        let config = self.await?;
        Ok(config.deliver_to(recipient))
    }

    async fn open(self) -> Result<LiveConfig<T>> {
        let Self {
            source,
            options,
            client,
        } = self;
        let mut start = CacheStart::new(client.clone(), source.range.clone(), options.max_bytes);
        start.wait = options.wait;
        if let Some(file) = &options.file {
            start.use_file(file, options.start_timeout).await?;
        }
        let saved = start.saved().cloned();
        let cache = start.open().await?;
        // Before the content is read: until the cache is synced, that is the content of the file.
        let mut is_confirmed = cache.is_synced();
        let mut changes = cache.clone().for_background().changes();
        let mut rejection = None;
        let (first, accepted) = loop {
            let keys = changes.snapshot().clone();
            let rejected = match source.evaluate(&keys) {
                Ok(first) => break (first, is_confirmed.then_some(keys)),
                Err(rejected) => rejected,
            };
            tracing::warn!(error = %rejected.error, "first version of a configuration was rejected");
            let error = rejected.error.clone();
            if let Some(Ok(first)) = saved.as_ref().map(|saved| source.evaluate(saved)) {
                rejection = Some((1, rejected));
                break (first, None);
            }
            if !options.wait {
                return Err(error);
            }
            match changes.next().await {
                Some(CacheEvent::Updated(_)) => is_confirmed = true,
                Some(CacheEvent::Ended(error)) => return Err(error),
                None => return Err(Error::shut_down()),
            }
        };
        let cell = Arc::new(ConfigCell {
            state: ArcSwap::from_pointee(ConfigState {
                value: first.value,
                revision: first.revision,
                accepted: 1,
                rejected: rejection,
                ended: None,
            }),
            file_error: Mutex::new(cache.file_error()),
        });
        let (ticks, receiver) = watch::channel(());
        let task = ConfigTask {
            writer: options
                .file
                .map(|file| FileWriter::new(&client, file, &source.range)),
            source,
            changes,
            cell: cell.clone(),
            ticks,
            accepted,
            rejections: 1,
        };
        // On the client's thread, so that the value stays current while the application blocks its own threads.
        let started = client.run(move || {
            actix_rt::spawn(task.run());
        });
        if !started {
            return Err(Error::shut_down());
        }
        Ok(LiveConfig::new(client, cache, cell, receiver))
    }
}

impl<T: Send + Sync + 'static> IntoFuture for LiveConfigBuilder<T, Client> {
    type Output = Result<LiveConfig<T>>;
    type IntoFuture = ResponseFuture<LiveConfig<T>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}

impl<T: Send + Sync + 'static> Message for LiveConfigBuilder<T> {
    type Result = Result<LiveConfig<T>>;
}

impl<T: Send + Sync + 'static> EtcdRequest<Client> for LiveConfigBuilder<T> {
    type Response = LiveConfig<T>;

    fn name(&self) -> &'static str {
        "LiveConfig"
    }

    fn send_with(self, client: &Client) -> ResponseFuture<LiveConfig<T>> {
        self.on(client).into_future()
    }
}

/// A message to the actor [`Etcd`](crate::Etcd) that sends a configuration, and each change of it, to another actor:
/// `etcd.send(live_config::<u32, Utf8>("config/rate").deliver_to(recipient))`. The response is a [`Subscription`].
///
/// Sent with `do_send`, the delivery continues until the actor stops or the client is shut down.
pub struct SubscribeConfig<T: Send + Sync + 'static> {
    config: LiveConfigBuilder<T>,
    recipient: Recipient<ConfigEvent<T>>,
}

impl<T: Send + Sync + 'static> Clone for SubscribeConfig<T> {
    fn clone(&self) -> Self {
        Self {
            config: self.config.clone(),
            recipient: self.recipient.clone(),
        }
    }
}

impl<T: Send + Sync + 'static> Message for SubscribeConfig<T> {
    type Result = Result<Subscription>;
}

impl<T: Send + Sync + 'static> EtcdRequest<Client> for SubscribeConfig<T> {
    type Response = Subscription;

    fn name(&self) -> &'static str {
        "SubscribeConfig"
    }

    fn send_with(self, client: &Client) -> ResponseFuture<Subscription> {
        Box::pin(self.config.on(client).deliver_to(self.recipient))
    }

    fn discard(self, subscription: Subscription) {
        subscription.detach();
    }
}
