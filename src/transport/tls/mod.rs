//! Encrypted connections with rustls.
//!
//! Files, and the system's authorities, are read at every handshake, so certificates that were replaced count from the
//! next connection on. What cannot be read or parsed then (a file that is just being written) leaves the last good
//! settings in force.

mod errors;
mod options;

pub use options::TlsOptions;

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, Error as RustlsError, InconsistentKeys, RootCertStore, SignatureScheme,
        client::ResolvesClientCert,
        crypto::ring::{self, sign::any_supported_type},
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
        sign::{CertifiedKey, SingleCertAndKey},
    },
};
use zeroize::Zeroizing;

use self::{
    errors::{failed, refused},
    options::{Authorities, Material},
};
use super::endpoint::{Endpoint, Target};
use crate::error::Error;

/// How a client encrypts, and the settings that were last made of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tls {
    options: Arc<TlsOptions>,
    last: Arc<Mutex<Option<Prepared>>>,
    nobody: Arc<Nobody>,
}

/// In place of a client certificate: notes that a server asked for one.
#[derive(Debug, Default)]
struct Nobody {
    was_asked: AtomicBool,
}

impl ResolvesClientCert for Nobody {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.was_asked.store(true, Ordering::Relaxed);
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// Settings and what they were made of.
#[derive(Clone)]
struct Prepared {
    material: Arc<Material>,
    config: Arc<ClientConfig>,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Prepared(..)")
    }
}

impl Tls {
    pub(crate) fn new(options: TlsOptions) -> Self {
        Self {
            options: Arc::new(options),
            ..Self::default()
        }
    }

    /// Whether members without encryption may stand next to ones with it.
    pub(crate) fn allows_plain(&self) -> bool {
        self.options.allow_plain
    }

    /// Encrypts a connection that has just been made.
    pub(crate) async fn encrypt<T>(
        &self,
        endpoint: &Endpoint,
        socket: T,
    ) -> Result<TlsStream<T>, Error>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let name = self.server_name(endpoint)?;
        let config = self.config().await?;
        TlsConnector::from(config)
            .connect(name.clone(), socket)
            .await
            .map_err(|error| refused(&error, &name, self.misses_certificate()))
    }

    /// Whether a server has asked for a certificate that was not given.
    fn misses_certificate(&self) -> bool {
        !self.options.has_client_certificate() && self.nobody.was_asked.load(Ordering::Relaxed)
    }

    fn server_name(&self, endpoint: &Endpoint) -> Result<ServerName<'static>, Error> {
        let named = self.options.server_names.get(endpoint);
        let host = match (named, endpoint.target()) {
            (Some(name), _) => name.as_str(),
            (None, Target::Tcp { host, .. }) => host,
            (None, Target::Unix(_)) => "localhost",
        };
        ServerName::try_from(host.to_owned()).map_err(|_| {
            failed(format!(
                "`{host}` is not a name that a certificate can be checked against"
            ))
        })
    }

    async fn config(&self) -> Result<Arc<ClientConfig>, Error> {
        let (options, nobody, last) = (self.options.clone(), self.nobody.clone(), self.last());
        // Files and the system's authorities are on a disk that may be slow.
        let prepared = tokio::task::spawn_blocking(move || prepare(&options, nobody, last))
            .await
            .map_err(|error| failed("the certificates could not be read").with_source(error))?;
        match (prepared, self.last()) {
            (Ok(prepared), _) => {
                let config = prepared.config.clone();
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(prepared);
                Ok(config)
            }
            (Err(error), Some(last)) => {
                tracing::warn!(%error, "the certificates as they were before stay in use");
                Ok(last.config)
            }
            (Err(error), None) => Err(error),
        }
    }

    fn last(&self) -> Option<Prepared> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.clone()
    }

    /// What a connection that broke before its first answer says of the certificates. In TLS 1.3 a server refuses the
    /// client's only after the handshake.
    pub(crate) fn explain(&self, error: Error) -> Error {
        let missing = self.misses_certificate();
        errors::after_handshake(error, missing, self.options.has_client_certificate())
    }
}

