//! A socket that can be moved from one tokio runtime to another.
//!
//! The runtime that a socket is registered with wakes the task that reads it. A socket that is read where its callers
//! run costs no change of threads.

use std::{
    io::{self, IoSlice},
    os::fd::{AsFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};

/// A socket as tokio sees it, registered with one runtime.
pub(super) enum RegisteredSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The socket of a connection.
pub(super) struct MovableSocket(Arc<Mutex<RegisteredSocket>>);

/// Moves a socket between runtimes. Does not keep the socket open.
#[derive(Clone)]
pub(super) struct SocketRegistration(Weak<Mutex<RegisteredSocket>>);

impl SocketRegistration {
    /// Registers the socket with the current runtime. After that the socket must be polled, because the wakers of the
    /// last polls are registered with the earlier runtime. Without success the socket stays where it is.
    pub(super) fn move_to_current_runtime(&self) -> io::Result<()> {
        let closed = || io::Error::new(io::ErrorKind::NotConnected, "the connection is closed");
        let socket = self.0.upgrade().ok_or_else(closed)?;
        let mut socket = lock(&socket);
        // Registering a second descriptor of the socket keeps the first one usable if it fails.
        let moved = match &*socket {
            RegisteredSocket::Tcp(tcp) => {
                let tcp = duplicate(tcp)?.into();
                register(move || TcpStream::from_std(tcp)).map(RegisteredSocket::Tcp)?
            }
            RegisteredSocket::Unix(unix) => {
                let unix = duplicate(unix)?.into();
                register(move || UnixStream::from_std(unix)).map(RegisteredSocket::Unix)?
            }
        };
        *socket = moved;
        Ok(())
    }
}

impl MovableSocket {
    pub(super) fn new(socket: RegisteredSocket) -> Self {
        Self(Arc::new(Mutex::new(socket)))
    }

    pub(super) fn registration(&self) -> SocketRegistration {
        SocketRegistration(Arc::downgrade(&self.0))
    }

    /// Runs an operation of the socket. It is pending if the runtime of the socket has ended: the client's thread then
    /// moves the socket and polls it.
    fn poll_io<T>(
        &self,
        poll: impl FnOnce(Pin<&mut dyn TokioSocket>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let polled = match &mut *lock(&self.0) {
            RegisteredSocket::Tcp(tcp) => poll(Pin::new(tcp)),
            RegisteredSocket::Unix(unix) => poll(Pin::new(unix)),
        };
        match polled {
            Poll::Ready(Err(error)) if is_end_of_runtime(&error) => Poll::Pending,
            polled => polled,
        }
    }
}

fn lock(socket: &Mutex<RegisteredSocket>) -> MutexGuard<'_, RegisteredSocket> {
    socket.lock().unwrap_or_else(PoisonError::into_inner)
}

trait TokioSocket: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> TokioSocket for T {}

fn duplicate(socket: &impl AsFd) -> io::Result<OwnedFd> {
    socket.as_fd().try_clone_to_owned()
}

/// Runs a registration. tokio panics on a runtime without I/O, and offers no way to check for it.
fn register<T>(register: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    catch_unwind(AssertUnwindSafe(register))
        .unwrap_or_else(|_| Err(io::Error::other("the tokio runtime has no I/O")))
}

/// Returns whether tokio failed an operation because the runtime of the socket has ended. Errors of the socket itself
/// have a code of the operating system.
fn is_end_of_runtime(error: &io::Error) -> bool {
    error.raw_os_error().is_none() && error.kind() == io::ErrorKind::Other
}

impl AsyncRead for MovableSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_io(|socket| socket.poll_read(cx, buf))
    }
}

impl AsyncWrite for MovableSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_io(|socket| socket.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_io(|socket| socket.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_io(|socket| socket.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_io(|socket| socket.poll_shutdown(cx))
    }
}
