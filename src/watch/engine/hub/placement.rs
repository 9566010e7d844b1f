//! Chooses a member and a stream for a watch.

use std::sync::Arc;

use actix::{Addr, AsyncContext, Context};
use tokio::time::Instant;

use super::{
    HubActor,
    actor::{Placement, SharedStream},
    messages::AttachWatch,
};
use crate::{
    balancer::ReadyEndpoints,
    connection::{Connection, EndpointId},
    error::{Error, ErrorKind},
    transport::channel::Metadata,
    watch::engine::watch_stream::{
        SEQUENTIAL_WATCHES_PER_STREAM, StreamActor, StreamSharing, WatchCount,
    },
};

impl HubActor {
    /// Adds the watch to a stream, or queues it until a member is usable.
    pub(super) fn place(&mut self, attach: AttachWatch, ctx: &mut Context<Self>) {
        if let Some((number, address)) = self.reserve_stream(&attach, ctx) {
            self.set_placement(attach.add.watch, Placement::OnStream(number));
            address.do_send(attach.add);
        } else {
            self.set_placement(attach.add.watch, Placement::Queued);
            if self.member_of_other_leg(&attach).is_some() {
                return self.wait_for_second_member(attach, ctx);
            }
            let leaderless = !attach.require_leader();
            self.queued.push(attach);
            self.retry_later(leaderless, ctx);
        }
    }

    fn set_placement(&mut self, watch: u64, placement: Placement) {
        if let Some(placed) = self.watches.get_mut(&watch) {
            placed.placement = placement;
        }
    }

    /// Returns a stream on the member that the balancing policy picks, with the watch added to its watch count.
    fn reserve_stream(
        &mut self,
        attach: &AttachWatch,
        ctx: &mut Context<Self>,
    ) -> Option<(u64, Addr<StreamActor>)> {
        // Members whose connection allows no more streams.
        let mut full = Vec::new();
        // Each round either returns a stream or excludes a connection.
        while let Some(connection) = self.pick_member(attach, &full) {
            if attach.add.sharing == StreamSharing::Shared
                && let Some(reserved) = self.reserve_shared_stream(&connection, attach)
            {
                return Some(reserved);
            }
            match self.open_stream(&connection, attach, ctx) {
                Ok(opened) => return Some(opened),
                Err(error) if error.kind() == ErrorKind::TooManyRequests => {
                    tracing::debug!(%error, "could not open watch stream");
                    // A watch that should be alone shares a stream before it waits for a free one.
                    if let Some(reserved) = self.reserve_shared_stream(&connection, attach) {
                        return Some(reserved);
                    }
                    full.push(connection.id);
                }
                Err(error) => {
                    let endpoint = &connection.endpoint;
                    tracing::debug!(%endpoint, %error, "could not open watch stream");
                    self.member_backoff
                        .connection_died(connection.id, connection.generation);
                }
            }
        }
        None
    }

    /// Returns a shared stream on this connection that has room for the watch.
    fn reserve_shared_stream(
        &self,
        connection: &Connection,
        attach: &AttachWatch,
    ) -> Option<(u64, Addr<StreamActor>)> {
        let token_generation = self.caller.context.token.generation();
        let limit = if self.id_choosing_members.contains(&connection.id) {
            self.settings
                .watches_per_stream
                .min(SEQUENTIAL_WATCHES_PER_STREAM)
        } else {
            self.settings.watches_per_stream
        };
        let stream = self.streams.iter().rev().find(|stream| {
            (stream.endpoint, stream.generation) == (connection.id, connection.generation)
                && stream.require_leader == attach.require_leader()
                && stream.sharing == StreamSharing::Shared
                && stream.token_generation == token_generation
                && stream.watch_count.try_add(limit)
        })?;
        Some((stream.number, stream.address.clone()))
    }

    fn pick_member(&self, attach: &AttachWatch, full: &[EndpointId]) -> Option<Arc<Connection>> {
        let set = self.caller.ready_set.load();
        let now = Instant::now();
        let usable = |connections: &[Arc<Connection>], with_leader: bool| -> Vec<Arc<Connection>> {
            let is_usable = |connection: &&Arc<Connection>| {
                // The snapshot may be older than the member's health.
                (!with_leader || connection.health().verdict.is_fine())
                    && !full.contains(&connection.id)
                    && self
                        .member_backoff
                        .allows(connection.id, connection.generation, now)
            };
            connections.iter().filter(is_usable).cloned().collect()
        };
        let mut members = usable(&set.ready, true);
        let mut connected = set.ready.len();
        let other_leg = self.member_of_other_leg(attach);
        let is_apart = |connection: &Arc<Connection>| {
            other_leg.is_none_or(|member| !member.may_be_behind(connection))
        };
        members.retain(is_apart);
        if members.is_empty() && !attach.require_leader() {
            members = usable(&set.leaderless, false);
            connected += set.leaderless.len();
            members.retain(is_apart);
        }
        let is_other = |connection: &Arc<Connection>| {
            Some(connection.id) != attach.avoid && !connection.refuses_tokens()
        };
        if members.iter().any(is_other) {
            members.retain(is_other);
        }
        if members.is_empty() {
            return None;
        }
        let candidates = if members.len() == connected {
            ReadyEndpoints::all(&members)
        } else {
            ReadyEndpoints::some(&members)
        };
        let index = self.caller.policy.pick(&candidates);
        let index = if index < members.len() { index } else { 0 };
        Some(members.swap_remove(index))
    }

    fn open_stream(
        &mut self,
        connection: &Arc<Connection>,
        attach: &AttachWatch,
        ctx: &mut Context<Self>,
    ) -> Result<(u64, Addr<StreamActor>), Error> {
        let require_leader = attach.require_leader();
        self.last_stream += 1;
        let number = self.last_stream;
        let watch_count = WatchCount::default();
        // A stream keeps the token it was opened with, for all watches that are ever created on it.
        let token = self.caller.context.token.load_without_waiting();
        let metadata = Metadata {
            require_leader,
            token: token.value,
            timeout: None,
        };
        let hub = ctx.address().downgrade();
        let address = StreamActor::start(
            number,
            connection.clone(),
            &metadata,
            hub,
            watch_count.clone(),
            self.settings.progress_interval,
        )?;
        watch_count.try_add(usize::MAX);
        self.streams.push(SharedStream {
            number,
            endpoint: connection.id,
            generation: connection.generation,
            require_leader,
            sharing: attach.add.sharing,
            token_generation: token.generation,
            watch_count,
            address: address.clone(),
        });
        Ok((number, address))
    }
}
