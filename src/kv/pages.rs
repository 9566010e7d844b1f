//! Reading a range of any size page by page, at one revision.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{BufMut, Bytes, BytesMut};
use tokio_stream::Stream;

use super::{Get, GetResponse};
use crate::{
    error::{Error, ErrorKind, Result},
    proto::rpc,
    request::{ClientHandle, ResponseFuture},
};

/// A stream of pages; see [`Get::pages`]. It ends after the last page or the first error.
///
/// All pages show the range at the revision of the first page. A compaction of that revision ends the stream with
/// [`ErrorKind::Compacted`](crate::ErrorKind::Compacted).
#[must_use = "a stream does nothing until it is read"]
pub struct Pages<C> {
    state: PagesState<C>,
}

enum PagesState<C> {
    /// The next page is to be requested.
    Next(Box<Get<C>>),
    /// A page was requested.
    Reading(Box<Get<C>>, ResponseFuture<GetResponse>),
    /// The request is not valid.
    Invalid(Error),
    Ended,
}

impl<C: ClientHandle> Pages<C> {
    pub(super) fn new(first: Get<C>, invalid: Option<&'static str>) -> Self {
        let state = match invalid {
            Some(reason) => PagesState::Invalid(Error::invalid(reason).with_rpc(rpc::RANGE)),
            None => PagesState::Next(Box::new(first)),
        };
        Self { state }
    }

    /// Returns the next page; `None` after the last one.
    pub async fn next(&mut self) -> Option<Result<GetResponse>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl<C: ClientHandle> Stream for Pages<C> {
    type Item = Result<GetResponse>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match std::mem::replace(&mut self.state, PagesState::Ended) {
                PagesState::Ended => return Poll::Ready(None),
                PagesState::Invalid(error) => return Poll::Ready(Some(Err(error))),
                PagesState::Next(page) => {
                    let reading = page.clone().into_future();
                    self.state = PagesState::Reading(page, reading);
                }
                PagesState::Reading(page, mut reading) => {
                    let Poll::Ready(response) = reading.as_mut().poll(cx) else {
                        self.state = PagesState::Reading(page, reading);
                        return Poll::Pending;
                    };
                    // A member that lags behind does not have the first page's revision yet; a quorum has.
                    if let Err(error) = &response
                        && error.kind() == ErrorKind::FutureRevision
                        && let Some(page) = page.clone().linearizable()
                    {
                        self.state = PagesState::Next(Box::new(page));
                        continue;
                    }
                    return Poll::Ready(Some(response.and_then(|response| {
                        if let Some(next) = page.after(&response)? {
                            self.state = PagesState::Next(Box::new(next));
                        }
                        Ok(response)
                    })));
                }
            }
        }
    }
}

impl<C: ClientHandle> Get<C> {
    /// Returns the request for the page after this response, or `None` after the last page.
    fn after(self, response: &GetResponse) -> Result<Option<Self>> {
        let Some(last) = response.kvs.last().filter(|_| response.more) else {
            return Ok(None);
        };
        let revision = match self.wire()?.revision {
            0 => response.header.revision,
            requested => requested,
        };
        self.continued(successor(&last.key), revision).map(Some)
    }
}

/// Returns the smallest key after this one.
pub(super) fn successor(key: &[u8]) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.put_u8(0);
    next.freeze()
}
