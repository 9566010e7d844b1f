//! `Debug` for messages with secrets. Log lines must never contain a password, a hash of it or a token.

use std::fmt;

use super::{
    authpb::User,
    etcdserverpb::{
        AuthUserAddRequest, AuthUserChangePasswordRequest, AuthenticateRequest,
        AuthenticateResponse,
    },
};

/// Returns the text to print instead of a secret. It shows whether the secret is empty, which helps to debug a login.
fn hidden(secret: &[u8]) -> fmt::Arguments<'static> {
    if secret.is_empty() {
        format_args!("<empty>")
    } else {
        format_args!("<hidden>")
    }
}

impl fmt::Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthenticateRequest")
            .field("name", &self.name)
            .field("password", &hidden(self.password.as_bytes()))
            .finish()
    }
}

impl fmt::Debug for AuthenticateResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthenticateResponse")
            .field("header", &self.header)
            .field("token", &hidden(self.token.as_bytes()))
            .finish()
    }
}

impl fmt::Debug for AuthUserAddRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthUserAddRequest")
            .field("name", &self.name)
            .field("password", &hidden(self.password.as_bytes()))
            .field("options", &self.options)
            .field("hashed_password", &hidden(self.hashed_password.as_bytes()))
            .finish()
    }
}

impl fmt::Debug for AuthUserChangePasswordRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthUserChangePasswordRequest")
            .field("name", &self.name)
            .field("password", &hidden(self.password.as_bytes()))
            .field("hashed_password", &hidden(self.hashed_password.as_bytes()))
            .finish()
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User")
            .field("name", &self.name)
            .field("password", &hidden(&self.password))
            .field("roles", &self.roles)
            .field("options", &self.options)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "correct horse";

    fn assert_hidden(message: &impl fmt::Debug) {
        let printed = format!("{message:?} {message:#?}");
        assert!(!printed.contains(SECRET), "{printed}");
        assert!(printed.contains("<hidden>"), "{printed}");
    }

    #[test]
    fn debug_output_hides_secrets() {
        assert_hidden(&AuthenticateRequest {
            name: "ann".into(),
            password: SECRET.into(),
        });
        assert_hidden(&AuthenticateResponse {
            header: None,
            token: SECRET.into(),
        });
        assert_hidden(&AuthUserAddRequest {
            password: SECRET.into(),
            hashed_password: SECRET.into(),
            ..Default::default()
        });
        assert_hidden(&AuthUserChangePasswordRequest {
            password: SECRET.into(),
            hashed_password: SECRET.into(),
            ..Default::default()
        });
        assert_hidden(&User {
            password: SECRET.into(),
            ..Default::default()
        });
    }

    #[test]
    fn debug_output_marks_empty_passwords() {
        let request = AuthenticateRequest {
            name: "ann".into(),
            password: String::new(),
        };
        assert_eq!(
            format!("{request:?}"),
            r#"AuthenticateRequest { name: "ann", password: <empty> }"#
        );
    }
}
