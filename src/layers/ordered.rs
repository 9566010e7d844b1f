//! A client whose reads never return an older state than it has seen.
//!
//! A serializable read is answered by one member without the others, so it is fast and possible without a leader. But
//! that member may lag behind: two reads on two members can return a newer state first and an older one afterwards. The
//! same happens to a program that reads its own write. [`Client::ordered`] returns a [`Client`] that excludes this:
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! let ordered = etcd.ordered();
//! let written = ordered.put("config/rate", "100").await?.header.revision;
//! let rate = ordered.get("config/rate").serializable().await?;
//! assert!(rate.header.revision >= written);
//! # Ok(())
//! # }
//! ```
//!
//! The client records the newest revision it has *seen*: in responses to reads and writes of keys, and in the events
//! that its watches have delivered. The revision of a response to a read is never lower than the newest one seen before
//! the read was sent, whichever members are used. Clones and [namespaces](crate::layers::namespace) of an ordered client
//! share what they have seen. Each call of [`Client::ordered`] starts an order of its own, which has seen nothing.
//!
//! # How
//! A response that is too old is dropped, and the read is sent again: at once to another member, until a quorum of
//! members was behind; then as a linearizable read, which a quorum confirms. All this happens within the timeout of the
//! request and costs nothing as long as members are up to date. Only reads are sent again: gets, and transactions without
//! writes. A write is not a read of old state, whatever revision its member has.
//!
//! # Errors
//! - [`ErrorKind::StaleRead`]: the members that responded are behind, and there is no quorum to ask. Try again later.
//! - [`ErrorKind::RevisionRegressed`]: the whole cluster is behind what the client has seen. It was restored from a
//!   backup, or lost its data. This error is returned at once, and by all further reads until the cluster has passed the
//!   revision. To accept the older state, create a new ordered client.
//!
//! If the client [follows](crate::client::ClientBuilder::follow_cluster_change) another cluster, the order starts again
//! with the first response of that cluster.
//!
//! # What has its order anyway
//! - [Pages](crate::kv::Get::pages), [streams](crate::kv::Get::stream) and [`get_many`](Client::get_many) read
//!   everything at the revision of their first response, which is never too old.
//! - A read [at a revision](crate::kv::Get::revision) returns the same keys on every member. It is also sent again if its
//!   member is behind or does not have the revision yet.
//! - A [watch](crate::watch) never goes back by itself. It does not wait for what other requests have seen: a new watch
//!   from now on starts at the revision of its member.
//! - [Recipes](crate::recipes) use linearizable reads and watches. Create them from a client without an order: from an
//!   ordered one, they end with [`ErrorKind::RevisionRegressed`] when the cluster was restored from a backup.
//!
//! [`ErrorKind::StaleRead`]: crate::ErrorKind::StaleRead
//! [`ErrorKind::RevisionRegressed`]: crate::ErrorKind::RevisionRegressed

use crate::{client::Client, request::ClientHandle};

impl Client {
    /// Returns a client whose reads, serializable ones included, never return an older state than it has seen. See
    /// [`layers::ordered`](crate::layers::ordered).
    #[must_use = "the client itself stays as it is"]
    pub fn ordered(&self) -> Self {
        self.with_view(self.view().ordered())
    }
}
