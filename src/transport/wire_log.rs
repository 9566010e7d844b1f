//! Records which requests have been written to the socket.
//!
//! h2 queues frames and writes them later. When a connection is lost, only this layer can determine whether the first
//! frame of a request was written: it scans the headers of the outgoing frames and stores the highest stream id whose
//! HEADERS were written. Stream ids only grow, so one number covers all streams.
//!
//! The number is final only when the socket is closed. Until then h2 may still flush encoded frames.

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

/// Length of the HTTP/2 connection preface.
const PREFACE: usize = 24;
/// Length of a frame header.
const FRAME_HEADER: usize = 9;
/// Type of a HEADERS frame.
const HEADERS: u8 = 1;
/// Longest wait for the socket of a lost connection to close. Its driver closes it at once.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

/// Traffic of one connection's socket, readable from any thread.
#[derive(Debug)]
pub(crate) struct WireLog {
    /// Highest stream id whose HEADERS were written.
    highest_stream: AtomicU32,
    opened: Instant,
    /// Microseconds from `opened` to the last received byte. Milliseconds are too coarse for a member on the same
    /// machine.
    last_received: AtomicU64,
    closed: watch::Sender<bool>,
}

impl WireLog {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            highest_stream: AtomicU32::new(0),
            opened: Instant::now(),
            last_received: AtomicU64::new(0),
            closed: watch::Sender::new(false),
        })
    }

    /// Returns whether the request of this stream was never written to the socket and never will be. Call it for a lost
    /// connection: it waits until the socket is closed.
    pub(crate) async fn never_sent(&self, stream: u32) -> bool {
        let mut closed = self.closed.subscribe();
        let closed = timeout(CLOSE_TIMEOUT, closed.wait_for(|closed| *closed)).await;
        matches!(closed, Ok(Ok(_))) && stream > self.highest_stream.load(Ordering::Acquire)
    }

    /// Returns when the last byte from the member arrived.
    pub(crate) fn last_received(&self) -> Instant {
        self.opened + Duration::from_micros(self.last_received.load(Ordering::Relaxed))
    }
}

/// A socket whose traffic is recorded in a [`WireLog`].
pub(crate) struct LoggedIo<T> {
    io: T,
    log: Arc<WireLog>,
    scanner: FrameScanner,
}

impl<T> LoggedIo<T> {
    pub(crate) fn new(io: T, log: Arc<WireLog>) -> Self {
        Self {
            io,
            log,
            scanner: FrameScanner::new(),
        }
    }

    fn record_written<'a>(&mut self, slices: impl Iterator<Item = &'a [u8]>, mut count: usize) {
        for slice in slices {
            let part = &slice[..slice.len().min(count)];
            if let Some(stream) = self.scanner.scan(part) {
                self.log.highest_stream.fetch_max(stream, Ordering::Release);
            }
            count -= part.len();
            if count == 0 {
                break;
            }
        }
    }
}

impl<T> Drop for LoggedIo<T> {
    fn drop(&mut self) {
        self.log.closed.send_replace(true);
    }
}

/// Finds HEADERS frames in a stream of bytes. Payloads are skipped.
struct FrameScanner {
    /// Remaining bytes of the connection preface or of a payload.
    skip: usize,
    header: [u8; FRAME_HEADER],
    /// Number of bytes in `header`.
    filled: usize,
}

impl FrameScanner {
    fn new() -> Self {
        Self {
            skip: PREFACE,
            header: [0; FRAME_HEADER],
            filled: 0,
        }
    }

    /// Returns the highest stream id among the HEADERS frames whose frame header ends in these bytes.
    fn scan(&mut self, mut bytes: &[u8]) -> Option<u32> {
        let mut highest = None;
        while !bytes.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                self.skip -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            let copied = (FRAME_HEADER - self.filled).min(bytes.len());
            self.header[self.filled..self.filled + copied].copy_from_slice(&bytes[..copied]);
            self.filled += copied;
            bytes = &bytes[copied..];
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

impl<T: AsyncRead + Unpin> AsyncRead for LoggedIo<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        if buf.filled().len() > before {
            let micros = u64::try_from(self.log.opened.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.log.last_received.store(micros, Ordering::Relaxed);
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for LoggedIo<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(cx, buf);
        if let Poll::Ready(Ok(count)) = polled {
            self.record_written(std::iter::once(buf), count);
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
            self.record_written(bufs.iter().map(|slice| &**slice), count);
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
    fn stream_counts_as_sent_after_its_headers() {
        let mut scanner = FrameScanner::new();
        assert_eq!(scanner.scan(&[b'x'; PREFACE]), None);
        let headers = frame(HEADERS, 7, 30);
        assert_eq!(scanner.scan(&headers[..FRAME_HEADER - 1]), None);
        assert_eq!(scanner.scan(&headers[FRAME_HEADER - 1..]), Some(7));
        assert_eq!(scanner.scan(&frame(0, 9, 5)), None, "DATA opens no stream");
    }

    #[tokio::test(start_paused = true)]
    async fn unwritten_stream_is_unsent_only_after_close() {
        let log = WireLog::new();
        let (near, _far) = tokio::io::duplex(1024);
        let mut io = LoggedIo::new(near, log.clone());
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
        fn scan_result_is_independent_of_chunk_size(
            frames in proptest::collection::vec((0u8..9, 0u32..1000, 0usize..50), 0..20),
            chunk_size in 1usize..40,
        ) {
            let mut bytes = vec![b'x'; PREFACE];
            let mut expected = None;
            for (kind, stream, payload) in frames {
                bytes.extend(frame(kind, stream, payload));
                if kind == HEADERS {
                    expected = expected.max(Some(stream));
                }
            }
            let mut scanner = FrameScanner::new();
            let found = bytes.chunks(chunk_size).filter_map(|part| scanner.scan(part)).max();
            prop_assert_eq!(found, expected);
        }
    }
}
