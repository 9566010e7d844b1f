//! Records which requests have been written to the socket, and whether the member sent a GOAWAY.
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
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{Notify, watch},
    time::{Instant, timeout},
};

use super::frame_scanner::{FrameScanner, GoAway, GoAwayScanner, HEADERS};

/// Length of the HTTP/2 connection preface.
const PREFACE: usize = 24;
/// Debug data of a GOAWAY from a gRPC server that received more pings than it allows.
const TOO_MANY_PINGS: &[u8] = b"too_many_pings";
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
    gone_away: AtomicBool,
    go_away_received: Notify,
    too_many_pings: AtomicBool,
    closed: watch::Sender<bool>,
}

impl WireLog {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            highest_stream: AtomicU32::new(0),
            opened: Instant::now(),
            last_received: AtomicU64::new(0),
            gone_away: AtomicBool::new(false),
            go_away_received: Notify::new(),
            too_many_pings: AtomicBool::new(false),
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

    /// Returns whether the member has sent a GOAWAY: it accepts no more requests on this connection.
    pub(crate) fn has_gone_away(&self) -> bool {
        self.gone_away.load(Ordering::Relaxed)
    }

    /// Waits for a GOAWAY. Wakes one waiter, once.
    pub(crate) async fn gone_away(&self) {
        self.go_away_received.notified().await;
    }

    /// Returns whether the member has sent a GOAWAY because of too many pings.
    pub(crate) fn had_too_many_pings(&self) -> bool {
        self.too_many_pings.load(Ordering::Relaxed)
    }

    fn record_go_away(&self, frame: &GoAway) {
        let code = u32::from(h2::Reason::ENHANCE_YOUR_CALM);
        if frame.error_code == code && frame.debug_data == TOO_MANY_PINGS {
            self.too_many_pings.store(true, Ordering::Relaxed);
        }
        if !self.gone_away.swap(true, Ordering::Relaxed) {
            self.go_away_received.notify_one();
        }
    }
}

/// A socket whose traffic is recorded in a [`WireLog`].
pub(crate) struct LoggedIo<T> {
    io: T,
    log: Arc<WireLog>,
    written: FrameScanner,
    received: GoAwayScanner,
}

impl<T> LoggedIo<T> {
    pub(crate) fn new(io: T, log: Arc<WireLog>) -> Self {
        Self {
            io,
            log,
            written: FrameScanner::new(PREFACE),
            received: GoAwayScanner::new(),
        }
    }

    fn record_written<'a>(&mut self, slices: impl Iterator<Item = &'a [u8]>, mut count: usize) {
        for slice in slices {
            let mut part = &slice[..slice.len().min(count)];
            count -= part.len();
            while let Some(frame) = self.written.next(&mut part) {
                if frame.kind == HEADERS {
                    let highest = &self.log.highest_stream;
                    highest.fetch_max(frame.stream, Ordering::Release);
                }
            }
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

impl<T: AsyncRead + Unpin> AsyncRead for LoggedIo<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        let received = &buf.filled()[before..];
        if !received.is_empty() {
            let micros = u64::try_from(self.log.opened.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.log.last_received.store(micros, Ordering::Relaxed);
            if let Some(go_away) = self.received.scan(received) {
                self.log.record_go_away(&go_away);
            }
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::transport::frame_scanner::{GOAWAY, frame};

    /// Writes bytes to a logged socket and returns the highest stream.
    async fn highest_stream(chunks: impl Iterator<Item = &[u8]>) -> u32 {
        let log = WireLog::new();
        let (near, _far) = tokio::io::duplex(1 << 16);
        let mut io = LoggedIo::new(near, log.clone());
        for chunk in chunks {
            io.write_all(chunk).await.unwrap();
        }
        log.highest_stream.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn stream_counts_as_sent_after_its_headers() {
        let mut bytes = vec![b'x'; PREFACE];
        bytes.extend(frame(HEADERS, 0, 7, &[0; 30]));
        bytes.extend(frame(0, 0, 9, &[0; 5]));
        assert_eq!(highest_stream([&bytes[..PREFACE + 8]].into_iter()).await, 0);
        let found = highest_stream([&bytes[..]].into_iter()).await;
        assert_eq!(found, 7, "DATA opens no stream");
    }

    #[tokio::test(start_paused = true)]
    async fn unwritten_stream_is_unsent_only_after_close() {
        let log = WireLog::new();
        let (near, _far) = tokio::io::duplex(1024);
        let mut io = LoggedIo::new(near, log.clone());
        let mut bytes = vec![b'x'; PREFACE];
        bytes.extend(frame(HEADERS, 0, 3, &[0; 10]));
        io.write_all(&bytes).await.unwrap();
        assert!(!log.never_sent(5).await, "it may still be flushed");
        drop(io);
        assert!(log.never_sent(5).await);
        assert!(!log.never_sent(3).await);
    }

    #[tokio::test]
    async fn goaway_is_recorded_when_it_arrives() {
        let pings = [&[0, 0, 0, 0, 0, 0, 0, 11], TOO_MANY_PINGS].concat();
        for (payload, too_many_pings) in [
            (&pings[..], true),
            (&[0; 8][..], false),
            (&[0, 0, 0, 0, 0, 0, 0, 11][..], false),
        ] {
            let log = WireLog::new();
            let (near, mut far) = tokio::io::duplex(1024);
            let mut io = LoggedIo::new(near, log.clone());
            let bytes = frame(GOAWAY, 0, 0, payload);
            far.write_all(&bytes).await.unwrap();
            assert!(!log.has_gone_away());
            io.read_exact(&mut vec![0; bytes.len()]).await.unwrap();
            assert!(log.has_gone_away());
            assert_eq!(log.had_too_many_pings(), too_many_pings);
            log.gone_away().await;
        }
    }

    proptest! {
        #[test]
        fn scan_result_is_independent_of_chunk_size(
            frames in proptest::collection::vec((0u8..9, 0u32..1000, 0usize..50), 0..20),
            chunk_size in 1usize..40,
        ) {
            let mut bytes = vec![b'x'; PREFACE];
            let mut expected = 0;
            for (kind, stream, payload) in frames {
                bytes.extend(frame(kind, 0, stream, &vec![0xff; payload]));
                if kind == HEADERS {
                    expected = stream.max(expected);
                }
            }
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let found = runtime.block_on(highest_stream(bytes.chunks(chunk_size)));
            prop_assert_eq!(found, expected);
        }
    }
}
