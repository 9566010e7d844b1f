//! What goes wrong with TLS, in words that tell the cases apart.
//!
//! What no retry changes is [`ErrorKind::TlsFailed`]: a certificate that is refused, a server that speaks no TLS, options
//! that cannot be used. A connection that broke, for whatever reason, is [`ErrorKind::ConnectionLost`].

use std::{borrow::Cow, io};

use tokio_rustls::rustls::{
    AlertDescription, CertificateError, Error as RustlsError, pki_types::ServerName,
};

use crate::error::{Error, ErrorKind, Outcome};

/// What a server says of the client's certificate.
const CLIENT_ALERTS: [AlertDescription; 5] = [
    AlertDescription::CertificateRequired,
    AlertDescription::BadCertificate,
    AlertDescription::UnknownCA,
    AlertDescription::CertificateUnknown,
    AlertDescription::CertificateExpired,
];

const MISSING: &str = "the server wants a client certificate, and none was given";

/// Before TLS 1.3 there is no alert for a missing certificate: servers choose one of two others.
fn client_refused(alert: AlertDescription, missing: bool) -> Option<&'static str> {
    match alert {
        AlertDescription::CertificateRequired => Some(MISSING),
        AlertDescription::BadCertificate | AlertDescription::HandshakeFailure if missing => {
            Some(MISSING)
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

/// What a connection that broke after the handshake says of the certificates: of one that is `missing`, or was `given`.
pub(super) fn after_handshake(error: Error, missing: bool, given: bool) -> Error {
    let shown = format!("{error:?}");
    let alert = CLIENT_ALERTS
        .into_iter()
        .find(|alert| shown.contains(&format!("alert: {alert:?}")));
    if let Some(text) = alert.and_then(|alert| client_refused(alert, missing)) {
        return failed(text).with_source(error);
    }
    let text = if error.kind() != ErrorKind::ConnectionLost {
        return error;
    } else if missing {
        "the server closed the connection after the handshake: it may want a client certificate, and none was given"
    } else if given {
        "the server closed the connection after the handshake: it may not accept the client certificate"
    } else {
        return error;
    };
    broken(text).with_source(error)
}

/// What no retry changes.
pub(super) fn failed(text: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::TlsFailed, Outcome::NotSent, text)
}

/// What may be better the next time.
fn broken(text: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::ConnectionLost, Outcome::NotSent, text)
}

/// What a failed handshake means. `missing` says that the server asked for a certificate, and there was none.
pub(super) fn refused(error: &io::Error, name: &ServerName<'_>, missing: bool) -> Error {
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
        Some(RustlsError::AlertReceived(alert)) => match client_refused(*alert, missing) {
            Some(text) => text.to_owned(),
            // A server that cannot read its own certificate, which may be just being replaced.
            None if *alert == AlertDescription::InternalError => {
                return broken("the server failed during the handshake");
            }
            None => format!("the handshake failed: the server says {alert:?}"),
        },
        Some(RustlsError::InvalidMessage(_)) => {
            "the server does not speak TLS; is it http://?".to_owned()
        }
        Some(other) => format!("the handshake failed: {other}"),
        None => {
            return broken(format!(
                "it ended during the handshake ({error}); is it plain text (http://)?"
            ));
        }
    };
    failed(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alerted(alert: AlertDescription, missing: bool) -> Error {
        let error = io::Error::other(RustlsError::AlertReceived(alert));
        refused(&error, &ServerName::try_from("a").unwrap(), missing)
    }

    #[test]
    fn a_server_of_tls_1_2_that_misses_a_certificate_is_understood() {
        use AlertDescription::{BadCertificate, HandshakeFailure};
        for (alert, missing, expected) in [
            (BadCertificate, true, MISSING),
            (HandshakeFailure, true, MISSING),
            (
                BadCertificate,
                false,
                "does not accept the client certificate",
            ),
            (HandshakeFailure, false, "the server says HandshakeFailure"),
        ] {
            let error = alerted(alert, missing);
            assert!(error.to_string().contains(expected), "{error}");
            assert_eq!(error.kind(), ErrorKind::TlsFailed);
        }
    }

    #[test]
    fn what_may_be_better_the_next_time_is_not_a_failure_of_tls() {
        let ended = io::Error::from(io::ErrorKind::UnexpectedEof);
        let ended = refused(&ended, &ServerName::try_from("a").unwrap(), true);
        let busy = alerted(AlertDescription::InternalError, true);
        for error in [ended, busy] {
            assert_eq!(error.kind(), ErrorKind::ConnectionLost, "{error}");
        }
    }
}
