//! What applications build on etcd.
//!
//! All that is asked of etcd is asked through the public calls an application has, too. What must go on while that is
//! busy, and be undone when it drops something, runs on the client's own thread, supervised where it has a state to
//! lose: that is what a copy of these files outside of the crate would lack.
//!
//! A [`session`] keeps a lease and what is bound to it. By a session, one at a time holds a lock ([`mutex`]) or leads
//! ([`election`]), and an actor runs on exactly one node ([`singleton`]). Instances of a service are listed while they
//! live ([`registration`]), and found ([`discovery`]). Each is a handle that is awaited or read, and tells an actor by
//! messages where that is wanted. Keys and values are those of the Go client, so that Go programs and `etcdctl` take
//! part.

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
mod registrar;
pub mod registration;
mod roster;
mod running;
pub mod session;
pub mod singleton;
pub(crate) mod subscribe;
mod tenure;
mod turns;
