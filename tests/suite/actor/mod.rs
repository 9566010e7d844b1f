//! The actor `Etcd`.

mod admission;
mod faulty_actors;
pub mod requests;
mod system;
