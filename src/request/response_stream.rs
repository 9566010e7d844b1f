//! Requests whose response is a stream of messages.

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

use super::ClientHandle;
use crate::{
    call::{Caller, tokens::Tokens},
    connection::{Connection, EndpointId, StreamRegistration, token::Token},
    error::{Error, Result},
    proto::rpc::Rpc,
    transport::{
        Endpoint,
        channel::{Metadata, StreamReceiver},
    },
};

/// How many renewed tokens may be rejected before the first message arrives.
const TOKEN_RETRIES: usize = 3;

type Reading<T> = Pin<Box<dyn Future<Output = Option<(Result<T>, NextRead<T>)>> + Send>>;

/// Changes a message before it is returned.
type Translate<T> = Box<dyn FnMut(&mut T) + Send>;

/// Starts to read the message after the current one.
struct NextRead<T>(Box<dyn FnOnce() -> Reading<T> + Send>);

/// A stream of messages from one member. It ends after the first error; dropping it cancels it on the server.
#[must_use = "a stream does nothing until it is read"]
pub struct ResponseStream<T> {
    reading: Option<Reading<T>>,
    translate: Option<Translate<T>>,
    message: PhantomData<fn() -> T>,
}

impl<T: Send + 'static> ResponseStream<T> {
    /// Sends a request to one member, or to any, and returns the stream of its responses.
    pub(crate) async fn open<Q, R>(
        client: &impl ClientHandle,
        rpc: Rpc,
        request: Q,
        member: Option<Endpoint>,
    ) -> Result<Self>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
        T: TryFrom<R, Error = Error>,
    {
        let request = StreamRequest {
            caller: match member {
                None => client.caller().clone(),
                Some(endpoint) => client.caller().at(endpoint)?,
            },
            timeout: client.request_timeout(),
            rpc,
            message: request,
        };
        let opened = request.send::<R>().await?;
        Ok(Self {
            reading: Some(read_first(request, opened)),
            translate: None,
            message: PhantomData,
        })
    }

    /// Changes every message with this function before it is returned.
    pub(crate) fn translated(mut self, translate: impl FnMut(&mut T) + Send + 'static) -> Self {
        self.translate = Some(Box::new(translate));
        self
    }

    /// Returns the next message; `None` after the end.
    pub async fn next(&mut self) -> Option<Result<T>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

/// An open stream of responses. Its member is probed while the stream is open.
pub(crate) struct OpenStream<R> {
    responses: StreamReceiver<R>,
    member: EndpointId,
    tokens: Tokens,
    token: Token,
    _registration: StreamRegistration,
}

impl<R: Message + Default> OpenStream<R> {
    /// Sends one message whose response is a stream.
    pub(crate) fn new<Q: Message>(
        connection: &Arc<Connection>,
        (tokens, token): (Tokens, Token),
        rpc: Rpc,
        request: &Q,
    ) -> Result<Self> {
        let metadata = Metadata {
            require_leader: false,
            token: token.value.clone(),
            timeout: None,
        };
        let (mut requests, responses) = connection.channel.stream::<Q, R>(rpc.path, &metadata)?;
        requests.send(request)?;
        requests.finish();
        Ok(Self {
            responses,
            member: connection.id,
            tokens,
            token,
            _registration: connection.register_stream(),
        })
    }

    pub(crate) async fn next(&mut self) -> Result<Option<R>> {
        self.responses.next().await.map_err(|failure| failure.error)
    }

    /// Returns whether the error is a rejected token that can be renewed, and requests the renewal.
    fn token_rejected(&self, error: &Error) -> bool {
        let tokens = &self.tokens;
        tokens.report_refused(self.member, &self.token, error.kind())
    }
}

/// A request that can be sent again with a renewed token.
struct StreamRequest<Q> {
    caller: Caller,
    timeout: Duration,
    rpc: Rpc,
    message: Q,
}

impl<Q: Message> StreamRequest<Q> {
    async fn send<R: Message + Default>(&self) -> Result<OpenStream<R>> {
        let deadline = Instant::now() + self.timeout;
        let tokens = self.caller.tokens.clone();
        let token = tokens.current(deadline).await?;
        let connection = self.caller.ready_connection(deadline).await?;
        OpenStream::new(&connection, (tokens, token), self.rpc, &self.message)
    }
}

/// Reads the first message. If the token is rejected before it arrives, renews the token and sends the request again.
fn read_first<Q, R, T>(request: StreamRequest<Q>, mut opened: OpenStream<R>) -> Reading<T>
where
    Q: Message + 'static,
    R: Message + Default + 'static,
    T: TryFrom<R, Error = Error> + Send + 'static,
{
    Box::pin(async move {
        let mut first = opened.next().await;
        for _ in 0..TOKEN_RETRIES {
            match &first {
                Err(error) if opened.token_rejected(error) => {}
                _ => break,
            }
            first = match request.send().await {
                Ok(again) => {
                    opened = again;
                    opened.next().await
                }
                Err(error) => Err(error),
            };
        }
        drop(request);
        converted(first, opened)
    })
}

fn read<R, T>(mut opened: OpenStream<R>) -> Reading<T>
where
    R: Message + Default + 'static,
    T: TryFrom<R, Error = Error> + Send + 'static,
{
    Box::pin(async move {
        let next = opened.next().await;
        if let Err(error) = &next {
            // This stream has ended, but the next one needs a new token.
            opened.token_rejected(error);
        }
        converted(next, opened)
    })
}

fn converted<R, T>(
    response: Result<Option<R>>,
    opened: OpenStream<R>,
) -> Option<(Result<T>, NextRead<T>)>
where
    R: Message + Default + 'static,
    T: TryFrom<R, Error = Error> + Send + 'static,
{
    match response {
        Ok(Some(response)) => Some((response.try_into(), NextRead(Box::new(|| read(opened))))),
        Ok(None) => None,
        Err(error) => Some((Err(error), NextRead(Box::new(|| Box::pin(async { None }))))),
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
        Poll::Ready(read.map(|(mut message, next)| {
            self.reading = Some((next.0)());
            if let (Ok(message), Some(translate)) = (&mut message, &mut self.translate) {
                translate(message);
            }
            message
        }))
    }
}

impl<T> fmt::Debug for ResponseStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseStream").finish_non_exhaustive()
    }
}
