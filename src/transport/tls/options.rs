//! What a user says about encryption.

use std::{
    collections::HashMap,
    fmt, fs,
    path::{Path, PathBuf},
};

use tokio_rustls::rustls::pki_types::CertificateDer;
use zeroize::Zeroizing;

use crate::{
    error::{Error, ErrorKind, Outcome},
    transport::endpoint::Endpoint,
};

/// How connections to `https://` and `unixs://` endpoints are encrypted. Keys are never printed, and wiped from memory
/// when dropped; what rustls made of them is its own.
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
    authorities: Vec<Source>,
    client: Option<(Source, SecretSource)>,
    pub(super) server_names: HashMap<Endpoint, String>,
    pub(super) allow_plain: bool,
    conflict: Option<Error>,
}

#[derive(Clone)]
enum Source {
    Pem(Vec<u8>),
    File(PathBuf),
}

#[derive(Clone)]
enum SecretSource {
    Pem(Zeroizing<Vec<u8>>),
    File(PathBuf),
}

/// All that was read: in PEM, but for what the system gives.
#[derive(PartialEq)]
pub(super) struct Material {
    pub(super) authorities: Authorities,
    pub(super) client: Option<(Vec<u8>, Zeroizing<Vec<u8>>)>,
}

#[derive(PartialEq)]
pub(super) enum Authorities {
    System(Vec<CertificateDer<'static>>),
    Given(Vec<Vec<u8>>),
}

impl TlsOptions {
    /// The system's certificate authorities, no client certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts this authority, in PEM; can be said several times. Default: the system's authorities, which are read
    /// again at every new connection.
    pub fn ca_pem(mut self, pem: impl AsRef<[u8]>) -> Self {
        self.authorities.push(Source::Pem(pem.as_ref().to_vec()));
        self
    }

    /// Trusts the authorities in this file; can be said several times. The file is read again at every new
    /// connection. Default: the system's authorities.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.authorities.push(Source::File(path.into()));
        self
    }

    /// Shows this certificate to servers (mutual TLS), both in PEM. Default: none.
    pub fn client_certificate_pem(
        mut self,
        certificate: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
    ) -> Self {
        let key = Zeroizing::new(key.as_ref().to_vec());
        self.client = Some((
            Source::Pem(certificate.as_ref().to_vec()),
            SecretSource::Pem(key),
        ));
        self
    }

    /// Shows the certificate in these files to servers (mutual TLS). They are read again at every new connection, so
    /// they may be replaced while the client runs. Default: none.
    pub fn client_certificate_files(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.client = Some((
            Source::File(certificate.into()),
            SecretSource::File(key.into()),
        ));
        self
    }

    /// Checks the certificate of this endpoint against this name; of `https://` or `unixs://`, or a bare `host:port`.
    /// Default: the endpoint's own host.
    pub fn server_name(mut self, endpoint: impl AsRef<str>, name: impl Into<String>) -> Self {
        match encrypted(endpoint.as_ref()) {
            Ok(endpoint) => {
                self.server_names.insert(endpoint, name.into());
            }
            Err(error) => self.conflict = Some(error),
        }
        self
    }

    /// Allows endpoints without encryption next to ones with it. Default: such a mixture is refused, as it mostly is a
    /// mistake that sends passwords in plain text.
    pub fn allow_plain_endpoints(mut self) -> Self {
        self.allow_plain = true;
        self
    }

    pub(super) fn has_client_certificate(&self) -> bool {
        self.client.is_some()
    }

    /// What is wrong with them as such.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        self.conflict.clone().map_or(Ok(()), Err)
    }

    pub(super) fn read(&self) -> Result<Material, Error> {
        let authorities = if self.authorities.is_empty() {
            // What cannot be read is as good as not there.
            Authorities::System(rustls_native_certs::load_native_certs().certs)
        } else {
            let given: Result<_, _> = self.authorities.iter().map(Source::read).collect();
            Authorities::Given(given?)
        };
        let client = match &self.client {
            None => None,
            Some((certificate, key)) => {
                let key = match key {
                    SecretSource::Pem(pem) => pem.clone(),
                    SecretSource::File(path) => Zeroizing::new(read(path)?),
                };
                Some((certificate.read()?, key))
            }
        };
        Ok(Material {
            authorities,
            client,
        })
    }
}

/// An endpoint that is encrypted, as a bare address is here.
fn encrypted(text: &str) -> Result<Endpoint, Error> {
    if !text.contains("://") {
        return Endpoint::parse(&format!("https://{}", text.trim()));
    }
    let endpoint = Endpoint::parse(text)?;
    if !endpoint.is_tls() {
        let text = format!("{endpoint} has no certificate whose name could be checked");
        return Err(Error::new(
            ErrorKind::InvalidEndpoint,
            Outcome::NotSent,
            text,
        ));
    }
    Ok(endpoint)
}

impl Source {
    fn read(&self) -> Result<Vec<u8>, Error> {
        match self {
            Self::Pem(pem) => Ok(pem.clone()),
            Self::File(path) => read(path),
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|error| {
        let text = format!("{} cannot be read: {error}", path.display());
        Error::new(ErrorKind::TlsFailed, Outcome::NotSent, text)
    })
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pem(_) => f.write_str("<pem>"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Debug for TlsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.client.as_ref().map(|(_, key)| match key {
            SecretSource::Pem(_) => "<hidden>".to_owned(),
            SecretSource::File(path) => path.display().to_string(),
        });
        f.debug_struct("TlsOptions")
            .field("authorities", &self.authorities)
            .field("certificate", &self.client.as_ref().map(|(pem, _)| pem))
            .field("key", &key)
            .field("server_names", &self.server_names)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use zeroize::ZeroizeOnDrop;

    use super::*;

    #[test]
    fn names_belong_to_encrypted_endpoints() {
        let named = |endpoint: &str| TlsOptions::new().server_name(endpoint, "one.example");
        for endpoint in ["10.0.0.1:2379", " 10.0.0.1", "https://10.0.0.1:2379/"] {
            let options = named(endpoint);
            options.validate().unwrap();
            let known = Endpoint::parse("https://10.0.0.1:2379").unwrap();
            assert!(options.server_names.contains_key(&known), "{endpoint}");
        }
        named("unixs:///run/etcd.sock").validate().unwrap();
        for endpoint in ["http://10.0.0.1:2379", "unix:///run/etcd.sock", ""] {
            let refused = named(endpoint).validate().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidEndpoint, "{endpoint}");
        }
    }

    #[test]
    fn what_holds_a_key_wipes_it() {
        fn wiped(_: &impl ZeroizeOnDrop) {}
        let options = TlsOptions::new().client_certificate_pem("certificate", "key");
        if let Some((_, SecretSource::Pem(pem))) = &options.client {
            wiped(pem);
        }
        let material = options.read().unwrap();
        let (_, key) = material.client.unwrap();
        wiped(&key);
        assert_eq!(*key, b"key");
    }
}
