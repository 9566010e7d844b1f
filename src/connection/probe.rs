//! Asks a member how it is, and makes the first contact on a new connection.
//!
//! etcd answers HTTP/2 pings while it is cut off from its peers, and punishes frequent ones. So it is asked at the
//! application: `Maintenance.Status` with `hasleader` tells dead, frozen and leaderless apart.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, sleep_until, timeout};

use super::Sighting;
use crate::{
    error::{Error, ErrorKind, Outcome},
    proto::{
        StatusRequest, StatusResponse,
        health::{HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus},
    },
    transport::{
        Endpoint,
        channel::{Channel, ChannelMonitor, Metadata, RequestTracker},
        dial::{DialOptions, dial},
        driver::Driver,
        grpc,
    },
};

const STATUS: &str = "/etcdserverpb.Maintenance/Status";
const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";
/// Silence for that long means that the member does not answer.
const SILENCE: Duration = Duration::from_millis(400);
/// A member that says something, if not what was asked, is slow rather than gone.
const SLOWNESS: Duration = Duration::from_secs(2);
/// A member whose bytes keep coming has the question waiting behind a large answer, but not for ever.
const OCCUPIED: Duration = Duration::from_secs(10);
/// A timer that fires later than this tells of a stall of our own thread, not of the member.
const OWN_STALL: Duration = Duration::from_millis(100);

/// What came of a probe.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It told its state.
    Seen(Sighting),
    /// It answered that it may not tell (authentication): alive, and with a leader.
    Alive,
    /// It has no leader.
    NoLeader,
    /// No answer.
    Silent,
    /// The connection broke, or what came was no answer.
    Broken(Error),
}

/// A connection on which a member has answered.
pub(crate) struct FirstContact {
    pub(crate) channel: Channel,
    pub(crate) driver: DriverTask,
    pub(crate) answer: Answer,
    /// Whether it answered only when it was asked without the token.
    pub(crate) token_ignored: bool,
}

/// What a connection in use tells of itself.
pub(crate) enum DriverNews {
    /// It takes no more requests; those under way may still be answered.
    Refused,
    /// It ended, and why.
    Ended(String),
}

/// The task that drives a connection; dropping it ends the connection at once.
pub(crate) struct DriverTask(Option<tokio::task::JoinHandle<()>>);

impl DriverTask {
    fn spawn(driver: Driver, streams: ChannelMonitor, told: impl Fn(DriverNews) + 'static) -> Self {
        Self(Some(actix_rt::spawn(async move {
            let mut driver = std::pin::pin!(driver);
            let reason = tokio::select! {
                biased;
                reason = &mut driver => reason,
                () = streams.closed_to_requests() => {
                    told(DriverNews::Refused);
                    driver.await
                }
            };
            told(DriverNews::Ended(reason));
        })))
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.0
            .as_ref()
            .is_none_or(tokio::task::JoinHandle::is_finished)
    }

    /// Lets the connection end by itself when its last request has finished; resolves then.
    pub(crate) fn finish(mut self) -> impl Future<Output = ()> + 'static {
        let task = self.0.take();
        async move {
            if let Some(task) = task {
                // A driver that panicked has ended, too.
                let _ = task.await;
            }
        }
    }
}

impl Drop for DriverTask {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.abort();
        }
    }
}

/// Dials, shakes hands and waits for a first answer, all within the connect time-out.
pub(crate) async fn first_contact(
    endpoint: &Endpoint,
    options: &DialOptions,
    metadata: &Metadata,
    told: impl Fn(DriverNews) + 'static,
) -> Result<FirstContact, Error> {
    let attempt = async {
        let dialled = dial(endpoint, options).await?;
        let driver = DriverTask::spawn(dialled.driver, dialled.channel.monitor(), told);
        let (answer, token_ignored) = introduce(&dialled.channel, metadata).await;
        match answer {
            Answer::Broken(error) if endpoint.is_tls() => Err(options
                .tls
                .explain_disconnect(not_etcd(error))
                .with_endpoint(endpoint.name())),
            Answer::Broken(error) => Err(not_etcd(error)),
            answer => {
                dialled.channel.store_stream_limit();
                Ok(FirstContact {
                    channel: dialled.channel,
                    driver,
                    answer,
                    token_ignored,
                })
            }
        }
    };
    timeout(options.connect_timeout, attempt)
        .await
        .unwrap_or_else(|_| {
            let text = format!("no answer within {:?}", options.connect_timeout);
            Err(
                Error::new(ErrorKind::MemberUnresponsive, Outcome::NotSent, text)
                    .with_endpoint(endpoint.name()),
            )
        })
}

