//! Certificates and keys in PEM, and where they come from.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use zeroize::Zeroizing;

use super::errors::tls_failed;
use crate::error::Error;

/// Source of certificates.
#[derive(Clone)]
pub(super) enum PemSource {
    Memory(Vec<u8>),
    File(PathBuf),
}

impl fmt::Debug for PemSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(_) => f.write_str("<pem>"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Source of a private key.
#[derive(Clone)]
pub(super) enum SecretSource {
    Memory(Zeroizing<Vec<u8>>),
    File(PathBuf),
}

impl fmt::Debug for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(_) => f.write_str("<hidden>"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// All certificates and keys for one handshake.
#[derive(PartialEq)]
pub(super) struct TlsFiles {
    pub(super) authorities: Authorities,
    pub(super) client: Option<ClientIdentity>,
}

/// Certificate authorities to trust.
#[derive(PartialEq)]
pub(super) enum Authorities {
    System(Vec<CertificateDer<'static>>),
    Given(Vec<Pem>),
}

/// The client certificate and its key.
#[derive(PartialEq)]
pub(super) struct ClientIdentity {
    pub(super) certificate: Pem,
    pub(super) key: SecretPem,
}

/// Certificates in PEM.
#[derive(PartialEq)]
pub(super) struct Pem {
    /// File path, or the role of a PEM text given in memory. For error messages.
    pub(super) origin: String,
    bytes: Vec<u8>,
}

impl Pem {
    /// Reads certificates. `role` names the certificates in error messages.
    pub(super) fn read(source: &PemSource, role: &str) -> Result<Self, Error> {
        Ok(match source {
            PemSource::Memory(pem) => Self {
                origin: in_memory(role),
                bytes: pem.clone(),
            },
            PemSource::File(path) => Self {
                origin: path.display().to_string(),
                bytes: read_file(path)?,
            },
        })
    }

    /// Returns the certificates. Fails if there is none.
    pub(super) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, Error> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        let origin = &self.origin;
        match certificates {
            Ok(certificates) if certificates.is_empty() => {
                Err(tls_failed(format!("no certificate found in {origin}")))
            }
            Ok(certificates) => Ok(certificates),
            Err(error) => Err(tls_failed(format!("{origin} is not valid PEM ({error})"))),
        }
    }
}

/// A private key in PEM, wiped from memory when dropped.
#[derive(PartialEq)]
pub(super) struct SecretPem {
    /// File path, or the role of a PEM text given in memory. For error messages.
    origin: String,
    pub(super) bytes: Zeroizing<Vec<u8>>,
}

impl SecretPem {
    /// Reads a key. `role` names the key in error messages.
    pub(super) fn read(source: &SecretSource, role: &str) -> Result<Self, Error> {
        Ok(match source {
            SecretSource::Memory(pem) => Self {
                origin: in_memory(role),
                bytes: pem.clone(),
            },
            SecretSource::File(path) => Self {
                origin: path.display().to_string(),
                bytes: Zeroizing::new(read_file(path)?),
            },
        })
    }

    /// Returns the private key. Fails if there is none of a supported type.
    pub(super) fn private_key(&self) -> Result<Zeroizing<PrivateKeyDer<'static>>, Error> {
        // The parser's error may contain parts of the key.
        PrivateKeyDer::from_pem_slice(&self.bytes)
            .map(Zeroizing::new)
            .map_err(|_| tls_failed(format!("no valid private key found in {}", self.origin)))
    }
}

fn in_memory(role: &str) -> String {
    format!("{role} given in memory")
}

fn read_file(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path)
        .map_err(|error| tls_failed(format!("{} cannot be read: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use zeroize::ZeroizeOnDrop;

    use super::*;

    #[test]
    fn parsed_private_key_is_wiped_on_drop() {
        fn assert_wiped<T: ZeroizeOnDrop>(_: fn(&SecretPem) -> Result<T, Error>) {}
        assert_wiped(SecretPem::private_key);
    }

    #[test]
    fn missing_certificate_error_names_its_origin() {
        let certificates = |source| Pem::read(&source, "the CA certificate")?.certificates();
        let error = certificates(PemSource::Memory(b"nonsense".to_vec())).unwrap_err();
        let expected = "no certificate found in the CA certificate given in memory";
        assert_eq!(error.brief(), expected);
        let path = std::env::temp_dir().join(format!("empty-{}.pem", std::process::id()));
        fs::write(&path, "").unwrap();
        let error = certificates(PemSource::File(path.clone())).unwrap_err();
        fs::remove_file(&path).unwrap();
        let expected = format!("no certificate found in {}", path.display());
        assert_eq!(error.brief(), expected);
    }
}
