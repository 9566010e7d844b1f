//! Sessions, locks, elections, singletons, registration and discovery.

mod actor_events;
mod blocked_locks;
mod discovery;
mod discovery_faults;
mod discovery_scripted;
mod dropped_handles;
mod election;
mod election_chaos;
mod election_lost_responses;
mod etcdctl_interop;
mod late_keys;
mod leader_status;
mod mutex;
mod mutex_chaos;
mod mutex_lost_responses;
mod owned_sessions;
mod paused_scope;
mod process_pauses;
mod session;
mod session_chaos;
mod session_faults;
mod session_scripted;
mod shutdown_order;
mod singleton;
mod singleton_chaos;
mod singleton_processes;
