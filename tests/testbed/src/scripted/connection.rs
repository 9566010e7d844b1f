//! One connection to the scripted server, and the calls on it.

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

use super::frame_injection::{Extra, Wire};
use super::reply::{GoAway, Kind, Reply};
use super::stream::{Receiver, Sender, extend, framed, trailers};
use super::{Call, Greeting, Shared};

/// Enough for anything a test sends at once.
const WINDOW: u32 = 16 * 1024 * 1024;

const HEADERS_LEAVE: Duration = Duration::from_millis(10);

/// What a connection can be told.
pub(super) enum Command {
    /// Slip a GOAWAY in.
    GoAway { last: u32, reason: Reason },
    /// Finish what is open, then end.
    Finish,
    /// End now.
    End { reset: bool },
}

/// Counts the connection as open, and known to the server, for as long as it lives.
struct Open {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.shared.plan().connections.remove(&self.number);
        self.shared.open.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(super) async fn serve(shared: Arc<Shared>, mut socket: TcpStream, number: u64) {
    let _ = socket.set_nodelay(true);
    let (commands, mut orders) = mpsc::unbounded_channel();
    shared.open.fetch_add(1, Ordering::SeqCst);
    let (greeting, max_concurrent_streams) = {
        let mut plan = shared.plan();
        plan.connections.insert(number, commands.clone());
        (plan.greeting.clone(), plan.max_concurrent_streams)
    };
    let _open = Open {
        shared: shared.clone(),
        number,
    };
    let extra = Arc::new(Extra::default());
    match greeting {
        Greeting::Http2 => {}
        Greeting::Close => return drop(Wire::new(socket, extra)),
        Greeting::Silence | Greeting::Garbage(_) => {
            if let Greeting::Garbage(bytes) = greeting {
                let _ = socket.write_all(&bytes).await;
            }
            let _wire = Wire::new(socket, extra.clone());
            while let Some(order) = orders.recv().await {
                if let Command::End { reset } = order {
                    return end(&extra, reset);
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
        .handshake::<_, Bytes>(Wire::new(socket, extra.clone()))
        .await
    else {
        return;
    };
    // After the connection itself in this list, so that they go first: none may answer on a dead one.
    let mut calls = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            order = orders.recv() => match order {
                Some(Command::GoAway { last, reason }) => extra.go_away(last, reason),
                Some(Command::Finish) => connection.graceful_shutdown(),
                Some(Command::End { reset }) => return end(&extra, reset),
                None => return,
            },
            accepted = connection.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    calls.spawn(answer(shared.clone(), number, commands.clone(), request, respond));
                    while calls.try_join_next().is_some() {}
                }
                Some(Err(_)) | None => return,
            },
        }
    }
}

fn end(extra: &Extra, reset: bool) {
    if reset {
        extra.reset_at_end();
    }
}

async fn answer(
    shared: Arc<Shared>,
    connection: u64,
    commands: mpsc::UnboundedSender<Command>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let (head, body) = request.into_parts();
    let mut receiver = Receiver::new(body);
    let mut call = Call {
        path: head.uri.path().to_owned(),
        metadata: head.headers,
        body: Bytes::new(),
        connection,
        stream_id: respond.stream_id().as_u32(),
        nth: 0,
        at: Instant::now(),
    };
    let script = shared.head_script(&call.path);
    if script.is_none() {
        call.body = receiver.peek().await.unwrap_or_default();
    }
    let id = call.stream_id;
    let reply = shared.decide(call, script);
    if !reply.delay.is_zero() {
        sleep(reply.delay).await;
    }
    if let Some((last, reason)) = reply.go_away {
        let last = match last {
            GoAway::ExcludeThis => id.saturating_sub(2),
            GoAway::IncludeThis => id,
            GoAway::LastId(last) => last,
        };
        let _ = commands.send(Command::GoAway { last, reason });
    }
    if deliver(reply, &mut respond, receiver, &commands)
        .await
        .is_err()
    {
        shared.cancelled.fetch_add(1, Ordering::SeqCst);
    }
}

/// Fails if the client gave the call up first.
async fn deliver(
    reply: Reply,
    respond: &mut SendResponse<Bytes>,
    receiver: Receiver,
    commands: &mpsc::UnboundedSender<Command>,
) -> Result<(), h2::Error> {
    let start = |respond: &mut SendResponse<Bytes>| -> Result<SendStream<Bytes>, h2::Error> {
        let mut response = grpc_response();
        extend(response.headers_mut(), &reply.headers);
        respond.send_response(response, false)
    };
    match reply.kind {
        Kind::Message(message) => {
            let mut stream = start(respond)?;
            stream.send_data(framed(&message), false)?;
            stream.send_trailers(trailers(0, "", &reply.trailers))?;
        }
        Kind::Status(code, message) => {
            let mut response = grpc_response();
            extend(response.headers_mut(), &reply.headers);
            response
                .headers_mut()
                .extend(trailers(code, &message, &reply.trailers));
            respond.send_response(response, true)?;
        }
        Kind::Http(status) => {
            let mut response = Response::new(());
            *response.status_mut() = status.try_into().expect("a script's HTTP status is one");
            extend(response.headers_mut(), &reply.headers);
            respond.send_response(response, true)?;
        }
        Kind::Hang => {
            let reason = poll_fn(|cx| respond.poll_reset(cx)).await?;
            return Err(reason.into());
        }
        Kind::Reset { reason, headers } => {
            if headers {
                let mut stream = start(respond)?;
                // A reset overtakes what is still queued: the headers need time to leave.
                sleep(HEADERS_LEAVE).await;
                stream.send_reset(reason);
            } else {
                respond.send_reset(reason);
            }
        }
        Kind::End { reset } => {
            let _ = commands.send(Command::End { reset });
            // Giving the stream up now would reset it before the connection ends.
            std::future::pending::<()>().await;
        }
        Kind::Streaming(talk) => {
            let stream = start(respond)?;
            talk(Sender::new(stream, reply.trailers), receiver).await;
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
