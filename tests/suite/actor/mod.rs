//! The actor `Etcd`: requests and subscriptions as messages, admission, life in an actix system.

mod admission;
mod faulty_actors;
mod requests;
mod system;
