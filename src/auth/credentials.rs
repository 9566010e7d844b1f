//! Credentials of a client, and the providers that return them.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use prost::Message;
use zeroize::Zeroizing;

/// A user name and a password, or a token. Passwords and tokens are never printed, and are wiped from memory when
/// dropped.
#[derive(Clone)]
pub struct Credentials(pub(super) Secret);

#[derive(Clone)]
pub(super) enum Secret {
    Password {
        user: String,
        password: Zeroizing<String>,
    },
    Token(Zeroizing<String>),
}

impl Credentials {
    /// Logs in as a user of the cluster, with its password.
    pub fn password(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self(Secret::Password {
            user: user.into(),
            password: Zeroizing::new(password.into()),
        })
    }

    /// Uses a token without logging in, such as a JWT signed with a key that the cluster accepts.
    pub fn token(token: impl Into<String>) -> Self {
        Self(Secret::Token(Zeroizing::new(token.into())))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Secret::Password { user, .. } => {
                write!(f, "Credentials(user {user:?}, password <hidden>)")
            }
            Secret::Token(_) => f.write_str("Credentials(token <hidden>)"),
        }
    }
}

type BoxedError = Box<dyn std::error::Error + Send + Sync>;
type CredentialsFuture = Pin<Box<dyn Future<Output = Result<Credentials, BoxedError>> + Send>>;

/// A function that returns the credentials for each login.
#[derive(Clone)]
pub(crate) struct CredentialsProvider(Arc<dyn Fn() -> CredentialsFuture + Send + Sync>);

impl CredentialsProvider {
    pub(crate) fn new<F, R, E>(provide: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<BoxedError>,
    {
        Self(Arc::new(move || {
            let credentials = provide();
            Box::pin(async move { credentials.await.map_err(Into::into) })
        }))
    }

    /// Provides the same credentials every time.
    pub(crate) fn fixed(credentials: Credentials) -> Self {
        Self(Arc::new(move || {
            let credentials = credentials.clone();
            Box::pin(async move { Ok(credentials) })
        }))
    }

    pub(super) fn provide(&self) -> CredentialsFuture {
        (self.0)()
    }
}

/// How a client authenticates.
#[derive(Clone, Default)]
pub(crate) enum AuthMethod {
    /// Requests carry no token.
    #[default]
    Anonymous,
    /// Requests carry this token, which is never renewed.
    FixedToken(Zeroizing<String>),
    /// The client logs in, and renews its token.
    Login(CredentialsProvider),
}

impl fmt::Debug for AuthMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Anonymous => "Anonymous",
            Self::FixedToken(_) => "FixedToken(<hidden>)",
            Self::Login(_) => "Login(<hidden>)",
        })
    }
}

/// Encodes a message that contains a secret as a gRPC frame. The bytes are wiped from memory when dropped.
pub(crate) fn secret_body(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut body = Vec::with_capacity(5 + length);
    body.push(0);
    // The server rejects the wrong length of a frame above 4 GiB.
    body.extend(u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    message.encode_raw(&mut body);
    Bytes::from_owner(Zeroizing::new(body))
}

#[cfg(test)]
mod tests {
    use zeroize::ZeroizeOnDrop;

    use super::*;
    use crate::{proto::AuthenticateRequest, transport::grpc};

    #[test]
    fn secrets_are_never_printed() {
        let all = [
            Credentials::password("ann", "correct horse"),
            Credentials::token("correct horse"),
        ];
        for credentials in all {
            assert!(!format!("{credentials:?}").contains("horse"));
            let method = AuthMethod::Login(CredentialsProvider::fixed(credentials));
            assert!(!format!("{method:?}").contains("horse"));
        }
        let method = AuthMethod::FixedToken(Zeroizing::new("correct horse".to_owned()));
        assert!(!format!("{method:?}").contains("horse"));
    }

    #[test]
    fn secrets_are_wiped_when_dropped() {
        fn is_wiped(_: &impl ZeroizeOnDrop) {}
        for credentials in [
            Credentials::password("ann", "correct horse"),
            Credentials::token("correct horse"),
        ] {
            match &credentials.0 {
                Secret::Password { password, .. } => is_wiped(password),
                Secret::Token(token) => is_wiped(token),
            }
        }
        if let AuthMethod::FixedToken(token) = AuthMethod::FixedToken(Zeroizing::default()) {
            is_wiped(&token);
        }
    }

    #[test]
    fn secret_message_is_framed_like_any_other() {
        let message = AuthenticateRequest {
            name: "ann".into(),
            password: "correct horse".into(),
        };
        assert_eq!(secret_body(&message), grpc::encode(&message).unwrap());
    }
}
