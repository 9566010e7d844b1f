//! Encrypted connections with rustls.
//!
//! Files are read at every handshake, so certificates that were replaced count from the next connection on. What cannot
//! be read or parsed then (a file that is just being written) leaves the last good settings in force.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        AlertDescription, CertificateError, ClientConfig, Error as RustlsError, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};

use super::{
    endpoint::{Endpoint, Target},
    tls_options::{Authorities, Material, TlsOptions},
};
use crate::error::{Error, ErrorKind, Outcome};

/// How a client encrypts, and the settings that were last made of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tls {
    options: Arc<TlsOptions>,
    last: Arc<Mutex<Option<Prepared>>>,
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
            last: Arc::default(),
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
            .map_err(|error| refused(&error, &name))
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
        let (options, last) = (self.options.clone(), self.last());
        // Files and the system's authorities are on a disk that may be slow.
        let prepared = tokio::task::spawn_blocking(move || prepare(&options, last))
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
        let shown = format!("{error:?}");
        let alert = |alert: AlertDescription| shown.contains(&format!("alert: {alert:?}"));
        let anonymous = !self.options.has_client_certificate();
        let text = if alert(AlertDescription::CertificateRequired)
            || (anonymous && alert(AlertDescription::BadCertificate))
        {
            "the server wants a client certificate, and none was given"
        } else if alert(AlertDescription::BadCertificate)
            || alert(AlertDescription::UnknownCA)
            || alert(AlertDescription::CertificateUnknown)
        {
            "the server does not accept the client certificate"
        } else if alert(AlertDescription::CertificateExpired) {
            "the client certificate has expired"
        } else if anonymous && error.kind() == ErrorKind::ConnectionLost {
            "the server closed the connection after the handshake: it may want a client certificate, and none was given"
        } else if error.kind() == ErrorKind::ConnectionLost {
            "the server closed the connection after the handshake: it may not accept the client certificate"
        } else {
            return error;
        };
        failed(text).with_source(error)
    }
}

fn prepare(options: &TlsOptions, last: Option<Prepared>) -> Result<Prepared, Error> {
    let material = options.read()?;
    match last {
        Some(last) if *last.material == material => Ok(last),
        _ => Ok(Prepared {
            config: Arc::new(configure(&material)?),
            material: Arc::new(material),
        }),
    }
}

fn configure(material: &Material) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    match &material.authorities {
        Authorities::System => add_system_roots(&mut roots)?,
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
        None => builder.with_no_client_auth(),
        Some((certificates, key)) => {
            let certificates = parse_certificates(certificates, "the client certificate")?;
            // The parser's own words may hold parts of the key.
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|_| failed("the client's key is not PEM, or of no known kind"))?;
            builder
                .with_client_auth_cert(certificates, key)
                .map_err(|error| {
                    failed(format!(
                        "the client certificate and its key cannot be used: {error}"
                    ))
                })?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
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

fn add_system_roots(roots: &mut RootCertStore) -> Result<(), Error> {
    let found = rustls_native_certs::load_native_certs();
    // Systems carry the odd certificate that nobody can use: the others count.
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        return Err(failed(
            "the system has no certificate authorities; give one with `ca_file` or `ca_pem`",
        ));
    }
    Ok(())
}

fn failed(text: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::TlsFailed, Outcome::NotSent, text)
}

/// What a failed handshake means, in words that tell the cases apart.
fn refused(error: &io::Error, name: &ServerName<'_>) -> Error {
    let name = name.to_str();
    let rustls = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<RustlsError>());
    let text = match rustls {
        Some(RustlsError::InvalidCertificate(why)) => match why {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the server's certificate has expired".to_owned()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the server's certificate is not valid yet".to_owned()
            }
            CertificateError::NotValidForName
            | CertificateError::NotValidForNameContext { .. } => {
                format!("the server's certificate is for other names than `{name}`")
            }
            CertificateError::UnknownIssuer => {
                "the server's certificate was signed by an unknown authority".to_owned()
            }
            CertificateError::BadSignature => {
                "the server's certificate was signed by an unknown authority with the name of a known one"
                    .to_owned()
            }
            other => format!("the server's certificate is not accepted: {other}"),
        },
        Some(RustlsError::AlertReceived(AlertDescription::CertificateRequired)) => {
            "the server wants a client certificate, and none was given".to_owned()
        }
        Some(RustlsError::InvalidMessage(_)) => {
            "the server does not speak TLS; is it http://?".to_owned()
        }
        Some(other) => format!("the handshake failed: {other}"),
        None => {
            format!("it ended during the handshake ({error}); is it plain text (http://)?")
        }
    };
    failed(text)
}
