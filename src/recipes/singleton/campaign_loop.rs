//! Campaigns for a singleton, runs the actor while this node leads, and stops it in time.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    rc::Rc,
    time::Duration,
};

use actix::{Actor, Context};
use tokio::sync::watch;

use super::{
    SingletonBuilder,
    run_times::{CampaignFailures, RunTimes},
    singleton_state::LocalState,
    time_limited_actor::TimeLimitedActor,
};
use crate::{
    error::{Error, ErrorKind, Outcome, Result},
    recipes::{
        election::{Leadership, Ownership},
        session::Session,
    },
    retry::availability::RETRY_DELAY,
    runtime::{
        backoff::Backoff,
        holders::{Holder, StopSignal},
    },
};

/// Delays before the next campaign after failed ones.
const FAILURE_BACKOFF: Backoff =
    Backoff::new(Duration::from_secs(1), Duration::from_secs(10)).jitter(0.2);
/// A campaign that lasts for this long without an error counts as good.
const SETTLED: Duration = Duration::from_secs(1);
/// Shortest and longest time between two checks of the lease. Timers stop while the machine is suspended, and the
/// remaining time does not.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(10);
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct CampaignLoop<A: Actor, F> {
    pub(super) builder: SingletonBuilder,
    pub(super) times: RunTimes,
    pub(super) factory: F,
    pub(super) state: watch::Sender<LocalState<A>>,
}

/// Why the loop must end.
pub(super) struct EndSignals {
    /// Set by `stop`, closed when the last handle is dropped.
    pub(super) stop: watch::Receiver<bool>,
    pub(super) client_stops: StopSignal,
}

impl EndSignals {
    async fn wait(&mut self) {
        tokio::select! {
            _ = self.stop.wait_for(|stop| *stop) => {}
            () = self.client_stops.wait() => {}
        }
    }
}

/// Why the actor does not run on this node, or no longer does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopReason {
    /// The singleton was stopped, or its client shuts down.
    Ended,
    LeadershipAtRisk,
    Unhealthy,
    ActorEnded,
}

/// A leadership under which the actor runs. Dropping it resigns, so it is dropped after the actor.
struct HeldLeadership {
    /// Makes a shutdown of the client wait until the actor has ended. Dropped before the session, which may be the last
    /// handle of the client: its drop waits for all holders.
    holder: Holder,
    leadership: Leadership,
    session: Session,
}

