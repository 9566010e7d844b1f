//! Authentication: credentials of the client, and the administration of users and roles.

mod administration;
mod credentials;
pub(crate) mod engine;
pub mod roles;
pub mod users;

pub use administration::{Auth, AuthStatus, requests};
pub use credentials::Credentials;
pub(crate) use credentials::{AuthMethod, CredentialsProvider, secret_body};
