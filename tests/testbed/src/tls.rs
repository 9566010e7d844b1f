//! Certificates and keys generated per test, valid and invalid.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

const SERVER_CERTIFICATE: &str = "server.crt";
const SERVER_KEY: &str = "server.key";
/// The authority of a [shared certificate](write_shared_certificate).
const AUTHORITY: &str = "ca.crt";
const CLIENT_AUTHORITY: &str = "client-ca.crt";
const TOKEN_KEY: &str = "token.key";
const TOKEN_PUBLIC_KEY: &str = "token.pub";

/// A certificate authority. Clients that trust one authority reject certificates of another.
#[derive(Debug)]
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its private key, in PEM.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The certificate.
    pub certificate: String,
    /// Its private key (PKCS #8).
    pub key: String,
}

impl Authority {
    /// Creates an authority.
    pub fn new() -> Self {
        let mut params = params("testbed authority", &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("generate a key");
        let pem = params
            .self_signed(&key)
            .expect("self-sign the authority")
            .pem();
        Self {
            pem,
            issuer: Issuer::new(params, key),
        }
    }

    /// Returns the certificate of the authority itself, in PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Creates a server certificate for `127.0.0.1`, `::1` and `localhost`.
    pub fn server(&self) -> Certificate {
        self.server_named(&["127.0.0.1", "::1", "localhost"])
    }

    /// Creates a server certificate for other names.
    pub fn server_named(&self, names: &[&str]) -> Certificate {
        self.sign(&params("testbed server", names))
    }

    /// Creates an expired server certificate.
    pub fn expired_server(&self) -> Certificate {
        let mut params = params("testbed server", &["127.0.0.1", "::1", "localhost"]);
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(2001, 1, 1);
        self.sign(&params)
    }

    /// Creates a client certificate. Where etcd authenticates by certificate, the common name is the user.
    pub fn client(&self, common_name: &str) -> Certificate {
        self.sign(&params(common_name, &[]))
    }

    fn sign(&self, params: &CertificateParams) -> Certificate {
        let key = KeyPair::generate().expect("generate a key");
        let certificate = params
            .signed_by(&key, &self.issuer)
            .expect("sign the certificate");
        Certificate {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Certificate {
    pub(crate) fn write(&self, folder: &Path) {
        write(folder, SERVER_CERTIFICATE, &self.certificate);
        write(folder, SERVER_KEY, &self.key);
    }
}

/// TLS setup of the client ports.
#[derive(Clone, Debug)]
pub struct Tls {
    server: Certificate,
    client_authority: Option<String>,
}

impl Tls {
    /// Servers have a certificate of the authority; clients need none.
    pub fn server(authority: &Authority) -> Self {
        Self {
            server: authority.server(),
            client_authority: None,
        }
    }

    /// Servers and clients have certificates of the authority.
    pub fn mutual(authority: &Authority) -> Self {
        Self {
            server: authority.server(),
            client_authority: Some(authority.pem.clone()),
        }
    }

    /// Replaces the server certificate, such as by an expired one.
    pub fn with_certificate(mut self, server: Certificate) -> Self {
        self.server = server;
        self
    }

    /// Returns TLS with the certificate in the folder that `ETCD_TLS` names, if it is set.
    pub(crate) fn from_env() -> Option<Self> {
        let folder = std::env::var_os("ETCD_TLS").filter(|folder| !folder.is_empty())?;
        let read = |name: &str| {
            let path = Path::new(&folder).join(name);
            fs::read_to_string(&path)
                .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
        };
        Some(Self {
            server: Certificate {
                certificate: read(SERVER_CERTIFICATE),
                key: read(SERVER_KEY),
            },
            client_authority: None,
        })
    }

    pub(crate) fn write(&self, folder: &Path) {
        self.server.write(folder);
        if let Some(authority) = &self.client_authority {
            write(folder, CLIENT_AUTHORITY, authority);
        }
    }

    pub(crate) fn flags(&self, folder: &Path) -> Vec<String> {
        let mut flags = server_flags(folder);
        if self.client_authority.is_some() {
            flags.push("--client-cert-auth".to_owned());
            flags.push(file_flag("trusted-ca-file", folder, CLIENT_AUTHORITY));
        }
        flags
    }
}

/// Returns the flags for the server certificate, which members and gRPC proxies share.
pub(crate) fn server_flags(folder: &Path) -> Vec<String> {
    vec![
        file_flag("cert-file", folder, SERVER_CERTIFICATE),
        file_flag("key-file", folder, SERVER_KEY),
    ]
}

fn file_flag(flag: &str, folder: &Path, name: &str) -> String {
    format!("--{flag}={}", folder.join(name).display())
}

/// Writes an authority and a server certificate, which all clusters use if `ETCD_TLS` is set to the folder.
pub fn write_shared_certificate(folder: &Path) {
    fs::create_dir_all(folder)
        .unwrap_or_else(|error| panic!("cannot create {}: {error}", folder.display()));
    let authority = Authority::new();
    authority.server().write(folder);
    write(folder, AUTHORITY, authority.pem());
}

/// Writes the key pair that signs the auth tokens.
pub(crate) fn write_token_keys(folder: &Path) {
    let key = KeyPair::generate().expect("generate a key");
    write(folder, TOKEN_KEY, &key.serialize_pem());
    write(folder, TOKEN_PUBLIC_KEY, &key.public_key_pem());
}

pub(crate) fn token_flag(folder: &Path, ttl: Duration) -> String {
    let (public, private) = (folder.join(TOKEN_PUBLIC_KEY), folder.join(TOKEN_KEY));
    let (public, private) = (public.display(), private.display());
    format!(
        "--auth-token=jwt,pub-key={public},priv-key={private},sign-method=ES256,ttl={}s",
        ttl.as_secs()
    )
}

fn params(common_name: &str, names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("valid subject names");
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params
}

fn write(folder: &Path, name: &str, text: &str) {
    let temporary = folder.join(format!("{name}.new"));
    let written =
        fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, folder.join(name)));
    written.unwrap_or_else(|error| panic!("cannot write {name}: {error}"));
}