impl<A, F> CampaignLoop<A, F>
where
    A: Actor<Context = Context<A>>,
    F: FnMut(Ownership) -> A,
{
    pub(super) async fn run(mut self, mut end: EndSignals) {
        let mut backoff = FAILURE_BACKOFF.start();
        let mut failures = CampaignFailures::default();
        loop {
            let delay = match self.campaign_and_run(&mut end).await {
                Ok(StopReason::Ended) => break,
                Ok(_) => {
                    backoff = FAILURE_BACKOFF.start();
                    RETRY_DELAY
                }
                Err(error) if error.kind() == ErrorKind::Shutdown => break,
                Err(error) => {
                    if failures.must_log(&error, tokio::time::Instant::now().into_std()) {
                        let name = &self.builder.name;
                        tracing::warn!(?name, %error, "singleton campaign failed");
                    }
                    self.state.send_replace(LocalState::Failing(error));
                    backoff.next_delay(fastrand::f64())
                }
            };
            tokio::select! {
                () = end.wait() => break,
                () = tokio::time::sleep(delay) => {}
            }
        }
        self.state.send_replace(LocalState::Stopped);
    }

    /// Opens a session, campaigns, runs the actor, and stops it.
    async fn campaign_and_run(&mut self, end: &mut EndSignals) -> Result<StopReason> {
        let session = tokio::select! {
            biased;
            () = end.wait() => return Ok(StopReason::Ended),
            session = self.open_session_when_healthy() => session?,
        };
        let campaigned = tokio::select! {
            biased;
            () = end.wait() => Err(StopReason::Ended),
            () = self.unhealthy() => Err(StopReason::Unhealthy),
            won = self.campaign(&session) => won?,
        };
        let leadership = match campaigned {
            Ok(leadership) => leadership,
            Err(reason) => {
                session.close().await?;
                return Ok(reason);
            }
        };
        let holder = session.client().holders().register(leadership.lease());
        if !holder.hold(self.times.margin) {
            return Err(Error::shut_down());
        }
        let held = Rc::new(HeldLeadership {
            holder,
            leadership,
            session,
        });
        let reason = self.run_actor(&held, end).await?;
        // Resign only after the actor has ended. If a request fails, dropping the handles retries in the background.
        if reason != StopReason::LeadershipAtRisk
            && let Some(held) = Rc::into_inner(held)
        {
            held.holder.stop();
            held.leadership.resign().await?;
            held.session.close().await?;
        }
        Ok(reason)
    }

    async fn open_session_when_healthy(&self) -> Result<Session> {
        if let Some(health) = &self.builder.health
            && !health.is_healthy()
        {
            self.state.send_replace(LocalState::Unhealthy);
            health.healthy().await;
        }
        if matches!(*self.state.borrow(), LocalState::Unhealthy) {
            self.state.send_replace(LocalState::Waiting);
        }
        self.builder.client.session(self.builder.ttl).await
    }

    /// Campaigns until this node leads and has enough time to run the actor. Returns a [`StopReason`] if the leadership is
    /// at risk before that.
    async fn campaign(&self, session: &Session) -> Result<Result<Leadership, StopReason>> {
        let election = session.election(self.builder.name.clone());
        let campaign = election.campaign(self.builder.value.clone());
        let mut campaign = pin!(campaign.into_future());
        let leadership = tokio::select! {
            won = &mut campaign => won?,
            () = tokio::time::sleep(SETTLED) => {
                self.state.send_replace(LocalState::Waiting);
                campaign.await?
            }
        };
        let mut lost = pin!(leadership.lost());
        while !self.times.may_start(leadership.remaining()) {
            tokio::select! {
                _ = &mut lost => return Ok(Err(StopReason::LeadershipAtRisk)),
                () = tokio::time::sleep(MIN_CHECK_INTERVAL) => {}
            }
        }
        Ok(Ok(leadership))
    }

    /// Runs the actor until it must stop or ends by itself, and waits for its end.
    async fn run_actor(
        &mut self,
        held: &Rc<HeldLeadership>,
        end: &mut EndSignals,
    ) -> Result<StopReason> {
        let leadership = &held.leadership;
        let ownership = (**leadership).clone();
        let create = AssertUnwindSafe(|| (self.factory)(ownership.clone()));
        let Ok(actor) = catch_unwind(create) else {
            tracing::error!(key = ?ownership.key(), "singleton factory panicked");
            return Err(Error::new(
                ErrorKind::Other,
                Outcome::Rejected,
                "the factory of the singleton panicked",
            ));
        };
        let margin = self.times.margin;
        let remaining = move || ownership.remaining();
        let mut actor = TimeLimitedActor::start(actor, margin, remaining, held.clone());
        self.state
            .send_replace(LocalState::Running(actor.addr.clone()));
        let reason = tokio::select! {
            biased;
            () = end.wait() => StopReason::Ended,
            () = at_risk(leadership, margin) => StopReason::LeadershipAtRisk,
            () = self.unhealthy() => StopReason::Unhealthy,
            () = actor.ended() => StopReason::ActorEnded,
        };
        self.state.send_replace(LocalState::Stopping);
        stop(actor, leadership).await;
        self.state.send_replace(LocalState::Waiting);
        Ok(reason)
    }

    /// Waits until this node is not healthy.
    async fn unhealthy(&self) {
        match &self.builder.health {
            Some(health) => {
                health.unhealthy().await;
                let name = &self.builder.name;
                tracing::warn!(?name, "singleton given up, node is not healthy");
            }
            None => std::future::pending().await,
        }
    }
}

/// Waits until the leadership is lost, or certain for no longer than `margin`.
async fn at_risk(leadership: &Leadership, margin: Duration) {
    let mut lost = pin!(leadership.lost());
    loop {
        let spare = leadership.remaining().saturating_sub(margin);
        if spare.is_zero() {
            return;
        }
        tokio::select! {
            _ = &mut lost => return,
            () = tokio::time::sleep(spare.clamp(MIN_CHECK_INTERVAL, MAX_CHECK_INTERVAL)) => {}
        }
    }
}

/// Stops the actor and waits until it has ended, however long that takes.
async fn stop<A: Actor<Context = Context<A>>>(
    mut actor: TimeLimitedActor<A>,
    leadership: &Leadership,
) {
    actor.stop();
    loop {
        let remaining = leadership.remaining();
        let limit = remaining.clamp(MIN_CHECK_INTERVAL, MAX_CHECK_INTERVAL);
        if tokio::time::timeout(limit, actor.ended()).await.is_ok() {
            return;
        }
        if leadership.remaining().is_zero() {
            tracing::error!(
                key = ?leadership.key(),
                "singleton did not stop before its lease ended and may have run on two nodes"
            );
            // Its time is over, so it cannot refuse.
            actor.stop();
            return actor.ended().await;
        }
    }
}
