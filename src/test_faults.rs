//! Crashes on demand, a replacement of DNS, and internal state, for this crate's own tests. Not part of the API.

use std::{io, net::SocketAddr};

use actix::Addr;

use crate::{
    balancer::messages::{CrashConnection, ExpireNamedEndpoints},
    client::{Client, ClientBuilder},
    error::Result,
    lease::engine::keeper::{CrashLease, CrashWhenDue, KeeperActor},
    recipes::session::Session,
    runtime::supervisor,
    transport::{Endpoint, resolver::Resolver},
    watch::{
        Watch,
        engine::{
            hub::{CrashStreams, HubActor},
            watch_actor::CrashOnNextUpdate,
        },
    },
};

/// Returns the number of running actors of this crate in this process.
pub fn live_actors() -> usize {
    supervisor::live_actors()
}

/// Makes a client look up host names with this function, which receives host and port.
pub fn with_resolver(
    builder: ClientBuilder,
    lookup: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
) -> ClientBuilder {
    builder.resolver(Resolver::from_fn(lookup))
}

/// Ends the time for which named endpoints stay connected, and waits until this is done.
pub async fn expire_named_endpoints(client: &Client) {
    let _ = client.caller().balancer.send(ExpireNamedEndpoints).await;
}

/// Returns the number of ready connections that the runtime of their callers drives.
pub fn connections_driven_by_callers(client: &Client) -> usize {
    let ready_set = client.caller().ready_set.load();
    let connections = ready_set.ready.iter();
    connections
        .filter(|connection| connection.channel.is_driven_by_callers())
        .count()
}

/// Makes the balancer panic.
pub fn crash_balancer(client: &Client) {
    client.caller().balancer.do_send(supervisor::Crash);
}

/// Makes the retry actor panic.
pub fn crash_retry(client: &Client) {
    client.caller().retries.do_send(supervisor::Crash);
}

/// Makes the auth actor panic, if the client has one.
pub fn crash_auth(client: &Client) {
    if let Some(auth) = &client.actors().auth {
        auth.do_send(supervisor::Crash);
    }
}

/// Makes the connection actor of an endpoint panic.
pub fn crash_connection(client: &Client, endpoint: &str) -> Result<()> {
    let endpoint = Endpoint::parse(endpoint)?;
    client.caller().balancer.do_send(CrashConnection(endpoint));
    Ok(())
}

/// Makes the connection actor of an endpoint panic. Returns whether there was one.
pub async fn crash_connection_now(client: &Client, endpoint: &str) -> Result<bool> {
    let endpoint = Endpoint::parse(endpoint)?;
    let crashed = client.caller().balancer.send(CrashConnection(endpoint));
    Ok(crashed.await.unwrap_or(false))
}

/// Returns a function that makes the actor of a watch panic at its next message from the stream.
pub fn crash_watch(watch: &Watch) -> impl Fn() + Send + use<> {
    let actor = watch.actor().clone();
    move || actor.do_send(CrashOnNextUpdate)
}

/// Makes the actor of every watch stream panic at its next response.
pub fn crash_watch_streams(client: &Client) {
    hub(client).do_send(CrashStreams);
}

/// Makes the hub of watches panic. Returns whether it did.
pub async fn crash_watch_hub(client: &Client) -> bool {
    hub(client).send(supervisor::Crash).await.is_err()
}

/// Makes the actor of a kept lease panic.
pub fn crash_lease(client: &Client, lease: i64) {
    keeper(client).do_send(CrashLease(lease));
}

/// Makes the actor that owns the keepalive streams panic.
pub fn crash_lease_keeper(client: &Client) {
    keeper(client).do_send(supervisor::Crash);
}

/// Makes the actor that owns the keepalive streams panic when it is about to send.
pub fn crash_lease_keeper_when_due(client: &Client) {
    keeper(client).do_send(CrashWhenDue);
}

/// Makes the actor of a session panic.
pub fn crash_session(session: &Session) {
    session.actor().do_send(supervisor::Crash);
}

fn hub(client: &Client) -> &Addr<HubActor> {
    &client.actors().watch_hub
}

fn keeper(client: &Client) -> &Addr<KeeperActor> {
    &client.actors().lease_keeper
}
