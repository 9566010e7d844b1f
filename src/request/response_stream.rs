//! Requests that are answered by a stream of messages.

use std::{
    fmt,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use prost::Message;
use tokio::time::Instant;
use tokio_stream::Stream;

use crate::{
    auth::engine::{Token, Tokens},
    call::Caller,
    client::Client,
    connection::{Connection, StreamRegistration},
    error::{Error, Result},
    transport::{
        Endpoint,
        channel::{Metadata, StreamReceiver},
    },
};

/// New tokens that may be refused, too, before the stream has said anything.
const REFUSALS: usize = 3;

type Reading<T> = Pin<Box<dyn Future<Output = Option<(Result<T>, Rest<T>)>> + Send>>;

/// What comes after an answer.
struct Rest<T>(Box<dyn FnOnce() -> Reading<T> + Send>);

/// A stream of answers from one member. It ends after the first error; dropping it ends it on the server.
#[must_use = "a stream does nothing until it is read"]
pub struct ResponseStream<T> {
    reading: Option<Reading<T>>,
    answer: PhantomData<fn() -> T>,
}

impl<T: Send + 'static> ResponseStream<T> {
    /// Sends a request whose answer is a stream, to that member or to any.
    pub(crate) async fn open<Q, A>(
        client: &Client,
        path: &'static str,
        request: Q,
        member: Option<Endpoint>,
    ) -> Result<Self>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
        T: TryFrom<A, Error = Error>,
    {
        let question = Question {
            caller: match member {
                None => client.caller().clone(),
                Some(endpoint) => client.caller().at(endpoint)?,
            },
            patience: client.request_timeout(),
            path,
            request,
        };
        let opened = question.ask::<A>().await?;
        Ok(Self {
            reading: Some(read_first(question, opened)),
            answer: PhantomData,
        })
    }

    /// The next answer; `None` after the end.
    pub async fn next(&mut self) -> Option<Result<T>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

/// The answers to a message, and the member they come from, which is probed for as long as they are read.
pub(crate) struct Opened<A> {
    answers: StreamReceiver<A>,
    tokens: Tokens,
    token: Token,
    _registration: StreamRegistration,
}

impl<A: Message + Default> Opened<A> {
    /// Sends one message that is answered by a stream.
    pub(crate) fn new<Q: Message>(
        connection: &Arc<Connection>,
        (tokens, token): (Tokens, Token),
        path: &'static str,
        request: &Q,
    ) -> Result<Self> {
        let metadata = Metadata {
            require_leader: false,
            token: token.value.clone(),
            timeout: None,
        };
        let (mut question, answers) = connection.channel.stream::<Q, A>(path, &metadata)?;
        question.send(request)?;
        question.finish();
        Ok(Self {
            answers,
            tokens,
            token,
            _registration: connection.register_stream(),
        })
    }

    pub(crate) async fn next(&mut self) -> Result<Option<A>> {
        self.answers.next().await.map_err(|failure| failure.error)
    }

    /// Whether this is a refusal of the token, and another one can be had: it is asked for.
    fn token_refused(&self, error: &Error) -> bool {
        self.tokens.turned_down(&self.token, error.kind())
    }
}

/// What is asked, as often as its token is refused.
struct Question<Q> {
    caller: Caller,
    patience: Duration,
    path: &'static str,
    request: Q,
}

impl<Q: Message> Question<Q> {
    async fn ask<A: Message + Default>(&self) -> Result<Opened<A>> {
        let deadline = Instant::now() + self.patience;
        let tokens = self.caller.tokens.clone();
        let token = tokens.current(deadline).await?;
        let connection = self.caller.ready_connection(deadline).await?;
        Opened::new(&connection, (tokens, token), self.path, &self.request)
    }
}

/// Reads the first answer. Until it has come, nobody notices that a token was too old.
fn read_first<Q, A, T>(question: Question<Q>, mut opened: Opened<A>) -> Reading<T>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
    T: TryFrom<A, Error = Error> + Send + 'static,
{
    Box::pin(async move {
        let mut first = opened.next().await;
        for _ in 0..REFUSALS {
            match &first {
                Err(refused) if opened.token_refused(refused) => {}
                _ => break,
            }
            first = match question.ask().await {
                Ok(again) => {
                    opened = again;
                    opened.next().await
                }
                Err(error) => Err(error),
            };
        }
        drop(question);
        after(first, opened)
    })
}

fn read<A, T>(mut opened: Opened<A>) -> Reading<T>
where
    A: Message + Default + 'static,
    T: TryFrom<A, Error = Error> + Send + 'static,
{
    Box::pin(async move {
        let next = opened.next().await;
        if let Err(error) = &next {
            // This stream is over; whoever opens it again has a new token.
            opened.token_refused(error);
        }
        after(next, opened)
    })
}

fn after<A, T>(answer: Result<Option<A>>, opened: Opened<A>) -> Option<(Result<T>, Rest<T>)>
where
    A: Message + Default + 'static,
    T: TryFrom<A, Error = Error> + Send + 'static,
{
    match answer {
        Ok(Some(answer)) => Some((answer.try_into(), Rest(Box::new(|| read(opened))))),
        Ok(None) => None,
        Err(error) => Some((Err(error), Rest(Box::new(|| Box::pin(async { None }))))),
    }
}

impl<T: Send + 'static> Stream for ResponseStream<T> {
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

impl<T> fmt::Debug for ResponseStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseStream").finish_non_exhaustive()
    }
}
