//! What applications build on etcd, built here on the same API they use.

pub mod election;
mod held;
pub mod mutex;
mod place;
mod queue;
mod race;
pub mod session;
pub mod singleton;
mod tenure;
mod turns;
