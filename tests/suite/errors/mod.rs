//! Errors: kinds, outcomes, invalid input.

mod etcd_messages;
mod invalid_input;
mod outcomes;
mod transactions;
