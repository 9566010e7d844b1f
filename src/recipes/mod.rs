//! What applications build on etcd, built here on the same API they use.

pub mod session;
