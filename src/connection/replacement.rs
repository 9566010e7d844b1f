//! Replaces a connection to a member that cannot be used. The client leaves the connection in use only after the
//! replacement has responded.
//!
//! An endpoint is not always a member. Behind a load balancer or a host name with several addresses, the next
//! connection may lead to another member, so an endpoint whose member cannot be used is dialled again. A replacement
//! that leads to the same member, or to another bad one, is closed, and the next is dialled after a growing delay.

use std::{net::SocketAddr, time::Duration};

use actix::{AsyncContext, Context};
use tokio::time::Instant;

use super::{
    ConnectionActor, MemberHealth, Verdict, active_connection::ActiveConnection,
    first_contact::FirstContact, member_health::ProgressTracker, retired::retire,
    state_machine::ConnectionAction,
};
use crate::{error::Error, transport::dial::DialOptions};

/// Shortest time between two replacements whose only reason is slow calls.
const LEAVE_SLOW_MEMBER_SPACING: Duration = Duration::from_secs(3);

impl ConnectionActor {
    /// Starts or ends the attempts to replace the connection in use, after a probe with this verdict.
    pub(super) fn review_replacement(&mut self, verdict: Verdict, ctx: &mut Context<Self>) {
        if verdict.calls_for_replacement() || self.is_only_and_slow() {
            self.want_replacement(ctx);
        } else {
            let action = self.machine.keep_connection();
            self.apply(action, ctx);
        }
    }

    /// Returns the settings of an attempt to replace the connection in use. Its timeout is shorter than that of the
    /// first dial, because the round trips of the link are known.
    pub(super) fn replacement_options(&self) -> DialOptions {
        let mut options = self.context.dial.clone();
        if let Some(active) = &self.active {
            let patience = active.connection.timing.unresponsive_after() * 2;
            options.connect_timeout = options.connect_timeout.min(patience);
        }
        options
    }

    pub(super) fn want_replacement(&mut self, ctx: &mut Context<Self>) {
        let action = self
            .machine
            .want_replacement(Instant::now(), fastrand::f64());
        if action != ConnectionAction::None {
            let active = self.active.as_ref();
            self.avoid_address(active.and_then(|active| active.address));
        }
        self.apply(action, ctx);
    }

    /// Makes the next dial try this address last, because it led to a bad member.
    pub(super) fn avoid_address(&self, address: Option<SocketAddr>) {
        if let Some(address) = address {
            let mut addresses = self.addresses.borrow_mut();
            addresses.mark_failed(address, Instant::now());
        }
    }

    /// Returns whether calls are slow and no other endpoint is ready: with a single endpoint there is no other member
    /// whose raft position would show that this one is cut off.
    fn is_only_and_slow(&mut self) -> bool {
        let now = Instant::now();
        let Some(active) = self.active.as_mut() else {
            return false;
        };
        if !active.connection.is_suspected() {
            active.suspected_since = None;
            return false;
        }
        let patience = active.connection.timing.suspect_after() * 2;
        let recently = |at| now < at + LEAVE_SLOW_MEMBER_SPACING;
        active
            .suspected_since
            .is_some_and(|since| since + patience <= now)
            && !self.left_slow_member_at.is_some_and(recently)
            && !self.context.members.other_members(self.id).any_ready
    }

    /// Uses a replacement if it is better than the connection in use.
    pub(super) fn handle_replacement(
        &mut self,
        generation: u64,
        result: Result<FirstContact, Error>,
        ctx: &mut Context<Self>,
    ) {
        let now = Instant::now();
        let mut progress = ProgressTracker::default();
        let accepted = result.ok().and_then(|contact| {
            let usable =
                contact.is_open() && self.context.cluster.accepts(contact.response.cluster());
            let health = self.evaluate_contact(&contact, &mut progress);
            let active = self.active.as_ref()?;
            if !usable || !is_better(active, &health, now) {
                self.avoid_address(contact.address);
                return None;
            }
            Some((contact, health))
        });
        let Some((contact, health)) = accepted else {
            let action = self
                .machine
                .replacement_rejected(generation, now, fastrand::f64());
            return self.apply(action, ctx);
        };
        let action = self.machine.replacement_succeeded(generation, now);
        if action == ConnectionAction::None {
            return;
        }
        let verdict = health.verdict;
        let old = self.active.take();
        self.activate(generation, contact, progress, health, ctx);
        self.error = None;
        self.outage = None;
        self.apply(action, ctx);
        if let Some(old) = old {
            self.leave(old, now, ctx);
        }
        self.schedule_probe(verdict, ctx);
    }

    /// Closes a replaced connection: at once if its member is silent, otherwise when its requests in flight have
    /// finished.
    fn leave(&mut self, mut old: ActiveConnection, now: Instant, ctx: &mut Context<Self>) {
        if let Some(pending) = old.next_probe.take() {
            ctx.cancel_future(pending);
        }
        let verdict = old.connection.health().verdict;
        tracing::info!(
            endpoint = %self.endpoint,
            reason = verdict.reason(),
            "connection replaced by one to a better member"
        );
        if verdict.is_fine() {
            self.left_slow_member_at = Some(now);
        }
        if old.is_silent(now) {
            old.set_verdict(Verdict::Unresponsive);
        } else {
            actix_rt::spawn(retire(old, self.metadata()));
        }
    }
}

/// Returns whether a new connection is better than the one in use.
fn is_better(active: &ActiveConnection, replacement: &MemberHealth, now: Instant) -> bool {
    if !replacement.verdict.is_fine() {
        return false;
    }
    let verdict = active.connection.health().verdict;
    let connection_failed =
        matches!(verdict, Verdict::Late | Verdict::Unreachable) || active.is_silent(now);
    let member = replacement.status.map(|status| status.member);
    // A cut-off member still trusts its old leader for a while, so a second connection to it looks fine.
    connection_failed || member.is_none() || member != active.member()
}
