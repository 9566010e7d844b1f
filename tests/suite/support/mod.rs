//! Helpers that several topics share: scripted servers, recorders, child processes, waiting.

pub mod auth_cluster;
pub mod cluster_availability;
pub mod connected_cluster;
pub mod etcdctl;
pub mod exclusion_counter;
pub mod host_name;
pub mod lease_recorder;
pub mod lease_server;
pub mod machine_delay;
pub mod message_recorder;
pub mod node_links;
pub mod process_isolation;
pub mod process_threads;
pub mod quiet_window;
pub mod scripted_put;
pub mod singleton_process;
pub mod skipped_check;
pub mod store_server;
pub mod traffic;
pub mod wait;
pub mod watch_items;
pub mod watch_recorder;
pub mod watch_server;
pub mod watched_revisions;
pub mod watcher_metrics;
pub mod write_load;
