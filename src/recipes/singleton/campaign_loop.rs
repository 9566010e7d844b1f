//! Campaigns for a singleton, runs the actor while this node leads, and stops it in time.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    time::Duration,
};

use actix::{Actor, Context};
use tokio::sync::watch;

use super::{
    SingletonBuilder, singleton_handle::ActorLocation, time_limited_actor::TimeLimitedActor,
};
use crate::{
    error::{Error, ErrorKind, Outcome, Result},
    recipes::{
        election::{Leadership, Ownership},
        temporary_errors::RETRY_DELAY,
    },
};

/// Delay before the next campaign after a failed one.
const FAILURE_DELAY: Duration = Duration::from_secs(1);
/// Shortest time between two checks of the lease.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(10);

pub(super) struct CampaignLoop<A: Actor, F> {
    pub(super) builder: SingletonBuilder,
    pub(super) margin: Duration,
    pub(super) factory: F,
    pub(super) location: watch::Sender<ActorLocation<A>>,
}

/// Why the actor no longer runs on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopReason {
    /// The handle was dropped or `stop` was called.
    Requested,
    LeadershipAtRisk,
    ActorEnded,
}

impl<A, F> CampaignLoop<A, F>
where
    A: Actor<Context = Context<A>>,
    F: FnMut(Ownership) -> A,
{
    pub(super) async fn run(mut self, mut stopped: watch::Receiver<()>) {
        loop {
            let delay = match self.campaign_and_run(&mut stopped).await {
                Ok(StopReason::Requested) => return,
                Ok(StopReason::LeadershipAtRisk | StopReason::ActorEnded) => RETRY_DELAY,
                Err(error) if error.kind() == ErrorKind::Shutdown => return,
                Err(error) => {
                    tracing::warn!(%error, "singleton campaign failed, retrying");
                    FAILURE_DELAY
                }
            };
            tokio::select! {
                _ = stopped.changed() => return,
                () = tokio::time::sleep(delay) => {}
            }
        }
    }

    /// Opens a session, campaigns, runs the actor, and stops it.
    async fn campaign_and_run(&mut self, stopped: &mut watch::Receiver<()>) -> Result<StopReason> {
        let builder = &self.builder;
        let campaign = async {
            let session = builder.client.session(builder.ttl).await?;
            let election = session.election(builder.name.clone());
            let leadership = election.campaign(builder.value.clone()).await?;
            Ok::<_, Error>((session, leadership))
        };
        let (session, leadership) = tokio::select! {
            biased;
            _ = stopped.changed() => return Ok(StopReason::Requested),
            won = campaign => won?,
        };
        let ownership = (*leadership).clone();
        let create = AssertUnwindSafe(|| (self.factory)(ownership.clone()));
        let Ok(actor) = catch_unwind(create) else {
            tracing::error!(key = ?ownership.key(), "singleton factory panicked");
            leadership.resign().await?;
            return Err(Error::new(
                ErrorKind::Other,
                Outcome::Rejected,
                "the factory of the singleton panicked",
            ));
        };
        let mut actor = TimeLimitedActor::start(actor, self.margin, move || ownership.remaining());
        self.location
            .send_replace(ActorLocation::Here(actor.addr.clone()));
        let reason = tokio::select! {
            biased;
            () = at_risk(&leadership, self.margin) => StopReason::LeadershipAtRisk,
            _ = stopped.changed() => StopReason::Requested,
            () = actor.ended() => StopReason::ActorEnded,
        };
        self.location.send_replace(ActorLocation::Stopping);
        stop(actor, &leadership).await;
        self.location.send_replace(ActorLocation::Elsewhere);
        // Resign only after the actor has ended. If a request fails, dropping the handles retries in the background.
        if reason != StopReason::LeadershipAtRisk {
            leadership.resign().await?;
            session.close().await?;
        }
        Ok(reason)
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
            () = tokio::time::sleep(spare.max(MIN_CHECK_INTERVAL)) => {}
        }
    }
}

/// Stops the actor and waits until it has ended, however long that takes.
async fn stop<A: Actor<Context = Context<A>>>(
    mut actor: TimeLimitedActor<A>,
    leadership: &Leadership,
) {
    actor.stop();
    let remaining = leadership.remaining();
    let in_time = tokio::time::timeout(remaining, actor.ended()).await;
    if in_time.is_err() {
        tracing::error!(
            key = ?leadership.key(),
            "singleton did not stop before its lease ended and may run on two nodes"
        );
        actor.ended().await;
    }
}
