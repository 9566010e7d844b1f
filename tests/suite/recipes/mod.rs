//! Sessions, locks, elections, singletons, discovery.

mod discovery;
mod discovery_faults;
mod discovery_scripted;
mod dropped;
mod election;
mod etcdctl;
mod messages;
mod mutex;
mod mutex_chaos;
mod mutex_lost_answers;
mod session;
mod session_faults;
mod session_scripted;
mod singleton;
mod singleton_chaos;
mod singleton_nodes;
