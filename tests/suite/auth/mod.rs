//! Authentication: logins, tokens, administration, secrets.

mod administration;
mod cluster_change;
mod expiry_under_load;
mod login;
mod login_failures;
mod maintenance_tokens;
mod refused_tokens;
mod refusing_members;
mod secrets;
mod token_renewal;
mod void_tokens;
mod watches;
