//! Looks up the addresses of host names.

#[cfg(feature = "test-faults")]
use std::sync::Arc;
use std::{fmt, io, net::SocketAddr};

use tokio::net::lookup_host;

/// Looks up the addresses of host names, by default with the system's resolver.
#[derive(Clone, Default)]
pub(crate) struct Resolver {
    #[cfg(feature = "test-faults")]
    lookup: Option<Arc<LookupFunction>>,
}

/// A replacement of the system's resolver, for tests.
#[cfg(feature = "test-faults")]
type LookupFunction = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

impl Resolver {
    #[cfg(feature = "test-faults")]
    pub(crate) fn from_fn(
        lookup: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            lookup: Some(Arc::new(lookup)),
        }
    }

    /// Returns the addresses of a host, at least one.
    pub(super) async fn lookup(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        #[cfg(feature = "test-faults")]
        if let Some(lookup) = &self.lookup {
            return require_one(lookup(host, port)?);
        }
        require_one(lookup_host((host, port)).await?.collect())
    }
}

fn require_one(addresses: Vec<SocketAddr>) -> io::Result<Vec<SocketAddr>> {
    if addresses.is_empty() {
        let reason = "the host name resolves to no address";
        return Err(io::Error::new(io::ErrorKind::NotFound, reason));
    }
    Ok(addresses)
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}
