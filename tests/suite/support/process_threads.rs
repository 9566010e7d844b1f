//! Threads of this process.

use std::fs;

/// Returns the names of all threads. The kernel may still list a thread for a moment after it was joined.
pub fn thread_names() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).collect()
}

/// Returns the number of threads that clients have started.
pub fn client_thread_count() -> usize {
    let names = thread_names();
    names.iter().filter(|name| *name == "actix-etcd").count()
}
