//! What a client logs in with.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use prost::Message;
use zeroize::Zeroizing;

/// A user and a password, or a token. Never printed, and wiped from memory when dropped.
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
    /// A user of the cluster and its password.
    pub fn password(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self(Secret::Password {
            user: user.into(),
            password: Zeroizing::new(password.into()),
        })
    }

    /// A token that was made elsewhere, such as a JWT signed with a key that the cluster knows.
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
type Given = Pin<Box<dyn Future<Output = Result<Credentials, BoxedError>> + Send>>;

/// Gives the credentials whenever the client has to log in.
#[derive(Clone)]
pub(crate) struct Provider(Arc<dyn Fn() -> Given + Send + Sync>);

impl Provider {
    pub(crate) fn new<F, R, E>(give: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<BoxedError>,
    {
        Self(Arc::new(move || {
            let given = give();
            Box::pin(async move { given.await.map_err(Into::into) })
        }))
    }

    pub(crate) fn always(credentials: Credentials) -> Self {
        Self(Arc::new(move || {
            let credentials = credentials.clone();
            Box::pin(async move { Ok(credentials) })
        }))
    }

    pub(super) fn give(&self) -> Given {
        (self.0)()
    }
}

/// Whether and how a client logs in.
#[derive(Clone, Default)]
pub(crate) enum Login {
    #[default]
    Anonymous,
    /// One token for the client's whole life.
    Token(Zeroizing<String>),
    Provided(Provider),
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Anonymous => "Anonymous",
            Self::Token(_) => "Token(<hidden>)",
            Self::Provided(_) => "Provided(<hidden>)",
        })
    }
}

/// A message with a secret in it, ready to be sent, wiped from memory when the last user drops it.
pub(crate) fn secret_body(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut body = Vec::with_capacity(5 + length);
    body.push(0);
    // A password of 4 GiB is cut off here and refused by the server.
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
    fn nothing_that_holds_a_secret_prints_it() {
        let both = [
            Credentials::password("ann", "correct horse"),
            Credentials::token("correct horse"),
        ];
        for credentials in both {
            assert!(!format!("{credentials:?}").contains("horse"));
            let login = Login::Provided(Provider::always(credentials));
            assert!(!format!("{login:?}").contains("horse"));
        }
        let login = Login::Token(Zeroizing::new("correct horse".to_owned()));
        assert!(!format!("{login:?}").contains("horse"));
    }

    #[test]
    fn what_holds_a_secret_wipes_it() {
        fn wiped(_: &impl ZeroizeOnDrop) {}
        for credentials in [
            Credentials::password("ann", "correct horse"),
            Credentials::token("correct horse"),
        ] {
            match &credentials.0 {
                Secret::Password { password, .. } => wiped(password),
                Secret::Token(token) => wiped(token),
            }
        }
        if let Login::Token(token) = Login::Token(Zeroizing::default()) {
            wiped(&token);
        }
    }

    #[test]
    fn a_secret_message_is_framed_like_any_other() {
        let message = AuthenticateRequest {
            name: "ann".into(),
            password: "correct horse".into(),
        };
        assert_eq!(secret_body(&message), grpc::encode(&message).unwrap());
    }
}
