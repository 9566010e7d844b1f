//! TCP proxies in front of the members, which apply the faults of the links.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::link::{Direction, Fault, Link, LinkState, Termination};
use crate::peers::PeerTable;
use crate::stream_counter::StreamCounter;
use crate::{ports, runtime};

const BUFFER: usize = 128 * 1024;
/// Maximum number of delayed bytes per direction; beyond it, TCP applies backpressure.
const MAX_DELAYED: usize = 4 * 1024 * 1024;

/// A port that can stop and resume listening, with immediate effect.
#[derive(Debug)]
pub(crate) struct SwitchableListener {
    address: SocketAddr,
    socket: Mutex<Socket>,
}

#[derive(Debug)]
struct Socket {
    listener: Option<TcpListener>,
    waker: Option<Waker>,
}

impl SwitchableListener {
    pub(crate) fn new() -> Arc<Self> {
        Self::from_std(ports::listen().0)
    }

    /// Takes over a listener, whose address it keeps.
    pub(crate) fn from_std(listener: std::net::TcpListener) -> Arc<Self> {
        let address = listener.local_addr().expect("a listener has an address");
        let socket = Socket {
            listener: Some(ports::into_tokio(listener)),
            waker: None,
        };
        Arc::new(Self {
            address,
            socket: Mutex::new(socket),
        })
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Starts or stops listening before it returns.
    pub(crate) fn set_listening(&self, listen: bool) {
        let mut socket = self.lock();
        if !listen {
            socket.listener = None;
        } else if socket.listener.is_none() {
            socket.listener = Some(ports::into_tokio(self.listen_again()));
            if let Some(waker) = socket.waker.take() {
                waker.wake();
            }
        }
    }

    fn listen_again(&self) -> std::net::TcpListener {
        let mut attempts = 0;
        loop {
            match std::net::TcpListener::bind(self.address) {
                Ok(listener) => return listener,
                Err(error) if attempts == 200 => {
                    panic!("cannot listen on {} again: {error}", self.address)
                }
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
            attempts += 1;
        }
    }

    async fn accept(&self) -> (TcpStream, SocketAddr) {
        // The listener stays under the lock, so that removing it closes the port immediately.
        poll_fn(|cx| {
            let mut socket = self.lock();
            socket.waker = Some(cx.waker().clone());
            let Some(listener) = &socket.listener else {
                return Poll::Pending;
            };
            match listener.poll_accept(cx) {
                Poll::Ready(Ok(accepted)) => Poll::Ready(accepted),
                Poll::Ready(Err(_)) => {
                    // The client closed before accept; the listener still works.
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    fn lock(&self) -> MutexGuard<'_, Socket> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Assigns accepted connections to links.
pub(crate) enum Route {
    /// All connections belong to one link.
    Clients(Link),
    /// The link from the member that dialled, to the member with this index.
    Peers(Arc<PeerTable>, usize),
}

/// Returns the port that the next connection is forwarded to.
pub(crate) type ChoosePort = Arc<dyn Fn() -> u16 + Send + Sync>;

/// A running proxy. Dropping it closes the port and all connections.
#[derive(Debug)]
pub(crate) struct Proxy {
    listener: Arc<SwitchableListener>,
    target: Arc<AtomicU16>,
    task: AbortHandle,
}

impl Proxy {
    /// Starts a proxy that forwards all connections to one port; see [`Proxy::set_target`].
    pub(crate) fn start(listener: Arc<SwitchableListener>, route: Route) -> Self {
        let target = Arc::new(AtomicU16::new(0));
        let port = target.clone();
        let choose = Arc::new(move || port.load(Ordering::SeqCst));
        Self::run(listener, route, target, choose)
    }

    /// Starts a proxy that chooses a port for each connection.
    pub(crate) fn start_choosing(
        listener: Arc<SwitchableListener>,
        route: Route,
        choose: ChoosePort,
    ) -> Self {
        Self::run(listener, route, Arc::default(), choose)
    }

    fn run(
        listener: Arc<SwitchableListener>,
        route: Route,
        target: Arc<AtomicU16>,
        choose: ChoosePort,
    ) -> Self {
        let accepting = listener.clone();
        let task = runtime::spawn(async move {
            let route = Arc::new(route);
            // Owned by this task, so aborting it closes all connections.
            let mut connections = JoinSet::new();
            loop {
                let (client, source) = accepting.accept().await;
                connections.spawn(serve(client, source, route.clone(), choose.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Self {
            listener,
            target,
            task: task.abort_handle(),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.listener.port()
    }

    pub(crate) fn listener(&self) -> &Arc<SwitchableListener> {
        &self.listener
    }

    /// Sets the port that connections are forwarded to.
    pub(crate) fn set_target(&self, port: u16) {
        self.target.store(port, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.listener.set_listening(false);
    }
}

async fn serve(mut client: TcpStream, source: SocketAddr, route: Arc<Route>, choose: ChoosePort) {
    let link = match &*route {
        Route::Clients(link) => link.clone(),
        Route::Peers(table, to) => {
            match table.link_of_connection(source, client.local_addr().ok(), *to) {
                Some(link) => link,
                None => return reset(&client),
            }
        }
    };
    let _open = link.count_accepted();
    let mut link_state = link.subscribe();
    let initial = *link_state.borrow_and_update();
    if !initial.listens() || initial.fault == Fault::Reset {
        return reset(&client);
    }
    let termination_state = link_state.clone();
    tokio::select! {
        biased;
        termination = wait_for_termination(termination_state, initial.generation) => {
            if termination == Termination::Reset {
                reset(&client);
            }
        }
        () = forward(&mut client, link_state, &link, &*choose) => {}
    }
}

async fn wait_for_termination(
    mut link_state: watch::Receiver<LinkState>,
    initial_generation: u64,
) -> Termination {
    match link_state
        .wait_for(|state| state.generation != initial_generation)
        .await
    {
        Ok(state) => state.termination,
        Err(_) => Termination::Close,
    }
}

async fn forward(
    client: &mut TcpStream,
    mut link_state: watch::Receiver<LinkState>,
    link: &Link,
    choose: &(dyn Fn() -> u16 + Send + Sync),
) {
    if link_state
        .wait_for(|state| !state.fault.blocks(Direction::ToServer))
        .await
        .is_err()
    {
        return;
    }
    let Ok(mut server) = TcpStream::connect(ports::loopback(choose())).await else {
        return reset(client);
    };
    // If a reset cancels this future, the server must also see a reset.
    let _ = server.set_zero_linger();
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let result = {
        let (from_client, into_client) = client.split();
        let (from_server, into_server) = server.split();
        let to_server = Forwarder::new(
            from_client,
            into_server,
            Direction::ToServer,
            link_state.clone(),
            link,
        );
        let to_client = Forwarder::new(
            from_server,
            into_client,
            Direction::ToClient,
            link_state,
            link,
        );
        tokio::try_join!(to_server.run(), to_client.run())
    };
    if result.is_err() {
        reset(client);
    }
}

/// Makes the kernel send RST when the socket is dropped.
fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

/// Forwards the bytes of one direction of one connection.
struct Forwarder<'a> {
    from: ReadHalf<'a>,
    to: WriteHalf<'a>,
    direction: Direction,
    link_state: watch::Receiver<LinkState>,
    link: &'a Link,
    counter: Option<StreamCounter>,
    delayed: VecDeque<(Instant, Vec<u8>)>,
    delayed_bytes: usize,
}

impl<'a> Forwarder<'a> {
    fn new(
        from: ReadHalf<'a>,
        to: WriteHalf<'a>,
        direction: Direction,
        link_state: watch::Receiver<LinkState>,
        link: &'a Link,
    ) -> Self {
        let counter = (direction == Direction::ToServer).then(StreamCounter::default);
        Self {
            from,
            to,
            direction,
            link_state,
            link,
            counter,
            delayed: VecDeque::new(),
            delayed_bytes: 0,
        }
    }

    async fn run(mut self) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER];
        let mut ended = false;
        while !(ended && self.delayed.is_empty()) {
            let fault = self.wait_until_open().await?;
            let due = self.delayed.front().map(|(due, _)| *due);
            tokio::select! {
                biased;
                changed = self.link_state.changed() => changed.map_err(io::Error::other)?,
                () = async { sleep_until(due.unwrap_or_else(Instant::now)).await }, if due.is_some() => {
                    if let Some((_, bytes)) = self.delayed.pop_front() {
                        self.delayed_bytes -= bytes.len();
                        self.write(&bytes).await?;
                    }
                }
                read = self.from.read(&mut buffer), if !ended && self.delayed_bytes < MAX_DELAYED => {
                    let read = read?;
                    ended = read == 0;
                    self.forward_or_delay(&buffer[..read], fault.delay()).await?;
                }
            }
        }
        self.wait_until_open().await?;
        self.to.shutdown().await
    }

    async fn forward_or_delay(&mut self, bytes: &[u8], delay: Duration) -> io::Result<()> {
        if let Some(counter) = &mut self.counter {
            self.link.count_streams(counter.feed(bytes));
        }
        if delay.is_zero() && self.delayed.is_empty() {
            return self.write(bytes).await;
        }
        if !bytes.is_empty() {
            self.delayed_bytes += bytes.len();
            // Keeps the order even if the delay has just become shorter.
            let last = self.delayed.back().map(|(due, _)| *due);
            let due = (Instant::now() + delay).max(last.unwrap_or_else(Instant::now));
            self.delayed.push_back((due, bytes.to_vec()));
        }
        Ok(())
    }

    async fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.wait_until_open().await?;
        // Counted before they are sent, so that the receiver never sees uncounted bytes.
        self.link.count_bytes(self.direction, bytes.len());
        while !bytes.is_empty() {
            self.wait_until_open().await?;
            tokio::select! {
                biased;
                changed = self.link_state.changed() => changed.map_err(io::Error::other)?,
                written = self.to.write(bytes) => {
                    bytes = &bytes[written?..];
                }
            }
        }
        Ok(())
    }

    async fn wait_until_open(&mut self) -> io::Result<Fault> {
        let direction = self.direction;
        let open = self
            .link_state
            .wait_for(|state| !state.fault.blocks(direction))
            .await;
        open.map(|state| state.fault).map_err(io::Error::other)
    }
}