fn prepare(
    options: &TlsOptions,
    nobody: Arc<Nobody>,
    last: Option<Prepared>,
) -> Result<Prepared, Error> {
    let material = options.read()?;
    match last {
        Some(last) if *last.material == material => Ok(last),
        _ => Ok(Prepared {
            config: Arc::new(configure(&material, nobody)?),
            material: Arc::new(material),
        }),
    }
}

fn configure(material: &Material, nobody: Arc<Nobody>) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    match &material.authorities {
        Authorities::System(certificates) => add_system_roots(&mut roots, certificates)?,
        Authorities::Given(pems) => {
            for pem in pems {
                add_roots(&mut roots, pem)?;
            }
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(error.to_string()))?
        .with_root_certificates(roots);
    let mut config = match &material.client {
        None => builder.with_client_cert_resolver(nobody),
        Some((certificates, key)) => {
            let certificates = parse_certificates(certificates, "the client certificate")?;
            let certified = certify(certificates, key)?;
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// A certificate and its key, as rustls does it, but for the key's bytes: rustls would leave them behind in memory.
fn certify(certificates: Vec<CertificateDer<'static>>, key: &[u8]) -> Result<CertifiedKey, Error> {
    let unusable = |error: RustlsError| {
        failed(format!(
            "the client certificate and its key cannot be used: {error}"
        ))
    };
    let key = any_supported_type(&*parse_key(key)?).map_err(unusable)?;
    let certified = CertifiedKey::new(certificates, key);
    match certified.keys_match() {
        Ok(()) | Err(RustlsError::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(error) => Err(unusable(error)),
    }
}

fn parse_key(pem: &[u8]) -> Result<Zeroizing<PrivateKeyDer<'static>>, Error> {
    // The parser's own words may hold parts of the key.
    PrivateKeyDer::from_pem_slice(pem)
        .map(Zeroizing::new)
        .map_err(|_| failed("the client's key is not PEM, or of no known kind"))
}

fn add_roots(roots: &mut RootCertStore, pem: &[u8]) -> Result<(), Error> {
    for certificate in parse_certificates(pem, "the authority's certificate")? {
        roots.add(certificate).map_err(|error| {
            failed(format!(
                "the authority's certificate cannot be used: {error}"
            ))
        })?;
    }
    Ok(())
}

fn parse_certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => {
            Err(failed(format!("{what}: there is none in the PEM text")))
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(failed(format!("{what} is not PEM ({error})"))),
    }
}

fn add_system_roots(
    roots: &mut RootCertStore,
    certificates: &[CertificateDer<'static>],
) -> Result<(), Error> {
    // Systems carry the odd certificate that nobody can use: the others count.
    let (added, _) = roots.add_parsable_certificates(certificates.iter().cloned());
    if added == 0 {
        return Err(failed(
            "the system has no certificate authorities; give one with `ca_file` or `ca_pem`",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use zeroize::ZeroizeOnDrop;

    use super::*;

    #[test]
    fn every_endpoint_has_its_own_name() {
        let options = TlsOptions::new()
            .server_name("https://10.0.0.1:2379", "one.example")
            .server_name("10.0.0.2", "two.example");
        let tls = Tls::new(options);
        for (endpoint, name) in [
            ("https://10.0.0.1:2379", "one.example"),
            ("https://10.0.0.2:2379", "two.example"),
            ("https://10.0.0.3:2379", "10.0.0.3"),
            ("unixs:///run/etcd.sock", "localhost"),
        ] {
            let endpoint = Endpoint::parse(endpoint).unwrap();
            assert_eq!(tls.server_name(&endpoint).unwrap().to_str(), name);
        }
    }

    #[test]
    fn what_holds_a_key_wipes_it() {
        fn wiped<T: ZeroizeOnDrop>(_: fn(&[u8]) -> Result<T, Error>) {}
        wiped(parse_key);
    }
}
