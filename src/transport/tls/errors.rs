//! Errors of TLS handshakes.
//!
//! Failures that a retry cannot fix are [`ErrorKind::TlsFailed`]: a rejected certificate, a server without TLS,
//! unusable options. A lost connection is [`ErrorKind::ConnectionLost`].

use std::{borrow::Cow, io};

use tokio_rustls::rustls::{
    AlertDescription, CertificateError, Error as RustlsError, pki_types::ServerName,
};

use crate::error::{Error, ErrorKind, Outcome};

/// Alerts by which a server rejects the client certificate.
const CERTIFICATE_ALERTS: [AlertDescription; 5] = [
    AlertDescription::CertificateRequired,
    AlertDescription::BadCertificate,
    AlertDescription::UnknownCA,
    AlertDescription::CertificateUnknown,
    AlertDescription::CertificateExpired,
];

const CERTIFICATE_MISSING: &str = "the server requires a client certificate, and none was given";

/// Whether a server received a client certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientCertificate {
    Sent,
    /// The server requested one, and none was configured.
    Missing,
    NotRequested,
}

/// Returns why the server rejected the client certificate, if the alert means that.
fn certificate_rejection(
    alert: AlertDescription,
    certificate: ClientCertificate,
) -> Option<&'static str> {
    let missing = certificate == ClientCertificate::Missing;
    match alert {
        AlertDescription::CertificateRequired => Some(CERTIFICATE_MISSING),
        // TLS 1.2 has no alert for a missing certificate; servers send one of these.
        AlertDescription::BadCertificate | AlertDescription::HandshakeFailure if missing => {
            Some(CERTIFICATE_MISSING)
        }
        AlertDescription::BadCertificate
        | AlertDescription::UnknownCA
        | AlertDescription::CertificateUnknown => {
            Some("the server does not accept the client certificate")
        }
        AlertDescription::CertificateExpired => Some("the client certificate has expired"),
        _ => None,
    }
}

/// Names the client certificate as the likely cause of a connection that was lost between the handshake and the first
/// response. Returns other errors unchanged.
pub(super) fn after_handshake(error: Error, certificate: ClientCertificate) -> Error {
    // The alert is wrapped in I/O errors of several layers; their debug output contains it.
    let printed = format!("{error:?}");
    let alert = CERTIFICATE_ALERTS
        .into_iter()
        .find(|alert| printed.contains(&format!("alert: {alert:?}")));
    if let Some(reason) = alert.and_then(|alert| certificate_rejection(alert, certificate)) {
        return tls_failed(reason).with_source(error);
    }
    if error.kind() != ErrorKind::ConnectionLost {
        return error;
    }
    let reason = match certificate {
        ClientCertificate::Missing => {
            "the server closed the connection after the TLS handshake; it may require a client \
             certificate, and none was given"
        }
        ClientCertificate::Sent => {
            "the server closed the connection after the TLS handshake; it may not accept the client \
             certificate"
        }
        ClientCertificate::NotRequested => return error,
    };
    connection_lost(reason).with_source(error)
}

/// Returns an error that a retry cannot fix.
pub(super) fn tls_failed(reason: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::TlsFailed, Outcome::NotSent, reason)
}

/// Returns an error that a retry may fix.
fn connection_lost(reason: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::ConnectionLost, Outcome::NotSent, reason)
}

/// Returns the error of a failed handshake with the server `name`.
pub(super) fn handshake_failed(
    error: &io::Error,
    name: &ServerName<'_>,
    certificate: ClientCertificate,
) -> Error {
    let rustls_error = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<RustlsError>());
    match rustls_error {
        Some(RustlsError::InvalidCertificate(problem)) => {
            tls_failed(server_certificate_problem(problem, name))
        }
        Some(RustlsError::AlertReceived(alert)) => {
            match certificate_rejection(*alert, certificate) {
                Some(reason) => tls_failed(reason),
                // The server failed to load its own certificate, perhaps while it is being replaced.
                None if *alert == AlertDescription::InternalError => {
                    connection_lost("the server failed during the TLS handshake")
                }
                None => tls_failed(format!(
                    "the TLS handshake failed: the server sent the alert {alert:?}"
                )),
            }
        }
        Some(RustlsError::InvalidMessage(_)) => {
            tls_failed("the server does not use TLS; connect to it with http://")
        }
        Some(other) => tls_failed(format!("the TLS handshake failed: {other}")),
        None => connection_lost(format!(
            "the connection was lost during the TLS handshake ({error}); connect with http:// if the server does not \
             use TLS"
        )),
    }
}

fn server_certificate_problem(
    problem: &CertificateError,
    name: &ServerName<'_>,
) -> Cow<'static, str> {
    match problem {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the server's certificate has expired".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet".into()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            let name = name.to_str();
            format!("the server's certificate is for other names than `{name}`").into()
        }
        CertificateError::UnknownIssuer => {
            "the server's certificate was signed by an unknown authority".into()
        }
        CertificateError::BadSignature => {
            "the server's certificate was signed by an unknown authority that has the name of a known one"
                .into()
        }
        other => format!("the server's certificate is not accepted: {other}").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handshake_alert(alert: AlertDescription, certificate: ClientCertificate) -> Error {
        let error = io::Error::other(RustlsError::AlertReceived(alert));
        handshake_failed(&error, &ServerName::try_from("a").unwrap(), certificate)
    }

    #[test]
    fn tls_1_2_alerts_for_missing_certificate_are_recognized() {
        use AlertDescription::{BadCertificate, HandshakeFailure};
        use ClientCertificate::{Missing, NotRequested, Sent};
        for (alert, certificate, expected) in [
            (BadCertificate, Missing, CERTIFICATE_MISSING),
            (HandshakeFailure, Missing, CERTIFICATE_MISSING),
            (
                BadCertificate,
                Sent,
                "does not accept the client certificate",
            ),
            (
                HandshakeFailure,
                NotRequested,
                "the server sent the alert HandshakeFailure",
            ),
        ] {
            let error = handshake_alert(alert, certificate);
            assert!(error.to_string().contains(expected), "{error}");
            assert_eq!(error.kind(), ErrorKind::TlsFailed);
        }
    }

    #[test]
    fn retryable_handshake_failures_are_connection_losses() {
        let eof = io::Error::from(io::ErrorKind::UnexpectedEof);
        let name = ServerName::try_from("a").unwrap();
        let eof = handshake_failed(&eof, &name, ClientCertificate::Missing);
        let internal = handshake_alert(AlertDescription::InternalError, ClientCertificate::Missing);
        for error in [eof, internal] {
            assert_eq!(error.kind(), ErrorKind::ConnectionLost, "{error}");
        }
    }
}
