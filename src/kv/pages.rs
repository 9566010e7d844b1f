//! A range of any size, page by page, at one revision.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{BufMut, Bytes, BytesMut};
use tokio_stream::Stream;

use super::{Get, GetResponse};
use crate::{
    client::Client,
    error::{Error, ErrorKind, Result},
    request::ResponseFuture,
};

/// A stream of pages; see [`Get::pages`]. It ends after the last page or the first error.
///
/// All pages show the range at one revision, that of the first page, whatever is written meanwhile. A compaction that
/// overtakes it ends it with [`ErrorKind::Compacted`](crate::ErrorKind::Compacted).
#[must_use = "a stream does nothing until it is read"]
pub struct Pages {
    state: State,
}

enum State {
    Next(Box<Get<Client>>),
    Reading(Box<Get<Client>>, ResponseFuture<GetResponse>),
    Refused(Error),
    Done,
}

impl Pages {
    pub(super) fn new(first: Get<Client>, refused: Option<&'static str>) -> Self {
        let state = match refused {
            Some(why) => State::Refused(Error::invalid(why)),
            None => State::Next(Box::new(first)),
        };
        Self { state }
    }

    /// The next page; `None` after the last one.
    pub async fn next(&mut self) -> Option<Result<GetResponse>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl Stream for Pages {
    type Item = Result<GetResponse>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match std::mem::replace(&mut self.state, State::Done) {
                State::Done => return Poll::Ready(None),
                State::Refused(error) => return Poll::Ready(Some(Err(error))),
                State::Next(page) => {
                    let reading = page.clone().into_future();
                    self.state = State::Reading(page, reading);
                }
                State::Reading(page, mut reading) => {
                    let Poll::Ready(answer) = reading.as_mut().poll(cx) else {
                        self.state = State::Reading(page, reading);
                        return Poll::Pending;
                    };
                    // A member that is behind does not have the first page's revision yet; a quorum has.
                    if let Err(error) = &answer
                        && error.kind() == ErrorKind::FutureRevision
                        && let Some(page) = page.clone().linearizable()
                    {
                        self.state = State::Next(Box::new(page));
                        continue;
                    }
                    return Poll::Ready(Some(answer.and_then(|answer| {
                        if let Some(next) = page.after(&answer)? {
                            self.state = State::Next(Box::new(next));
                        }
                        Ok(answer)
                    })));
                }
            }
        }
    }
}

impl Get<Client> {
    fn after(self, answer: &GetResponse) -> Result<Option<Self>> {
        let Some(last) = answer.kvs.last().filter(|_| answer.more) else {
            return Ok(None);
        };
        let revision = match self.wire()?.revision {
            0 => answer.header.revision,
            given => given,
        };
        self.continued(successor(&last.key), revision).map(Some)
    }
}

/// The smallest key after that one.
fn successor(key: &[u8]) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.put_u8(0);
    next.freeze()
}
