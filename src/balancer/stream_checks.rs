//! Checks the members that carry long-lived streams.
//!
//! An idle stream does not notice that its member is frozen or cut off. So these members are probed at intervals,
//! together with others: only a comparison shows that a member is silent alone, or that it does not receive what the
//! others commit. All are probed at the same time, so a cut-off member is known after two checks. If each member had its
//! own timer, it could take three.

use std::time::Duration;

use actix::{AsyncContext, Context, Handler};

use super::{
    BalancerActor, actor::ManagedEndpoint, handlers::COMPARED_MEMBERS, messages::CheckStreams,
};
use crate::connection::messages::{RoutineProbe, StreamsStarted};

/// Relative deviation of the interval, so that the checks of many clients do not coincide.
const JITTER: f64 = 0.05;
/// Shortest interval per checked member: the checks use at most two thirds of the client's probe budget.
const INTERVAL_PER_MEMBER: Duration = Duration::from_millis(75);
/// The number of members does not make the interval longer than this. The probe budget limits the rate.
const LONGEST_INTERVAL: Duration = Duration::from_secs(3);

impl BalancerActor {
    /// Schedules the next check if a connection carries streams and no check is scheduled.
    pub(super) fn schedule_stream_check(&mut self, ctx: &mut Context<Self>) {
        let checked = self.checked_members().count();
        if self.stream_check.is_some() || checked == 0 {
            return;
        }
        let configured = self.context.liveness.stream_checks();
        let interval = check_interval(configured, checked, fastrand::f64());
        self.stream_check = Some(ctx.notify_later(CheckStreams, interval));
    }

    /// Returns the connected members that carry streams, then others for comparison. Empty if no member carries
    /// streams.
    fn checked_members(&self) -> impl Iterator<Item = &ManagedEndpoint> {
        let with_streams = self.connected(true);
        let compared = match self.connected(true).next() {
            Some(_) => COMPARED_MEMBERS,
            None => 0,
        };
        with_streams.chain(self.connected(false).take(compared))
    }

    fn connected(&self, with_streams: bool) -> impl Iterator<Item = &ManagedEndpoint> {
        self.endpoints.iter().filter(move |endpoint| {
            let connection = endpoint.view.connection.as_ref();
            connection.is_some_and(|connection| connection.has_streams() == with_streams)
        })
    }
}

impl Handler<StreamsStarted> for BalancerActor {
    type Result = ();

    fn handle(&mut self, _: StreamsStarted, ctx: &mut Context<Self>) {
        self.schedule_stream_check(ctx);
    }
}

impl Handler<CheckStreams> for BalancerActor {
    type Result = ();

    fn handle(&mut self, _: CheckStreams, ctx: &mut Context<Self>) {
        self.stream_check = None;
        for endpoint in self.checked_members() {
            endpoint.actor.do_send(RoutineProbe);
        }
        self.schedule_stream_check(ctx);
    }
}

/// Returns the time between two checks of this many members. `random` lies between 0 and 1.
fn check_interval(configured: Duration, members: usize, random: f64) -> Duration {
    let members = u32::try_from(members).unwrap_or(u32::MAX);
    let for_members = INTERVAL_PER_MEMBER.saturating_mul(members);
    let interval = configured.max(for_members.min(LONGEST_INTERVAL));
    interval.mul_f64(1.0 + JITTER * (2.0 * random - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn interval_varies_by_five_percent() {
        assert_eq!(check_interval(ms(680), 3, 0.5), ms(680));
        assert_eq!(check_interval(ms(680), 3, 0.0), ms(646));
        assert_eq!(check_interval(ms(680), 3, 1.0), ms(714));
    }

    #[test]
    fn many_members_are_checked_less_often() {
        assert_eq!(check_interval(ms(680), 9, 0.5), ms(680));
        assert_eq!(check_interval(ms(680), 20, 0.5), ms(1500));
        assert_eq!(check_interval(ms(680), 100, 0.5), ms(3000));
        assert_eq!(check_interval(ms(9000), 100, 0.5), ms(9000));
    }
}
