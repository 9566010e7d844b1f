//! Encrypted connections with rustls.
//!
//! Certificates are read again for every handshake, from files and from the system, so replaced certificates apply to
//! the next connection. If reading or parsing fails, for example because a file is just being written, the last working
//! configuration stays in use.

mod errors;
mod options;
mod pem;

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
        pki_types::{CertificateDer, ServerName},
        sign::{CertifiedKey, SingleCertAndKey},
    },
};

use self::{
    errors::{ClientCertificate, handshake_failed, tls_failed},
    pem::{Authorities, ClientIdentity, Pem, TlsFiles},
};
use super::endpoint::{Endpoint, Target};
use crate::error::Error;

/// TLS settings of a client, with the last working configuration.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tls {
    options: Arc<TlsOptions>,
    last: Arc<Mutex<Option<LoadedConfig>>>,
    no_certificate: Arc<NoCertificate>,
}

/// Used instead of a client certificate. Records whether a server requested one.
#[derive(Debug, Default)]
struct NoCertificate {
    requested: AtomicBool,
}

impl ResolvesClientCert for NoCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.requested.store(true, Ordering::Relaxed);
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// A rustls configuration and the files it was created from.
#[derive(Clone)]
struct LoadedConfig {
    files: Arc<TlsFiles>,
    config: Arc<ClientConfig>,
}

impl std::fmt::Debug for LoadedConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LoadedConfig(..)")
    }
}

impl Tls {
    pub(crate) fn new(options: TlsOptions) -> Self {
        Self {
            options: Arc::new(options),
            ..Self::default()
        }
    }

    /// Returns whether unencrypted endpoints are allowed next to encrypted ones.
    pub(crate) fn allows_plain(&self) -> bool {
        self.options.allow_plain
    }

    /// Performs the TLS handshake on a new connection.
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
            .map_err(|error| handshake_failed(&error, &name, self.client_certificate()))
    }

    /// Adds the likely cause to the error of a connection that was lost before its first response. In TLS 1.3 a server
    /// rejects the client certificate only after the handshake.
    pub(crate) fn explain_disconnect(&self, error: Error) -> Error {
        errors::after_handshake(error, self.client_certificate())
    }

    fn client_certificate(&self) -> ClientCertificate {
        if self.options.has_client_certificate() {
            ClientCertificate::Sent
        } else if self.no_certificate.requested.load(Ordering::Relaxed) {
            ClientCertificate::Missing
        } else {
            ClientCertificate::NotRequested
        }
    }

    fn server_name(&self, endpoint: &Endpoint) -> Result<ServerName<'static>, Error> {
        let configured = self.options.server_names.get(endpoint);
        let host = match (configured, endpoint.target()) {
            (Some(name), _) => name.as_str(),
            (None, Target::Tcp { host, .. }) => host,
            (None, Target::Unix(_)) => "localhost",
        };
        ServerName::try_from(host.to_owned()).map_err(|_| {
            tls_failed(format!(
                "`{host}` is not a host name that a certificate can be verified against"
            ))
        })
    }

    async fn config(&self) -> Result<Arc<ClientConfig>, Error> {
        let options = self.options.clone();
        let no_certificate = self.no_certificate.clone();
        let last = self.last();
        // Reading certificates blocks on the disk.
        let loaded = tokio::task::spawn_blocking(move || load(&options, no_certificate, last))
            .await
            .map_err(|error| tls_failed("the certificates could not be read").with_source(error))?;
        match (loaded, self.last()) {
            (Ok(loaded), _) => {
                let config = loaded.config.clone();
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(loaded);
                Ok(config)
            }
            (Err(error), Some(last)) => {
                tracing::warn!(%error, "certificates could not be loaded; previous ones kept");
                Ok(last.config)
            }
            (Err(error), None) => Err(error),
        }
    }

    fn last(&self) -> Option<LoadedConfig> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.clone()
    }
}

/// Reads all certificates. Returns the last configuration if they have not changed.
fn load(
    options: &TlsOptions,
    no_certificate: Arc<NoCertificate>,
    last: Option<LoadedConfig>,
) -> Result<LoadedConfig, Error> {
    let files = options.read()?;
    match last {
        Some(last) if *last.files == files => Ok(last),
        _ => Ok(LoadedConfig {
            config: Arc::new(configure(&files, no_certificate)?),
            files: Arc::new(files),
        }),
    }
}

fn configure(files: &TlsFiles, no_certificate: Arc<NoCertificate>) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    match &files.authorities {
        Authorities::System(certificates) => add_system_roots(&mut roots, certificates)?,
        Authorities::Given(pems) => {
            for pem in pems {
                add_roots(&mut roots, pem)?;
            }
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| tls_failed(error.to_string()))?
        .with_root_certificates(roots);
    let mut config = match &files.client {
        None => builder.with_client_cert_resolver(no_certificate),
        Some(client) => {
            let certified = certified_key(client)?;
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// Pairs the client certificate with its key. rustls' own builder would leave the bytes of the key in memory.
fn certified_key(client: &ClientIdentity) -> Result<CertifiedKey, Error> {
    let unusable = |error: RustlsError| {
        tls_failed(format!(
            "the client certificate and its key cannot be used: {error}"
        ))
    };
    let certificates = client.certificate.certificates()?;
    let key = any_supported_type(&*client.key.private_key()?).map_err(unusable)?;
    let certified = CertifiedKey::new(certificates, key);
    match certified.keys_match() {
        Ok(()) | Err(RustlsError::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(error) => Err(unusable(error)),
    }
}

fn add_roots(roots: &mut RootCertStore, pem: &Pem) -> Result<(), Error> {
    for certificate in pem.certificates()? {
        roots.add(certificate).map_err(|error| {
            let origin = &pem.origin;
            tls_failed(format!("a certificate in {origin} cannot be used: {error}"))
        })?;
    }
    Ok(())
}

fn add_system_roots(
    roots: &mut RootCertStore,
    certificates: &[CertificateDer<'static>],
) -> Result<(), Error> {
    // Some system certificates cannot be parsed by rustls. They are ignored.
    let (added, _) = roots.add_parsable_certificates(certificates.iter().cloned());
    if added == 0 {
        return Err(tls_failed(
            "the system has no certificate authorities; set one with `ca_file` or `ca_pem`",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_name_is_set_per_endpoint() {
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
}
