//! Authentication: logins, tokens, administration, secrets.

mod administration;
mod expiry_under_load;
mod login;
mod login_failures;
mod moved_cluster;
mod raw_streams;
mod secrets;
mod token_renewal;
mod watches;
