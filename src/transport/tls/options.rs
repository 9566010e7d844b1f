//! TLS settings of the user.

use std::{collections::HashMap, fmt, path::PathBuf};

use zeroize::Zeroizing;

use super::pem::{Authorities, ClientIdentity, Pem, PemSource, SecretPem, SecretSource, TlsFiles};
use crate::{
    error::{Error, ErrorKind, Outcome},
    transport::endpoint::Endpoint,
};

/// Settings of encrypted connections, to `https://` and `unixs://` endpoints. Keys are never printed, and are wiped
/// from memory when dropped. This does not cover the copies that rustls holds.
///
/// ```no_run
/// # async fn example() -> actix_etcd::Result<()> {
/// use actix_etcd::{Client, TlsOptions};
///
/// let tls = TlsOptions::new()
///     .ca_file("/etc/etcd/ca.crt")
///     .client_certificate_files("/etc/etcd/client.crt", "/etc/etcd/client.key");
/// let etcd = Client::builder(["https://10.0.0.1:2379", "https://10.0.0.2:2379"]).tls(tls).connect().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
#[must_use = "options do nothing until they are given to a builder"]
pub struct TlsOptions {
    authorities: Vec<PemSource>,
    client: Option<(PemSource, SecretSource)>,
    pub(super) server_names: HashMap<Endpoint, String>,
    pub(super) allow_plain: bool,
    /// The last invalid setting.
    invalid: Option<Error>,
}

impl TlsOptions {
    /// Returns options that trust the system's certificate authorities and send no client certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts this certificate authority, in PEM. Can be called several times. Default: the system's authorities, which
    /// are read again for every new connection.
    pub fn ca_pem(mut self, pem: impl AsRef<[u8]>) -> Self {
        self.authorities
            .push(PemSource::Memory(pem.as_ref().to_vec()));
        self
    }

    /// Trusts the certificate authorities in this file. Can be called several times. The file is read again for every
    /// new connection. Default: the system's authorities.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.authorities.push(PemSource::File(path.into()));
        self
    }

    /// Sends this client certificate to servers (mutual TLS). Certificate and key are in PEM. Default: none.
    pub fn client_certificate_pem(
        mut self,
        certificate: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
    ) -> Self {
        let key = Zeroizing::new(key.as_ref().to_vec());
        self.client = Some((
            PemSource::Memory(certificate.as_ref().to_vec()),
            SecretSource::Memory(key),
        ));
        self
    }

    /// Sends the client certificate in these files to servers (mutual TLS). The files are read again for every new
    /// connection, so they can be replaced while the client runs. Default: none.
    pub fn client_certificate_files(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.client = Some((
            PemSource::File(certificate.into()),
            SecretSource::File(key.into()),
        ));
        self
    }

    /// Verifies the certificate of this endpoint against this name. The endpoint starts with `https://` or `unixs://`,
    /// or is a bare `host:port`; any other makes connecting fail with [`ErrorKind::InvalidEndpoint`]. Default: the host
    /// of the endpoint.
    pub fn server_name(mut self, endpoint: impl AsRef<str>, name: impl Into<String>) -> Self {
        match parse_encrypted(endpoint.as_ref()) {
            Ok(endpoint) => {
                self.server_names.insert(endpoint, name.into());
            }
            Err(error) => self.invalid = Some(error),
        }
        self
    }

    /// Allows unencrypted endpoints next to encrypted ones. Default: a mixed list is rejected, because it would send
    /// passwords in plain text.
    pub fn allow_plain_endpoints(mut self) -> Self {
        self.allow_plain = true;
        self
    }

    pub(super) fn has_client_certificate(&self) -> bool {
        self.client.is_some()
    }

    /// Returns the error of an invalid setting.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        self.invalid.clone().map_or(Ok(()), Err)
    }

    /// Reads all certificates and keys. Blocks on files.
    pub(super) fn read(&self) -> Result<TlsFiles, Error> {
        let authorities = if self.authorities.is_empty() {
            // Certificates that cannot be loaded are ignored.
            Authorities::System(rustls_native_certs::load_native_certs().certs)
        } else {
            let read = |source| Pem::read(source, "the CA certificate");
            let pems: Result<_, _> = self.authorities.iter().map(read).collect();
            Authorities::Given(pems?)
        };
        let client = match &self.client {
            None => None,
            Some((certificate, key)) => {
                let key = SecretPem::read(key, "the client key")?;
                let certificate = Pem::read(certificate, "the client certificate")?;
                Some(ClientIdentity { certificate, key })
            }
        };
        Ok(TlsFiles {
            authorities,
            client,
        })
    }
}

/// Parses an endpoint; a bare `host:port` is taken as `https://`. Fails for unencrypted endpoints.
fn parse_encrypted(text: &str) -> Result<Endpoint, Error> {
    if !text.contains("://") {
        return Endpoint::parse(&format!("https://{}", text.trim()));
    }
    let endpoint = Endpoint::parse(text)?;
    if !endpoint.is_tls() {
        let reason = format!(
            "`server_name` requires an https:// or unixs:// endpoint, but {endpoint} is not encrypted"
        );
        return Err(Error::new(
            ErrorKind::InvalidEndpoint,
            Outcome::NotSent,
            reason,
        ));
    }
    Ok(endpoint)
}

impl fmt::Debug for TlsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsOptions")
            .field("authorities", &self.authorities)
            .field("certificate", &self.client.as_ref().map(|(pem, _)| pem))
            .field("key", &self.client.as_ref().map(|(_, key)| key))
            .field("server_names", &self.server_names)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use zeroize::ZeroizeOnDrop;

    use super::*;

    #[test]
    fn server_names_require_encrypted_endpoints() {
        let named = |endpoint: &str| TlsOptions::new().server_name(endpoint, "one.example");
        for endpoint in ["10.0.0.1:2379", " 10.0.0.1", "https://10.0.0.1:2379/"] {
            let options = named(endpoint);
            options.validate().unwrap();
            let normalized = Endpoint::parse("https://10.0.0.1:2379").unwrap();
            assert!(options.server_names.contains_key(&normalized), "{endpoint}");
        }
        named("unixs:///run/etcd.sock").validate().unwrap();
        for endpoint in ["http://10.0.0.1:2379", "unix:///run/etcd.sock", ""] {
            let error = named(endpoint).validate().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidEndpoint, "{endpoint}");
        }
    }

    #[test]
    fn options_wipe_keys_on_drop() {
        fn assert_wiped(_: &impl ZeroizeOnDrop) {}
        let options = TlsOptions::new().client_certificate_pem("certificate", "key");
        if let Some((_, SecretSource::Memory(pem))) = &options.client {
            assert_wiped(pem);
        }
        let files = options.read().unwrap();
        let key = files.client.unwrap().key;
        assert_wiped(&key.bytes);
        assert_eq!(*key.bytes, b"key");
    }
}
