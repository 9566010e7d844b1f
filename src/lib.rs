//! An actor-based, resilient etcd v3 client runtime.
