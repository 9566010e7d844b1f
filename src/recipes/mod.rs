//! What applications build on etcd, built here on the same API they use.

mod claim;
pub mod discovery;
pub mod election;
mod follow;
mod held;
pub mod mutex;
mod naming;
mod observation;
mod place;
mod queue;
mod race;
pub mod registration;
mod roster;
mod running;
pub mod session;
pub mod singleton;
mod tenure;
mod turns;
