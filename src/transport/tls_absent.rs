//! In place of TLS, where it was left out of the build.

use super::endpoint::Endpoint;
use crate::error::{Error, ErrorKind, Outcome};

/// Nothing: this build does not encrypt.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tls;

impl Tls {
    pub(crate) fn allows_plain(&self) -> bool {
        false
    }

    pub(crate) async fn encrypt<T>(&self, endpoint: &Endpoint, _: T) -> Result<T, Error> {
        let text = format!("{endpoint} needs the feature `tls`, which this build left out");
        Err(Error::new(ErrorKind::TlsFailed, Outcome::NotSent, text))
    }

    pub(crate) fn explain(&self, error: Error) -> Error {
        error
    }
}
