//! The `tls` module of builds without the feature `tls`.

use super::endpoint::Endpoint;
use crate::error::{Error, ErrorKind, Outcome};

/// TLS settings of a build without TLS: every handshake fails.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tls {
    _private: (),
}

#[expect(
    clippy::unused_self,
    reason = "the methods match those of builds with TLS"
)]
impl Tls {
    pub(crate) fn allows_plain(&self) -> bool {
        false
    }

    #[expect(
        clippy::unused_async,
        reason = "the signature of the function with TLS"
    )]
    pub(crate) async fn encrypt<T>(&self, _: &Endpoint, _: T) -> Result<T, Error> {
        let reason = "this build of actix-etcd lacks the feature `tls`";
        Err(Error::new(ErrorKind::TlsFailed, Outcome::NotSent, reason))
    }

    pub(crate) fn explain_disconnect(&self, error: Error) -> Error {
        error
    }
}
