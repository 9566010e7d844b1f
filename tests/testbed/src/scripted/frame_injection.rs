//! Injects frames into the output of an HTTP/2 connection.
//!
//! The `h2` crate chooses the last stream id of a GOAWAY itself. To let scripts choose it, the socket writes frames
//! of its own between those of `h2`; for that it tracks where each frame ends.

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
/// How long the client may take to close its side.
const LINGER: Duration = Duration::from_secs(1);

/// Frames to inject, and how to close the socket.
#[derive(Debug, Default)]
pub(super) struct Injection {
    frames: Mutex<VecDeque<Bytes>>,
    reset: AtomicBool,
}

impl Injection {
    /// Queues a GOAWAY. The connection must be polled afterwards.
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

    /// Makes the socket send RST when it is dropped.
    pub(super) fn reset_on_drop(&self) {
        self.reset.store(true, Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Bytes>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct InjectingSocket {
    /// `Some` until dropped.
    socket: Option<TcpStream>,
    injection: Arc<Injection>,
    /// Unwritten rest of the injected frame.
    injected: Bytes,
    /// Header of the frame that is being written.
    header: [u8; FRAME_HEADER],
    header_written: usize,
    /// Number of payload bytes not written yet.
    payload_remaining: usize,
}

impl InjectingSocket {
    pub(super) fn new(socket: TcpStream, injection: Arc<Injection>) -> Self {
        Self {
            socket: Some(socket),
            injection,
            injected: Bytes::new(),
            header: [0; FRAME_HEADER],
            header_written: 0,
            payload_remaining: 0,
        }
    }

    fn socket(&mut self) -> Pin<&mut TcpStream> {
        Pin::new(self.socket.as_mut().expect("the socket exists until drop"))
    }

    fn poll_injection(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.injected.is_empty() {
                let inside_frame = self.header_written > 0 || self.payload_remaining > 0;
                match if inside_frame {
                    None
                } else {
                    self.injection.lock().pop_front()
                } {
                    Some(frame) => self.injected = frame,
                    None => return Poll::Ready(Ok(())),
                }
            }
            let injected = self.injected.clone();
            let written = ready!(self.socket().poll_write(cx, &injected))?;
            self.injected.advance(written);
        }
    }

    fn track_frames(&mut self, mut written: &[u8]) {
        while !written.is_empty() {
            if self.payload_remaining > 0 {
                let take = self.payload_remaining.min(written.len());
                self.payload_remaining -= take;
                written = &written[take..];
                continue;
            }
            let take = written.len().min(FRAME_HEADER - self.header_written);
            self.header[self.header_written..self.header_written + take]
                .copy_from_slice(&written[..take]);
            self.header_written += take;
            written = &written[take..];
            if self.header_written == FRAME_HEADER {
                self.header_written = 0;
                let [a, b, c, ..] = self.header;
                self.payload_remaining = u32::from_be_bytes([0, a, b, c]) as usize;
            }
        }
    }
}

impl AsyncWrite for InjectingSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let socket = self.get_mut();
        ready!(socket.poll_injection(cx))?;
        let written = ready!(socket.socket().poll_write(cx, buffer))?;
        socket.track_frames(&buffer[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_injection(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().socket().poll_shutdown(cx)
    }
}

impl AsyncRead for InjectingSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.get_mut().socket().poll_read(cx, buffer)
    }
}

impl Drop for InjectingSocket {
    fn drop(&mut self) {
        let Some(mut socket) = self.socket.take() else {
            return;
        };
        if self.injection.reset.load(Ordering::SeqCst) {
            let _ = socket.set_zero_linger();
            return;
        }
        // The kernel resets a socket that is closed with unread bytes, so they are read first.
        runtime::spawn(async move {
            let _ = socket.shutdown().await;
            let _ = timeout(LINGER, tokio::io::copy(&mut socket, &mut tokio::io::sink())).await;
        });
    }
}
