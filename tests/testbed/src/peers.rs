//! Which member a connection between peers comes from.
//!
//! etcd dials its peers from ports the kernel chooses, so the only witness is /proc: the source port leads to a
//! socket, the socket to the process that holds it.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::link::Link;

/// The processes of a cluster and the links between them.
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
    /// Says which process a member is at the moment.
    pub(crate) fn set_process(&self, member: usize, pid: Option<u32>) {
        let mut tables = self.lock();
        match pid {
            Some(pid) => tables.processes.insert(member, pid),
            None => tables.processes.remove(&member),
        };
    }

    /// The link that carries what `from` dials to `to`.
    pub(crate) fn link(&self, from: usize, to: usize) -> Link {
        let name = format!("peer {from} to peer {to}");
        self.lock()
            .links
            .entry((from, to))
            .or_insert_with(|| Link::new(name, None))
            .clone()
    }

    /// The link of a connection that just arrived at `to`; none if no member dialled it (any more).
    pub(crate) fn link_of(
        &self,
        source: SocketAddr,
        here: Option<SocketAddr>,
        to: usize,
    ) -> Option<Link> {
        let inode = socket_inode(source, here?)?;
        let processes = self.lock().processes.clone();
        let from = processes.into_iter().find(|(_, pid)| holds(*pid, inode))?.0;
        Some(self.link(from, to))
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The inode of the socket whose local end is `source` and whose other end is `here`.
fn socket_inode(source: SocketAddr, here: SocketAddr) -> Option<u64> {
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    let (local, remote) = (
        format!(":{:04X}", source.port()),
        format!(":{:04X}", here.port()),
    );
    table.lines().find_map(|line| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let ends = columns.next()?.ends_with(&local) && columns.next()?.ends_with(&remote);
        let inode = columns.nth(6)?.parse().ok()?;
        (ends && inode != 0).then_some(inode)
    })
}

fn holds(pid: u32, inode: u64) -> bool {
    let wanted = format!("socket:[{inode}]");
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    files.flatten().any(|file| {
        fs::read_link(file.path()).is_ok_and(|link| link.as_os_str() == wanted.as_str())
    })
}
