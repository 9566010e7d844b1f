//! Finds the member that dialled a peer connection.
//!
//! The kernel chooses the source ports of peer connections, so the source is looked up in /proc: from the source port
//! to the socket's inode, and from the inode to the process that owns the socket.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::link::Link;

/// Process ids of the members, and the links between them.
#[derive(Debug, Default)]
pub(crate) struct PeerTable {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    processes: HashMap<usize, u32>,
    links: HashMap<(usize, usize), Link>,
}

impl PeerTable {
    /// Sets the process id of a member; `None` while it is stopped.
    pub(crate) fn set_process(&self, member: usize, pid: Option<u32>) {
        let mut tables = self.lock();
        match pid {
            Some(pid) => tables.processes.insert(member, pid),
            None => tables.processes.remove(&member),
        };
    }

    /// Returns the link that carries the connections dialled by `from` to `to`.
    pub(crate) fn link(&self, from: usize, to: usize) -> Link {
        let name = format!("peer {from} to peer {to}");
        self.lock()
            .links
            .entry((from, to))
            .or_insert_with(|| Link::new(name, None))
            .clone()
    }

    /// Returns the link of a new connection to `to`, or `None` if no running member dialled it.
    pub(crate) fn link_of_connection(
        &self,
        source: SocketAddr,
        local: Option<SocketAddr>,
        to: usize,
    ) -> Option<Link> {
        let inode = socket_inode(source, local?)?;
        let processes = self.lock().processes.clone();
        let from = processes
            .into_iter()
            .find(|(_, pid)| owns_socket(*pid, inode))?
            .0;
        Some(self.link(from, to))
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the inode of the dialling socket, whose local address is `source` and whose remote address is `target`.
fn socket_inode(source: SocketAddr, target: SocketAddr) -> Option<u64> {
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    let (source, target) = (
        format!(":{:04X}", source.port()),
        format!(":{:04X}", target.port()),
    );
    table.lines().find_map(|line| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let matches = columns.next()?.ends_with(&source) && columns.next()?.ends_with(&target);
        let inode = columns.nth(6)?.parse().ok()?;
        (matches && inode != 0).then_some(inode)
    })
}

fn owns_socket(pid: u32, inode: u64) -> bool {
    let socket = format!("socket:[{inode}]");
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    files.flatten().any(|file| {
        fs::read_link(file.path()).is_ok_and(|link| link.as_os_str() == socket.as_str())
    })
}
