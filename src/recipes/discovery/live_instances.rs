//! The instances of a service, kept up to date.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use actix::Message;
use bytes::Bytes;
use tokio::sync::watch;
use tokio_stream::{Stream, wrappers::WatchStream};

use super::{Instances, InstancesChange, instance::service_prefix, instance_list::InstanceTable};
use crate::{
    client::Client,
    error::{Error, Result},
    layers::read_then_watch::{KeysUpdate, ReadThenWatch},
};

/// A change of the instances of a service.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub enum DiscoveryEvent {
    /// The instances have changed. The first event lists all instances, and is sent even if there are none.
    Changed(InstancesChange),
    /// The discovery ended with this error. This is the last event.
    Ended(Error),
}

/// The instances of a service, kept up to date in the background until this is dropped.
///
/// Also a stream of changes. A slow reader gets the sum of the changes since its last read, so nothing is buffered. A
/// clone starts from the beginning: its first event lists all instances.
#[must_use = "dropping the discovery ends it"]
pub struct Discovery {
    /// Keeps the client running.
    client: Client,
    target: Bytes,
    live: watch::Receiver<LiveInstances>,
    changes: WatchStream<LiveInstances>,
    /// The instances after the last event of this stream.
    last_returned: Option<Arc<Instances>>,
    ended: bool,
}

#[derive(Clone)]
struct LiveInstances {
    instances: Arc<Instances>,
    ended: Option<Error>,
}

impl Discovery {
    pub(super) async fn open(client: Client, target: Bytes) -> Result<Self> {
        let mut keys = ReadThenWatch::prefix(client.for_background(), service_prefix(&target)?);
        let mut table = InstanceTable::default();
        while table.revision() == 0 {
            if let Some(update) = keys.step().await? {
                apply(&mut table, &update);
            }
        }
        let (sender, live) = watch::channel(LiveInstances {
            instances: Arc::new(table.instances()),
            ended: None,
        });
        // On the client's thread, so that the list stays current while the application blocks its own threads.
        let started = client.run(move || {
            actix_rt::spawn(async move {
                tokio::select! {
                    () = sender.closed() => {}
                    () = keep_up_to_date(&mut keys, &mut table, &sender) => {}
                }
            });
        });
        if !started {
            return Err(Error::shut_down());
        }
        Ok(Self::new(client, target, live))
    }

    fn new(client: Client, target: Bytes, live: watch::Receiver<LiveInstances>) -> Self {
        Self {
            client,
            target,
            changes: WatchStream::new(live.clone()),
            live,
            last_returned: None,
            ended: false,
        }
    }

    /// Returns the discovery for background work, which does not keep the client running.
    pub(super) fn for_background(mut self) -> Self {
        self.client = self.client.for_background();
        self
    }

    /// Returns the instances as of the last update.
    pub fn instances(&self) -> Arc<Instances> {
        self.live.borrow().instances.clone()
    }

    /// Returns the next event: first all instances, then each change, and `None` after [`DiscoveryEvent::Ended`].
    pub async fn next(&mut self) -> Option<DiscoveryEvent> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<DiscoveryEvent>> {
        while !self.ended {
            // `None` means that the client's thread has ended.
            let live = ready!(Pin::new(&mut self.changes).poll_next(cx));
            let ended = live.as_ref().is_none_or(|live| live.ended.is_some());
            if let Some(change) = live.as_ref().and_then(|live| self.change(&live.instances)) {
                if ended {
                    // This value holds a change and the end. A new stream yields it again, for the end.
                    self.changes = WatchStream::new(self.live.clone());
                }
                return Poll::Ready(Some(DiscoveryEvent::Changed(change)));
            }
            if ended {
                self.ended = true;
                let error = live.and_then(|live| live.ended);
                let error = error.unwrap_or_else(Error::shut_down);
                return Poll::Ready(Some(DiscoveryEvent::Ended(error)));
            }
        }
        Poll::Ready(None)
    }

    fn change(&mut self, now: &Arc<Instances>) -> Option<InstancesChange> {
        let change = match &self.last_returned {
            Some(before) => InstancesChange::between(before, now)?,
            None => InstancesChange::first(now),
        };
        self.last_returned = Some(now.clone());
        Some(change)
    }
}

impl Clone for Discovery {
    fn clone(&self) -> Self {
        Self::new(self.client.clone(), self.target.clone(), self.live.clone())
    }
}

impl Stream for Discovery {
    type Item = DiscoveryEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<DiscoveryEvent>> {
        self.poll(cx)
    }
}

impl fmt::Debug for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Discovery")
            .field("target", &self.target)
            .field("instances", &self.instances())
            .finish_non_exhaustive()
    }
}

async fn keep_up_to_date(
    keys: &mut ReadThenWatch,
    table: &mut InstanceTable,
    sender: &watch::Sender<LiveInstances>,
) {
    loop {
        match keys.next().await {
            Ok(update) => {
                apply(table, &update);
                let instances = Arc::new(table.instances());
                sender.send_modify(|live| live.instances = instances);
            }
            Err(error) => {
                sender.send_modify(|live| live.ended = Some(error));
                return;
            }
        }
    }
}

fn apply(table: &mut InstanceTable, update: &KeysUpdate) {
    match update {
        KeysUpdate::Snapshot(found) => table.replace(found.header.revision, &found.kvs),
        KeysUpdate::Events(events) => table.apply(events.revision(), events),
    }
}
