//! Authentication: logins, tokens, administration, secrets.

mod administration;
mod cluster_change;
mod expiry_under_load;
mod login;
mod login_failures;
mod maintenance_tokens;
mod refused_tokens;
mod secrets;
mod token_renewal;
mod watches;