/// The first question, and whether only the one without the token was answered: a member of another cluster may keep
/// a token that it does not know waiting for ever.
async fn introduce(channel: &Channel, metadata: &Metadata) -> (Answer, bool) {
    let mut asked = std::pin::pin!(status(channel, metadata));
    if metadata.token.is_none() {
        return (asked.await, false);
    }
    tokio::select! {
        biased;
        answer = &mut asked => return (answer, false),
        () = sleep_until(Instant::now() + SILENCE) => {}
    }
    let anonymous = Metadata {
        token: None,
        ..metadata.clone()
    };
    tokio::select! {
        biased;
        answer = &mut asked => (answer, false),
        answer = status(channel, &anonymous) => (answer, true),
    }
}

/// What breaks before the first answer is mostly a port that speaks something else.
fn not_etcd(error: Error) -> Error {
    let foreign = std::error::Error::source(&error)
        .and_then(|source| source.downcast_ref::<h2::Error>())
        .is_some_and(|error| !error.is_io() && !error.is_remote());
    if !foreign {
        return maybe_tls(error);
    }
    let endpoint = error.endpoint().map(Into::into);
    let refused = Error::new(
        ErrorKind::Protocol,
        Outcome::NotSent,
        "it does not answer in HTTP/2: a wrong port, or one that expects TLS (https://)",
    )
    .with_source(error);
    match endpoint {
        Some(endpoint) => refused.with_endpoint(endpoint),
        None => refused,
    }
}

/// A port that expects TLS closes the connection without a word.
fn maybe_tls(error: Error) -> Error {
    let plain = error
        .endpoint()
        .is_some_and(|endpoint| endpoint.starts_with("http://"));
    if !plain || error.kind() != ErrorKind::ConnectionLost {
        return error;
    }
    let text = format!("{}; does it expect TLS (https://)?", error.brief());
    let endpoint = error.endpoint().map(Into::into);
    let explained = Error::new(ErrorKind::ConnectionLost, error.outcome(), text).with_source(error);
    match endpoint {
        Some(endpoint) => explained.with_endpoint(endpoint),
        None => explained,
    }
}

/// Probes an established connection. Silence is judged by the socket, not by the answer alone, and quickly only where
/// `others_answer` since then: a machine on which nobody answers is slow as a whole.
pub(crate) async fn ask(
    channel: &Channel,
    metadata: &Metadata,
    others_answer: impl Fn(Instant) -> bool,
) -> Answer {
    let asked = Instant::now();
    let mut question = std::pin::pin!(status(channel, metadata));
    let mut limit = asked + SILENCE;
    loop {
        tokio::select! {
            biased;
            answer = &mut question => return answer,
            () = sleep_until(limit) => {}
        }
        let now = Instant::now();
        if now > limit + OWN_STALL {
            limit = now + SILENCE / 2;
        } else if now < asked + SLOWNESS
            && (channel.wire_log().last_received() > asked || !others_answer(asked))
        {
            limit = (now + SILENCE).min(asked + SLOWNESS);
        } else if now < asked + OCCUPIED && channel.wire_log().last_received() + SILENCE > now {
            limit = now + SILENCE;
        } else {
            return Answer::Silent;
        }
    }
}

async fn status(channel: &Channel, metadata: &Metadata) -> Answer {
    let body = match grpc::encode(&StatusRequest::default()) {
        Ok(body) => body,
        Err(error) => return Answer::Broken(error),
    };
    answer_of(
        channel
            .unary(STATUS, metadata, body, &RequestTracker::default())
            .await,
    )
}

fn answer_of(result: Result<StatusResponse, grpc::RpcFailure>) -> Answer {
    match result {
        Ok(status) => {
            let header = status.header.unwrap_or_default();
            Answer::Seen(Sighting {
                at: Instant::now(),
                cluster: header.cluster_id,
                member: header.member_id,
                leader: status.leader,
                term: status.raft_term,
                index: status.raft_index,
                learner: status.is_learner,
            })
        }
        Err(failure) => match (failure.error.kind(), failure.error.code()) {
            (ErrorKind::NoLeader, _) => Answer::NoLeader,
            // The member itself spoke, whatever it said.
            (_, Some(_)) => Answer::Alive,
            (_, None) => Answer::Broken(failure.error),
        },
    }
}

/// Follows the member's health service, and tells whenever it starts or stops serving. Ends where there is none.
pub(crate) async fn watch_serving(channel: Channel, metadata: Metadata, told: impl Fn(bool)) {
    let opened = channel.stream::<HealthCheckRequest, HealthCheckResponse>(HEALTH_WATCH, &metadata);
    let Ok((mut question, mut answers)) = opened else {
        return;
    };
    // The channel would keep the connection open after everybody else has let go of it.
    drop(channel);
    if question.send(&HealthCheckRequest::default()).is_err() {
        return;
    }
    question.finish();
    while let Ok(Some(answer)) = answers.next().await {
        told(answer.status() != ServingStatus::NotServing);
    }
    // Nobody would tell that it serves again: from here on only the probes do.
    told(true);
}
