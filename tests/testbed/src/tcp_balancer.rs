//! A load balancer for TCP connections, such as a Kubernetes Service, an NLB or `HAProxy` in TCP mode.
//!
//! The member is chosen when a connection is opened. The connection stays with it, whatever happens to the member.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cluster::Cluster;
use crate::link::Link;
use crate::proxy::{Proxy, Route, SwitchableListener};

/// A balancer over the members of a cluster: one port in front of their client links. Stops when dropped.
///
/// It checks no health: a connection to a member that refuses connections is reset, and the next one goes to the next
/// member.
#[derive(Debug)]
pub struct TcpBalancer {
    scheme: &'static str,
    link: Link,
    proxy: Proxy,
    backends: Arc<Backends>,
}

#[derive(Debug)]
struct Backends {
    ports: Vec<u16>,
    forwarded: Vec<AtomicU64>,
    choice: Mutex<Choice>,
}

#[derive(Debug)]
struct Choice {
    /// Backends of the next connections.
    scripted: VecDeque<usize>,
    /// Backends that the other connections use in turn.
    rotation: Vec<usize>,
    next: usize,
}

impl TcpBalancer {
    /// Starts a balancer over all current members. Connections go to each in turn, from member 0.
    pub fn over(cluster: &Cluster) -> Self {
        let members = cluster.members();
        let backends = Arc::new(Backends {
            ports: members.iter().map(crate::Member::client_port).collect(),
            forwarded: members.iter().map(|_| AtomicU64::new(0)).collect(),
            choice: Mutex::new(Choice {
                scripted: VecDeque::new(),
                rotation: (0..members.len()).collect(),
                next: 0,
            }),
        });
        let listener = SwitchableListener::new();
        let link = Link::new("clients to balancer".to_owned(), Some(listener.clone()));
        let choosing = backends.clone();
        let proxy = Proxy::start_choosing(
            listener,
            Route::Clients(link.clone()),
            Arc::new(move || choosing.choose()),
        );
        Self {
            scheme: members[0].scheme(),
            link,
            proxy,
            backends,
        }
    }

    /// Returns the URL of the balancer.
    pub fn endpoint(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.proxy.port())
    }

    /// Returns the link between clients and the balancer. It counts the accepted connections.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Forwards the next connections to these members, one each, and later ones in turn as before.
    pub fn script(&self, members: &[usize]) {
        self.backends.choice().scripted.extend(members);
    }

    /// Forwards all connections from now on to these members in turn. Open connections stay where they are.
    pub fn forward_to(&self, members: &[usize]) {
        assert!(!members.is_empty(), "a balancer needs a backend");
        let mut choice = self.backends.choice();
        choice.scripted.clear();
        choice.rotation = members.to_vec();
        choice.next = 0;
    }

    /// Returns the number of connections forwarded to this member so far, including those that it refused.
    pub fn forwarded(&self, member: usize) -> u64 {
        self.backends.forwarded[member].load(Ordering::SeqCst)
    }
}

impl Backends {
    fn choose(&self) -> u16 {
        let mut choice = self.choice();
        let backend = choice.scripted.pop_front().unwrap_or_else(|| {
            let backend = choice.rotation[choice.next % choice.rotation.len()];
            choice.next += 1;
            backend
        });
        self.forwarded[backend].fetch_add(1, Ordering::SeqCst);
        self.ports[backend]
    }

    fn choice(&self) -> MutexGuard<'_, Choice> {
        self.choice.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
