//! Certificates and keys made for one test: good ones, and bad ones in every way that matters.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

const SERVER_CERTIFICATE: &str = "server.crt";
const SERVER_KEY: &str = "server.key";
const CLIENT_AUTHORITY: &str = "client-ca.crt";
const TOKEN_KEY: &str = "token.key";
const TOKEN_PUBLIC_KEY: &str = "token.pub";

/// Who signs certificates. Another one is an unknown authority to those who trust this one.
#[derive(Debug)]
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The certificate.
    pub certificate: String,
    /// Its private key (PKCS #8).
    pub key: String,
}

impl Authority {
    /// A new authority.
    pub fn new() -> Self {
        let mut params = params("testbed authority", &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key can be made");
        let pem = params
            .self_signed(&key)
            .expect("an authority signs itself")
            .pem();
        Self {
            pem,
            issuer: Issuer::new(params, key),
        }
    }

    /// Its own certificate in PEM, for those who are to trust it.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A certificate for the servers here: `127.0.0.1`, `::1` and `localhost`.
    pub fn server(&self) -> Certificate {
        self.server_named(&["127.0.0.1", "::1", "localhost"])
    }

    /// A server certificate for other names: a wrong one, for a client that comes to 127.0.0.1.
    pub fn server_named(&self, names: &[&str]) -> Certificate {
        self.sign(&params("testbed server", names))
    }

    /// A server certificate that is long past its end.
    pub fn expired_server(&self) -> Certificate {
        let mut params = params("testbed server", &["127.0.0.1", "::1", "localhost"]);
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(2001, 1, 1);
        self.sign(&params)
    }

    /// A client's certificate; its common name is the user where etcd authenticates by certificate.
    pub fn client(&self, common_name: &str) -> Certificate {
        self.sign(&params(common_name, &[]))
    }

    fn sign(&self, params: &CertificateParams) -> Certificate {
        let key = KeyPair::generate().expect("a key can be made");
        let certificate = params
            .signed_by(&key, &self.issuer)
            .expect("an authority signs a certificate");
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

/// How clients must speak TLS.
#[derive(Clone, Debug)]
pub struct Tls {
    server: Certificate,
    clients: Option<String>,
}

impl Tls {
    /// The servers have a certificate of this authority; clients need none.
    pub fn server(authority: &Authority) -> Self {
        Self {
            server: authority.server(),
            clients: None,
        }
    }

    /// Clients need a certificate of this authority as well.
    pub fn mutual(authority: &Authority) -> Self {
        Self {
            server: authority.server(),
            clients: Some(authority.pem.clone()),
        }
    }

    /// The servers have this certificate instead, for instance an expired one.
    pub fn with_certificate(mut self, server: Certificate) -> Self {
        self.server = server;
        self
    }

    pub(crate) fn write(&self, folder: &Path) {
        self.server.write(folder);
        if let Some(authority) = &self.clients {
            write(folder, CLIENT_AUTHORITY, authority);
        }
    }

    pub(crate) fn flags(&self, folder: &Path) -> Vec<String> {
        let file = |flag: &str, name: &str| format!("--{flag}={}", folder.join(name).display());
        let mut flags = vec![
            file("cert-file", SERVER_CERTIFICATE),
            file("key-file", SERVER_KEY),
        ];
        if self.clients.is_some() {
            flags.push("--client-cert-auth".to_owned());
            flags.push(file("trusted-ca-file", CLIENT_AUTHORITY));
        }
        flags
    }
}

/// Makes the keys a cluster signs its tokens with.
pub(crate) fn write_token_keys(folder: &Path) {
    let key = KeyPair::generate().expect("a key can be made");
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
    let mut params = CertificateParams::new(names).expect("names of a certificate are valid");
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
    let beside = folder.join(format!("{name}.new"));
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, folder.join(name)));
    written.unwrap_or_else(|why| panic!("{name} can't be written: {why}"));
}
