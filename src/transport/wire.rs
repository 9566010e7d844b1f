//! What has really been handed to the socket.
//!
//! h2 queues frames and writes them later. When a connection breaks, only this layer knows whether the first
//! frame of a request ever left: it walks over the outgoing bytes, frame header by frame header, and remembers the
//! highest stream whose HEADERS went out. Stream ids only grow, so one number tells them all.
//!
//! The number is final only when the socket is closed: until then, what h2 has encoded may still be flushed.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::watch,
    time::{Instant, timeout},
};

const PREFACE: usize = 24;
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;
/// A broken connection's socket is closed at once by whoever drives it.
const CLOSING: Duration = Duration::from_millis(100);

/// What a connection's socket has seen, readable from any thread.
#[derive(Debug)]
pub(crate) struct WireLog {
    highest_stream: AtomicU32,
    opened: Instant,
    /// Microseconds from `opened` to the last byte that arrived: an answer on the same machine takes less than a
    /// millisecond.
    last_read: AtomicU64,
    closed: watch::Sender<bool>,
}

impl WireLog {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            highest_stream: AtomicU32::new(0),
            opened: Instant::now(),
            last_read: AtomicU64::new(0),
            closed: watch::Sender::new(false),
        })
    }

    /// Whether it is certain that no byte of that stream's request was handed to the socket, or ever will be. For a
    /// connection that broke: waits until its socket is closed.
    pub(crate) async fn never_sent(&self, stream: u32) -> bool {
        let mut closed = self.closed.subscribe();
        let closed = timeout(CLOSING, closed.wait_for(|closed| *closed)).await;
        matches!(closed, Ok(Ok(_))) && stream > self.highest_stream.load(Ordering::Acquire)
    }

    /// When the member last said anything at all.
    pub(crate) fn last_heard(&self) -> Instant {
        self.opened + Duration::from_micros(self.last_read.load(Ordering::Relaxed))
    }
}

/// A socket whose traffic is noted in a [`WireLog`].
pub(crate) struct ObservedIo<T> {
    io: T,
    log: Arc<WireLog>,
    frames: FrameWalker,
}

impl<T> ObservedIo<T> {
    pub(crate) fn new(io: T, log: Arc<WireLog>) -> Self {
        Self {
            io,
            log,
            frames: FrameWalker::new(),
        }
    }

    fn wrote<'a>(&mut self, slices: impl Iterator<Item = &'a [u8]>, mut count: usize) {
        for slice in slices {
            let part = &slice[..slice.len().min(count)];
            if let Some(stream) = self.frames.walk(part) {
                self.log.highest_stream.fetch_max(stream, Ordering::Release);
            }
            count -= part.len();
            if count == 0 {
                break;
            }
        }
    }
}

impl<T> Drop for ObservedIo<T> {
    fn drop(&mut self) {
        self.log.closed.send_replace(true);
    }
}

/// Steps over frames without looking at their payload.
struct FrameWalker {
    /// Bytes of the preface or of a payload that are still to be passed over.
    skip: usize,
    header: [u8; FRAME_HEADER],
    filled: usize,
}

impl FrameWalker {
    fn new() -> Self {
        Self {
            skip: PREFACE,
            header: [0; FRAME_HEADER],
            filled: 0,
        }
    }

    /// Gives the highest stream whose HEADERS began in these bytes.
    fn walk(&mut self, mut bytes: &[u8]) -> Option<u32> {
        let mut highest = None;
        while !bytes.is_empty() {
            if self.skip > 0 {
                let passed = self.skip.min(bytes.len());
                self.skip -= passed;
                bytes = &bytes[passed..];
                continue;
            }
            let wanted = (FRAME_HEADER - self.filled).min(bytes.len());
            self.header[self.filled..self.filled + wanted].copy_from_slice(&bytes[..wanted]);
            self.filled += wanted;
            bytes = &bytes[wanted..];
            if self.filled == FRAME_HEADER {
                let [a, b, c, kind, _flags, s1, s2, s3, s4] = self.header;
                self.skip = u32::from_be_bytes([0, a, b, c]) as usize;
                self.filled = 0;
                if kind == HEADERS {
                    let stream = u32::from_be_bytes([s1, s2, s3, s4]) & 0x7fff_ffff;
                    highest = highest.max(Some(stream));
                }
            }
        }
        highest
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ObservedIo<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        if buf.filled().len() > before {
            let since = u64::try_from(self.log.opened.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.log.last_read.store(since, Ordering::Relaxed);
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for ObservedIo<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(cx, buf);
        if let Poll::Ready(Ok(count)) = polled {
            self.wrote(std::iter::once(buf), count);
        }
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        if let Poll::Ready(Ok(count)) = polled {
            self.wrote(bufs.iter().map(|slice| &**slice), count);
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, stream: u32, payload: usize) -> Vec<u8> {
        let mut bytes = u32::try_from(payload).unwrap().to_be_bytes()[1..].to_vec();
        bytes.extend([kind, 0]);
        bytes.extend(stream.to_be_bytes());
        bytes.resize(FRAME_HEADER + payload, 0xff);
        bytes
    }

    #[test]
    fn a_stream_counts_as_sent_when_its_headers_have_left() {
        let mut walker = FrameWalker::new();
        assert_eq!(walker.walk(&[b'x'; PREFACE]), None);
        let headers = frame(HEADERS, 7, 30);
        assert_eq!(walker.walk(&headers[..FRAME_HEADER - 1]), None);
        assert_eq!(walker.walk(&headers[FRAME_HEADER - 1..]), Some(7));
        assert_eq!(walker.walk(&frame(0, 9, 5)), None, "DATA opens no stream");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_not_written_was_never_sent_only_once_the_socket_is_closed() {
        let log = WireLog::new();
        let (near, _far) = tokio::io::duplex(1024);
        let mut io = ObservedIo::new(near, log.clone());
        let mut bytes = vec![b'x'; PREFACE];
        bytes.extend(frame(HEADERS, 3, 10));
        tokio::io::AsyncWriteExt::write_all(&mut io, &bytes)
            .await
            .unwrap();
        assert!(!log.never_sent(5).await, "it may still be flushed");
        drop(io);
        assert!(log.never_sent(5).await);
        assert!(!log.never_sent(3).await);
    }

    proptest! {
        #[test]
        fn however_the_bytes_are_cut_the_highest_stream_is_the_same(
            frames in proptest::collection::vec((0u8..9, 0u32..1000, 0usize..50), 0..20),
            cut in 1usize..40,
        ) {
            let mut bytes = vec![b'x'; PREFACE];
            let mut expected = None;
            for (kind, stream, payload) in frames {
                bytes.extend(frame(kind, stream, payload));
                if kind == HEADERS {
                    expected = expected.max(Some(stream));
                }
            }
            let mut walker = FrameWalker::new();
            let seen = bytes.chunks(cut).filter_map(|part| walker.walk(part)).max();
            prop_assert_eq!(seen, expected);
        }
    }
}
