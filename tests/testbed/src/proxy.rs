//! The TCP proxies everybody reaches a member through.

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

use crate::link::{Condition, Direction, End, Fault, Link};
use crate::peers::PeerTable;
use crate::stream_counter::StreamCounter;
use crate::{ports, runtime};

const BUFFER: usize = 128 * 1024;
/// What a delayed direction holds at most; then TCP pushes back.
const DELAYED: usize = 4 * 1024 * 1024;

/// A port that can stop listening and start again, at once.
#[derive(Debug)]
pub(crate) struct Listening {
    port: u16,
    socket: Mutex<Socket>,
}

#[derive(Debug)]
struct Socket {
    listener: Option<TcpListener>,
    waker: Option<Waker>,
}

impl Listening {
    pub(crate) fn new() -> Arc<Self> {
        let (listener, port) = ports::listen();
        let socket = Socket {
            listener: Some(adopt(listener)),
            waker: None,
        };
        Arc::new(Self {
            port,
            socket: Mutex::new(socket),
        })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Listens or refuses, from the moment this returns.
    pub(crate) fn set(&self, listen: bool) {
        let mut socket = self.lock();
        if !listen {
            socket.listener = None;
        } else if socket.listener.is_none() {
            socket.listener = Some(adopt(self.listen_again()));
            if let Some(waker) = socket.waker.take() {
                waker.wake();
            }
        }
    }

    fn listen_again(&self) -> std::net::TcpListener {
        let mut tries = 0;
        loop {
            match std::net::TcpListener::bind(ports::loopback(self.port)) {
                Ok(listener) => return listener,
                Err(why) if tries == 200 => {
                    panic!("a proxy can't listen on port {} again: {why}", self.port)
                }
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
            tries += 1;
        }
    }

    async fn accept(&self) -> (TcpStream, SocketAddr) {
        // The listener stays under the lock: whoever takes it out closes the port for certain.
        poll_fn(|cx| {
            let mut socket = self.lock();
            socket.waker = Some(cx.waker().clone());
            let Some(listener) = &socket.listener else {
                return Poll::Pending;
            };
            match listener.poll_accept(cx) {
                Poll::Ready(Ok(accepted)) => Poll::Ready(accepted),
                Poll::Ready(Err(_)) => {
                    // The peer gave up between SYN and accept: not the listener's end.
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

fn adopt(listener: std::net::TcpListener) -> TcpListener {
    let _context = runtime::enter();
    listener
        .set_nonblocking(true)
        .expect("a listener can be non-blocking");
    TcpListener::from_std(listener).expect("the runtime takes a listener")
}

/// Which link a connection that arrives belongs to.
pub(crate) enum Route {
    /// Whoever comes.
    Anyone(Link),
    /// A member, found by who owns the other end.
    Peers(Arc<PeerTable>, usize),
}

/// A running proxy: it and its connections end when this is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    listening: Arc<Listening>,
    target: Arc<AtomicU16>,
    task: AbortHandle,
}

impl Proxy {
    pub(crate) fn start(listening: Arc<Listening>, route: Route) -> Self {
        let target = Arc::new(AtomicU16::new(0));
        let (accepting, to) = (listening.clone(), target.clone());
        let task = runtime::spawn(async move {
            let route = Arc::new(route);
            // Dropped with this task, and with it every connection.
            let mut connections = JoinSet::new();
            loop {
                let (client, source) = accepting.accept().await;
                connections.spawn(serve(client, source, route.clone(), to.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Self {
            listening,
            target,
            task: task.abort_handle(),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.listening.port()
    }

    pub(crate) fn listening(&self) -> &Arc<Listening> {
        &self.listening
    }

    /// The port of the process behind; it may be another one after a restart.
    pub(crate) fn set_target(&self, port: u16) {
        self.target.store(port, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.listening.set(false);
    }
}

async fn serve(
    mut client: TcpStream,
    source: SocketAddr,
    route: Arc<Route>,
    target: Arc<AtomicU16>,
) {
    let link = match &*route {
        Route::Anyone(link) => link.clone(),
        Route::Peers(table, to) => match table.link_of(source, client.local_addr().ok(), *to) {
            Some(link) => link,
            None => return reset(&client),
        },
    };
    let _open = link.count_accepted();
    let mut condition = link.subscribe();
    let born = *condition.borrow_and_update();
    if !born.listens() || born.fault == Fault::Reset {
        return reset(&client);
    }
    let cut = condition.clone();
    tokio::select! {
        biased;
        end = ended(cut, born.cut) => if end == End::Reset {
            reset(&client);
        },
        () = carry(&mut client, condition, &link, &target) => {}
    }
}

async fn ended(mut condition: watch::Receiver<Condition>, born: u64) -> End {
    match condition.wait_for(|now| now.cut != born).await {
        Ok(now) => now.end,
        Err(_) => End::Close,
    }
}

async fn carry(
    client: &mut TcpStream,
    mut condition: watch::Receiver<Condition>,
    link: &Link,
    target: &AtomicU16,
) {
    if condition
        .wait_for(|now| !now.fault.stops(Direction::ToServer))
        .await
        .is_err()
    {
        return;
    }
    let Ok(mut server) = TcpStream::connect(ports::loopback(target.load(Ordering::SeqCst))).await
    else {
        return reset(client);
    };
    // Should this be cancelled by a reset, the server's end must see one as well.
    let _ = server.set_zero_linger();
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let carried = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let up = Pump::new(
            from_client,
            to_server,
            Direction::ToServer,
            condition.clone(),
            link,
        );
        let down = Pump::new(from_server, to_client, Direction::ToClient, condition, link);
        tokio::try_join!(up.run(), down.run())
    };
    if carried.is_err() {
        reset(client);
    }
}

/// Whoever holds the other end gets a RST when the socket is dropped.
fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

/// Moves the bytes of one direction of one connection.
struct Pump<'a> {
    from: ReadHalf<'a>,
    to: WriteHalf<'a>,
    direction: Direction,
    condition: watch::Receiver<Condition>,
    link: &'a Link,
    counter: Option<StreamCounter>,
    delayed: VecDeque<(Instant, Vec<u8>)>,
    held: usize,
}

impl<'a> Pump<'a> {
    fn new(
        from: ReadHalf<'a>,
        to: WriteHalf<'a>,
        direction: Direction,
        condition: watch::Receiver<Condition>,
        link: &'a Link,
    ) -> Self {
        let counter = (direction == Direction::ToServer).then(StreamCounter::default);
        Self {
            from,
            to,
            direction,
            condition,
            link,
            counter,
            delayed: VecDeque::new(),
            held: 0,
        }
    }

    async fn run(mut self) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER];
        let mut ended = false;
        while !(ended && self.delayed.is_empty()) {
            let fault = self.passable().await?;
            let due = self.delayed.front().map(|(due, _)| *due);
            tokio::select! {
                biased;
                changed = self.condition.changed() => changed.map_err(io::Error::other)?,
                () = async { sleep_until(due.unwrap_or_else(Instant::now)).await }, if due.is_some() => {
                    if let Some((_, bytes)) = self.delayed.pop_front() {
                        self.held -= bytes.len();
                        self.write(&bytes).await?;
                    }
                }
                read = self.from.read(&mut buffer), if !ended && self.held < DELAYED => {
                    let read = read?;
                    ended = read == 0;
                    self.pass(&buffer[..read], fault.delay()).await?;
                }
            }
        }
        self.passable().await?;
        self.to.shutdown().await
    }

    async fn pass(&mut self, bytes: &[u8], delay: Duration) -> io::Result<()> {
        if let Some(counter) = &mut self.counter {
            self.link.count_streams(counter.feed(bytes));
        }
        if delay.is_zero() && self.delayed.is_empty() {
            return self.write(bytes).await;
        }
        if !bytes.is_empty() {
            self.held += bytes.len();
            // Never before what was read earlier, even if the delay just became shorter.
            let last = self.delayed.back().map(|(due, _)| *due);
            let due = (Instant::now() + delay).max(last.unwrap_or_else(Instant::now));
            self.delayed.push_back((due, bytes.to_vec()));
        }
        Ok(())
    }

    async fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.passable().await?;
        // Before the bytes are out: whoever got them must find them counted.
        self.link.count_moved(self.direction, bytes.len());
        while !bytes.is_empty() {
            self.passable().await?;
            tokio::select! {
                biased;
                changed = self.condition.changed() => changed.map_err(io::Error::other)?,
                written = self.to.write(bytes) => {
                    bytes = &bytes[written?..];
                }
            }
        }
        Ok(())
    }

    async fn passable(&mut self) -> io::Result<Fault> {
        let direction = self.direction;
        let open = self
            .condition
            .wait_for(|now| !now.fault.stops(direction))
            .await;
        open.map(|now| now.fault).map_err(io::Error::other)
    }
}
