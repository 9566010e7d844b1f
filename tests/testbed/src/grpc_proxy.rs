//! etcd's own gRPC proxy: `etcd grpc-proxy start` of the same binary as the members.
//!
//! It merges watches of the same range, forwards unary calls through one client of its own, and replies to member
//! lists itself.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::binary::Binary;
use crate::cleanup::CleanupGuard;
use crate::cluster::Cluster;
use crate::link::Link;
use crate::member::Member;
use crate::process::ServerProcess;
use crate::proxy::{Proxy, Route, SwitchableListener};
use crate::{ports, runtime};

/// Makes the folders of the gRPC proxies unique.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Handle to a gRPC proxy in front of a cluster. Dropping the last handle kills the process.
#[derive(Clone, Debug)]
pub struct GrpcProxy {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    scheme: &'static str,
    binary: Binary,
    args: Vec<String>,
    link: Link,
    proxy: Proxy,
    process: ServerProcess,
}

impl Drop for State {
    fn drop(&mut self) {
        self.process.kill();
    }
}

impl GrpcProxy {
    /// Starts a proxy over the client links of all current members, and waits until it listens.
    pub async fn start(cluster: &Cluster) -> Self {
        Self::start_with(cluster, &[]).await
    }

    /// Like [`GrpcProxy::start`], with additional flags, such as `--namespace=app/`.
    pub async fn start_with(cluster: &Cluster, flags: &[&str]) -> Self {
        let proxy = Self::new(
            &cluster.members(),
            cluster.binary(),
            cluster.cleanup(),
            flags,
        );
        proxy.launch().await;
        proxy
    }

    fn new(members: &[Member], binary: Binary, cleanup: Arc<CleanupGuard>, flags: &[&str]) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let scheme = members[0].scheme();
        let listener = SwitchableListener::new();
        let link = Link::new(
            format!("clients to gRPC proxy {number}"),
            Some(listener.clone()),
        );
        link.set_server_down(true);
        let proxy = Proxy::start(listener, Route::Clients(link.clone()));
        let folder = cleanup.folder();
        let endpoints: Vec<String> = members.iter().map(Member::endpoint).collect();
        let mut args = vec![
            format!("--endpoints={}", endpoints.join(",")),
            format!("--advertise-client-url=127.0.0.1:{}", proxy.port()),
            format!(
                "--data-dir={}",
                folder.join(format!("proxy{number}")).display()
            ),
        ];
        if scheme == "https" {
            args.push("--insecure-skip-tls-verify".to_owned());
            args.extend(crate::tls::server_flags(folder));
        }
        args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let log_file = folder.join(format!("proxy{number}.log"));
        let state = State {
            scheme,
            binary,
            args,
            link,
            proxy,
            process: ServerProcess::new(log_file, cleanup),
        };
        Self {
            state: Arc::new(state),
        }
    }

    /// Returns the client URL, which leads through the link. The proxy advertises its address.
    pub fn endpoint(&self) -> String {
        format!(
            "{}://127.0.0.1:{}",
            self.state.scheme,
            self.state.proxy.port()
        )
    }

    /// Returns the link between clients and this proxy.
    pub fn link(&self) -> &Link {
        &self.state.link
    }

    /// Returns the process id, if the proxy is running.
    pub fn pid(&self) -> Option<u32> {
        self.state.process.pid()
    }

    /// Sends SIGKILL and waits until the process has ended. From then on the port refuses connections.
    pub fn kill(&self) {
        self.state.process.kill();
        self.state.link.set_server_down(true);
    }

    /// Starts the proxy after a kill and waits until it listens. Does nothing if the proxy is running.
    pub async fn launch(&self) {
        let proxy = self.clone();
        runtime::run(async move {
            let state = &*proxy.state;
            while !state.process.is_running() {
                let port = ports::free();
                let mut command = Command::new(&state.binary.path);
                command
                    .args(["grpc-proxy", "start"])
                    .arg(format!("--listen-addr=127.0.0.1:{port}"))
                    .args(&state.args);
                state.process.spawn(command);
                state.proxy.set_target(port);
                if state.process.wait_until_listening(port).await {
                    state.link.set_server_down(false);
                } else {
                    proxy.kill();
                }
            }
        })
        .await;
    }

    /// Kills the proxy if it is running, and starts it again.
    pub async fn restart(&self) {
        self.kill();
        self.launch().await;
    }

    /// Sends SIGSTOP and waits until all threads have stopped. The kernel still accepts connections for the process.
    pub fn freeze(&self) {
        self.state.process.freeze();
    }

    /// Sends SIGCONT.
    pub fn thaw(&self) {
        self.state.process.thaw();
    }
}
