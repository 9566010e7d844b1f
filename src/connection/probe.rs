//! Asks a member how it is, and makes the first contact on a new connection.
//!
//! etcd answers HTTP/2 pings while it is cut off from its peers, and punishes frequent ones. So it is asked at the
//! application: `Maintenance.Status` with `hasleader` tells dead, frozen and leaderless apart.

use std::{future::Future, sync::atomic::AtomicU32, time::Duration};

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
        channel::{Channel, Metadata},
        dial::{DialOptions, Driver, dial},
        grpc,
    },
};

const STATUS: &str = "/etcdserverpb.Maintenance/Status";
const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";
/// Silence for that long means that the member does not answer.
const SILENCE: Duration = Duration::from_millis(400);
/// A member that says something, if not what was asked, is slow rather than gone.
const SLOWNESS: Duration = Duration::from_secs(2);
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
}

/// The task that drives a connection; dropping it ends the connection at once.
pub(crate) struct DriverTask(Option<tokio::task::JoinHandle<()>>);

impl DriverTask {
    fn spawn(driver: Driver, ended: impl FnOnce(String) + 'static) -> Self {
        Self(Some(actix_rt::spawn(async move { ended(driver.await) })))
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
    ended: impl FnOnce(String) + 'static,
) -> Result<FirstContact, Error> {
    let attempt = async {
        let dialled = dial(endpoint, options).await?;
        let driver = DriverTask::spawn(dialled.driver, ended);
        match status(&dialled.channel, metadata).await {
            Answer::Broken(error) if endpoint.is_tls() => Err(options
                .tls
                .explain(not_etcd(error))
                .with_endpoint(endpoint.name())),
            Answer::Broken(error) => Err(not_etcd(error)),
            answer => {
                dialled.channel.learn_limits();
                Ok(FirstContact {
                    channel: dialled.channel,
                    driver,
                    answer,
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

/// Probes an established connection. Silence is judged by the socket, not by the answer alone.
pub(crate) async fn ask(channel: &Channel, metadata: &Metadata) -> Answer {
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
        } else if channel.wire().last_heard() > asked && now < asked + SLOWNESS {
            limit = (now + SILENCE).min(asked + SLOWNESS);
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
    let unused = AtomicU32::new(0);
    answer_of(channel.unary(STATUS, metadata, body, &unused).await)
}

fn answer_of(result: Result<StatusResponse, grpc::Failure>) -> Answer {
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
}
