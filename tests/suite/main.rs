//! Everything that needs a server: one binary, a module a topic.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::similar_names,
    clippy::too_many_lines,
    clippy::type_complexity,
    reason = "a test says what it expects by failing, and tells one story from its beginning to its end"
)]

mod actor;
mod actor_bad;
mod actor_limits;
mod actor_system;
mod auth;
mod auth_admin;
mod auth_moved;
mod auth_scene;
mod auth_tokens;
mod auth_watch;
mod bad_input;
mod balance;
mod classification;
mod cluster;
mod cluster_etcdctl;
mod cluster_services;
mod connect;
mod counter;
mod coverage;
mod discovery;
mod discovery_faults;
mod discovery_scripted;
mod election;
mod endpoints;
mod etcdctl;
mod examples;
mod failover;
mod kv;
mod lateness;
mod lease;
mod lease_auth;
mod lease_faults;
mod lease_record;
mod lease_scripted;
mod lessor;
mod lost_answers;
mod maintenance;
mod mutex;
mod mutex_chaos;
mod own_links;
mod recipes_actor;
mod recipes_dropped;
mod recipes_etcdctl;
mod scripted_store;
mod secrets;
mod session;
mod session_faults;
mod shutdown;
mod singleton;
mod singleton_chaos;
mod singleton_nodes;
mod singleton_process;
mod snapshot;
mod storm;
mod supervision;
#[cfg(feature = "tls")]
mod tls;
mod traffic;
mod wait;
mod watch;
mod watch_chaos;
mod watch_compaction;
mod watch_crash;
mod watch_failover;
mod watch_record;
mod watch_scripted;
mod watch_slow;
mod wire;
