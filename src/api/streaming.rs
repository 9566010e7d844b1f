//! Requests that are answered by a stream of messages.

use std::{
    fmt,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll},
};

use prost::Message;
use tokio::time::Instant;
use tokio_stream::Stream;

use crate::{
    client::Client,
    connection::Standing,
    error::{Error, Result},
    transport::{
        Endpoint,
        channel::{Metadata, StreamReceiver},
    },
};

type Reading<T> = Pin<Box<dyn Future<Output = Option<(Result<T>, Rest<T>)>> + Send>>;

/// What comes after an answer.
struct Rest<T>(Box<dyn FnOnce() -> Reading<T> + Send>);

/// A stream of answers from one member. It ends after the first error; dropping it ends it on the server.
#[must_use = "a stream does nothing until it is read"]
pub struct Answers<T> {
    reading: Option<Reading<T>>,
    answer: PhantomData<fn() -> T>,
}

impl<T: Send + 'static> Answers<T> {
    /// Sends a request whose answer is a stream, to that member or to any.
    pub(super) async fn open<Q, A>(
        client: &Client,
        path: &'static str,
        request: &Q,
        member: Option<Endpoint>,
    ) -> Result<Self>
    where
        Q: Message,
        A: Message + Default + 'static,
        T: TryFrom<A, Error = Error>,
    {
        let answers = open::<Q, A>(client, path, request, member).await?;
        Ok(Self {
            reading: Some(read(answers)),
            answer: PhantomData,
        })
    }

    /// The next answer; `None` after the end.
    pub async fn next(&mut self) -> Option<Result<T>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

/// The answers to a message, and the member they come from, which is probed for as long as they are read.
pub(super) struct Opened<A> {
    answers: StreamReceiver<A>,
    _standing: Standing,
}

impl<A: Message + Default> Opened<A> {
    pub(super) async fn next(&mut self) -> Result<Option<A>> {
        self.answers.next().await.map_err(|failure| failure.error)
    }
}

/// Opens a stream that one message asks for.
pub(super) async fn open<Q: Message, A: Message + Default>(
    client: &Client,
    path: &'static str,
    request: &Q,
    member: Option<Endpoint>,
) -> Result<Opened<A>> {
    let deadline = Instant::now() + client.request_timeout();
    let caller = match member {
        None => client.caller().clone(),
        Some(endpoint) => client.caller().at(endpoint)?,
    };
    let token = caller.tokens.current(deadline).await?;
    let connection = caller.ready_connection(deadline).await?;
    let metadata = Metadata {
        require_leader: false,
        token: token.value,
        timeout: None,
    };
    let (mut question, answers) = connection.channel.stream::<Q, A>(path, &metadata)?;
    question.send(request)?;
    question.finish();
    Ok(Opened {
        answers,
        _standing: connection.stand(),
    })
}

fn read<A, T>(mut opened: Opened<A>) -> Reading<T>
where
    A: Message + Default + 'static,
    T: TryFrom<A, Error = Error> + Send + 'static,
{
    Box::pin(async move {
        match opened.next().await {
            Ok(Some(answer)) => Some((answer.try_into(), Rest(Box::new(|| read(opened))))),
            Ok(None) => None,
            Err(error) => Some((Err(error), Rest(Box::new(|| Box::pin(async { None }))))),
        }
    })
}

impl<T: Send + 'static> Stream for Answers<T> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<T>>> {
        let Some(reading) = &mut self.reading else {
            return Poll::Ready(None);
        };
        let Poll::Ready(read) = reading.as_mut().poll(cx) else {
            return Poll::Pending;
        };
        self.reading = None;
        Poll::Ready(read.map(|(answer, rest)| {
            self.reading = Some((rest.0)());
            answer
        }))
    }
}

impl<T> fmt::Debug for Answers<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").finish_non_exhaustive()
    }
}
