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
mod alone;
mod answers;
mod auth;
mod auth_admin;
mod auth_expiry;
mod auth_login;
mod auth_moved;
mod auth_raw;
mod auth_scene;
mod auth_tokens;
mod auth_watch;
mod bad_input;
mod balance;
mod calm;
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
mod lease_outage;
mod lease_record;
mod lease_scripted;
mod lease_shutdown;
mod lessor;
mod liveness;
mod lost_answers;
mod maintenance;
mod mutex;
mod mutex_chaos;
mod names;
mod outcome;
mod own_links;
mod pages;
mod patience;
mod recipes_actor;
mod recipes_dropped;
mod recipes_etcdctl;
mod retired;
mod retries;
mod scripted_store;
mod secrets;
mod session;
mod session_faults;
mod session_scripted;
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
mod told;
mod traces;
mod traffic;
mod unchecked;
mod wait;
mod watch;
mod watch_chaos;
mod watch_compaction;
mod watch_crash;
mod watch_failover;
mod watch_leader;
mod watch_progress;
mod watch_record;
mod watch_resync;
mod watch_script;
mod watch_scripted;
mod watch_slow;
mod watch_streams;
mod wire;
mod witness;
