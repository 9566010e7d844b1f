//! The socket under an HTTP/2 connection, into which whole frames can be slipped.
//!
//! The `h2` crate chooses a GOAWAY's last stream itself. A script wants to choose it, so frames are put between those
//! of the `h2` crate, which this follows to know where one ends.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::runtime;

const FRAME_HEADER: usize = 9;
const GOAWAY: u8 = 7;
/// How long a client may take to close its end as well.
const LINGER: Duration = Duration::from_secs(1);

/// What is to be slipped in, and how the socket is to end.
#[derive(Debug, Default)]
pub(super) struct Extra {
    frames: Mutex<VecDeque<Bytes>>,
    reset: AtomicBool,
}

impl Extra {
    /// Has a GOAWAY sent; the connection must be polled afterwards.
    pub(super) fn go_away(&self, last: u32, reason: h2::Reason) {
        let mut frame = BytesMut::new();
        frame.put_uint(8, 3);
        frame.put_u8(GOAWAY);
        frame.put_u8(0);
        frame.put_u32(0);
        frame.put_u32(last);
        frame.put_u32(reason.into());
        self.lock().push_back(frame.freeze());
    }

    /// Has the socket reset when it is dropped.
    pub(super) fn reset_at_end(&self) {
        self.reset.store(true, Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Bytes>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Wire {
    /// There until this is dropped.
    socket: Option<TcpStream>,
    extra: Arc<Extra>,
    /// A frame that is being slipped in.
    slipping: Bytes,
    /// The header of the frame that is being written.
    header: [u8; FRAME_HEADER],
    seen: usize,
    /// Bytes of its payload that are still to come.
    payload: usize,
}

impl Wire {
    pub(super) fn new(socket: TcpStream, extra: Arc<Extra>) -> Self {
        Self {
            socket: Some(socket),
            extra,
            slipping: Bytes::new(),
            header: [0; FRAME_HEADER],
            seen: 0,
            payload: 0,
        }
    }

    fn socket(&mut self) -> Pin<&mut TcpStream> {
        Pin::new(
            self.socket
                .as_mut()
                .expect("a socket is there until it is dropped"),
        )
    }

    fn poll_extra(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.slipping.is_empty() {
                let within = self.seen > 0 || self.payload > 0;
                match if within {
                    None
                } else {
                    self.extra.lock().pop_front()
                } {
                    Some(frame) => self.slipping = frame,
                    None => return Poll::Ready(Ok(())),
                }
            }
            let slipping = self.slipping.clone();
            let written = ready!(self.socket().poll_write(cx, &slipping))?;
            self.slipping.advance(written);
        }
    }

    fn follow(&mut self, mut written: &[u8]) {
        while !written.is_empty() {
            if self.payload > 0 {
                let take = self.payload.min(written.len());
                self.payload -= take;
                written = &written[take..];
                continue;
            }
            let take = written.len().min(FRAME_HEADER - self.seen);
            self.header[self.seen..self.seen + take].copy_from_slice(&written[..take]);
            self.seen += take;
            written = &written[take..];
            if self.seen == FRAME_HEADER {
                self.seen = 0;
                let [a, b, c, ..] = self.header;
                self.payload = u32::from_be_bytes([0, a, b, c]) as usize;
            }
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wire = self.get_mut();
        ready!(wire.poll_extra(cx))?;
        let written = ready!(wire.socket().poll_write(cx, buffer))?;
        wire.follow(&buffer[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_extra(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().socket().poll_shutdown(cx)
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.get_mut().socket().poll_read(cx, buffer)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let Some(mut socket) = self.socket.take() else {
            return;
        };
        if self.extra.reset.load(Ordering::SeqCst) {
            let _ = socket.set_zero_linger();
            return;
        }
        // The kernel resets a socket that is closed with bytes unread: a plain end needs them read.
        runtime::spawn(async move {
            let _ = socket.shutdown().await;
            let _ = timeout(LINGER, tokio::io::copy(&mut socket, &mut tokio::io::sink())).await;
        });
    }
}
