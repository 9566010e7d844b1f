//! One connection of the scripted server, and its calls.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{Request, Response};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::frame_injection::{InjectingSocket, Injection};
use super::reply::{GoAway, Reply, ReplyKind};
use super::stream::{Receiver, Sender, extend, framed, trailers};
use super::{Call, Greeting, Shared};

/// Large enough for all requests that a test sends at once.
const WINDOW: u32 = 16 * 1024 * 1024;

/// Time for queued headers to reach the socket.
const FLUSH_TIME: Duration = Duration::from_millis(10);

/// Command to a connection task.
pub(super) enum Command {
    /// Send GOAWAY.
    GoAway { last: u32, reason: Reason },
    /// Send GOAWAY, complete the open streams, then close.
    ShutDownGracefully,
    /// Close now.
    Close { reset: bool },
}

/// Registers the connection with the server until dropped.
struct Registration {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.shared.state().connections.remove(&self.number);
        self.shared.open.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(super) async fn serve(shared: Arc<Shared>, mut socket: TcpStream, number: u64) {
    let _ = socket.set_nodelay(true);
    let (commands, mut received_commands) = mpsc::unbounded_channel();
    shared.open.fetch_add(1, Ordering::SeqCst);
    let (greeting, max_concurrent_streams) = {
        let mut state = shared.state();
        state.connections.insert(number, commands.clone());
        (state.greeting.clone(), state.max_concurrent_streams)
    };
    let _registration = Registration {
        shared: shared.clone(),
        number,
    };
    let injection = Arc::new(Injection::default());
    match greeting {
        Greeting::Http2 => {}
        Greeting::Close => return drop(InjectingSocket::new(socket, injection)),
        Greeting::Silence | Greeting::Garbage(_) => {
            if let Greeting::Garbage(bytes) = greeting {
                let _ = socket.write_all(&bytes).await;
            }
            let _socket = InjectingSocket::new(socket, injection.clone());
            while let Some(command) = received_commands.recv().await {
                if let Command::Close { reset } = command {
                    return close(&injection, reset);
                }
            }
            return;
        }
    }
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW);
    if let Some(streams) = max_concurrent_streams {
        builder.max_concurrent_streams(streams);
    }
    let Ok(mut connection) = builder
        .handshake::<_, Bytes>(InjectingSocket::new(socket, injection.clone()))
        .await
    else {
        return;
    };
    // Declared after the connection, so that the calls are dropped before it.
    let mut calls = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            command = received_commands.recv() => match command {
                Some(Command::GoAway { last, reason }) => injection.go_away(last, reason),
                Some(Command::ShutDownGracefully) => connection.graceful_shutdown(),
                Some(Command::Close { reset }) => return close(&injection, reset),
                None => return,
            },
            accepted = connection.accept() => match accepted {
                Some(Ok((request, sender))) => {
                    calls.spawn(respond(shared.clone(), number, commands.clone(), request, sender));
                    while calls.try_join_next().is_some() {}
                }
                Some(Err(_)) | None => return,
            },
        }
    }
}

fn close(injection: &Injection, reset: bool) {
    if reset {
        injection.reset_on_drop();
    }
}

async fn respond(
    shared: Arc<Shared>,
    connection: u64,
    commands: mpsc::UnboundedSender<Command>,
    request: Request<RecvStream>,
    mut sender: SendResponse<Bytes>,
) {
    let (head, body) = request.into_parts();
    let mut receiver = Receiver::new(body);
    let mut call = Call {
        path: head.uri.path().to_owned(),
        metadata: head.headers,
        body: Bytes::new(),
        connection,
        stream_id: sender.stream_id().as_u32(),
        nth: 0,
        at: Instant::now(),
    };
    let script = shared.headers_script(&call.path);
    if script.is_none() {
        call.body = receiver.peek().await.unwrap_or_default();
    }
    let stream_id = call.stream_id;
    let reply = shared.run_script(call, script);
    if !reply.delay.is_zero() {
        sleep(reply.delay).await;
    }
    if let Some((last, reason)) = reply.go_away {
        let last = match last {
            GoAway::ExcludeThis => stream_id.saturating_sub(2),
            GoAway::IncludeThis => stream_id,
            GoAway::LastId(last) => last,
        };
        let _ = commands.send(Command::GoAway { last, reason });
    }
    if send_reply(reply, &mut sender, receiver, &commands)
        .await
        .is_err()
    {
        shared.cancelled.fetch_add(1, Ordering::SeqCst);
    }
}

/// Sends the reply. Fails if the client cancelled the call.
async fn send_reply(
    reply: Reply,
    sender: &mut SendResponse<Bytes>,
    receiver: Receiver,
    commands: &mpsc::UnboundedSender<Command>,
) -> Result<(), h2::Error> {
    let start = |sender: &mut SendResponse<Bytes>| -> Result<SendStream<Bytes>, h2::Error> {
        let mut response = grpc_response();
        extend(response.headers_mut(), &reply.headers);
        sender.send_response(response, false)
    };
    match reply.kind {
        ReplyKind::Message(message) => {
            let mut stream = start(sender)?;
            stream.send_data(framed(&message), false)?;
            stream.send_trailers(trailers(0, "", &reply.trailers))?;
        }
        ReplyKind::Status(code, message) => {
            let mut response = grpc_response();
            extend(response.headers_mut(), &reply.headers);
            response
                .headers_mut()
                .extend(trailers(code, &message, &reply.trailers));
            sender.send_response(response, true)?;
        }
        ReplyKind::Http(status) => {
            let mut response = Response::new(());
            *response.status_mut() = status.try_into().expect("a valid HTTP status");
            extend(response.headers_mut(), &reply.headers);
            sender.send_response(response, true)?;
        }
        ReplyKind::Hang => {
            let reason = poll_fn(|cx| sender.poll_reset(cx)).await?;
            return Err(reason.into());
        }
        ReplyKind::Reset { reason, headers } => {
            if headers {
                let mut stream = start(sender)?;
                // A reset discards queued frames, so the headers need time to be sent.
                sleep(FLUSH_TIME).await;
                stream.send_reset(reason);
            } else {
                sender.send_reset(reason);
            }
        }
        ReplyKind::CloseConnection { reset } => {
            let _ = commands.send(Command::Close { reset });
            // Dropping the stream now would reset it before the connection closes.
            std::future::pending::<()>().await;
        }
        ReplyKind::Streaming(handler) => {
            let stream = start(sender)?;
            handler(Sender::new(stream, reply.trailers), receiver).await;
        }
    }
    Ok(())
}

fn grpc_response() -> Response<()> {
    let mut response = Response::new(());
    let grpc = http::HeaderValue::from_static("application/grpc");
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, grpc);
    response
}
