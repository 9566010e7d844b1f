//! For this crate's own tests of what a crash costs. Not part of the API.

use crate::{
    balancer::CrashConnection,
    client::Client,
    error::Result,
    lease::engine::{CrashLease, CrashWhenDue},
    recipes::session::Session,
    runtime::supervisor,
    transport::Endpoint,
    watch::{
        Watch,
        engine::{hub::CrashStreams, watch_actor::CrashOnNextUpdate},
    },
};

/// How many actors of this crate live in this process.
pub fn live_actors() -> usize {
    supervisor::live_actors()
}

/// Makes the balancer panic.
pub fn crash_balancer(client: &Client) {
    client.caller().balancer.do_send(supervisor::Crash);
}

/// Makes the retry actor panic.
pub fn crash_retry(client: &Client) {
    client.caller().retries.do_send(supervisor::Crash);
}

/// Makes the auth actor panic.
pub fn crash_auth(client: &Client) {
    client.caller().tokens.crash();
}

/// Makes the connection actor of an endpoint panic.
pub fn crash_connection(client: &Client, endpoint: &str) -> Result<()> {
    let endpoint = Endpoint::parse(endpoint)?;
    client.caller().balancer.do_send(CrashConnection(endpoint));
    Ok(())
}

/// The same; whether it did.
pub async fn crash_connection_now(client: &Client, endpoint: &str) -> Result<bool> {
    let endpoint = Endpoint::parse(endpoint)?;
    let crashed = client.caller().balancer.send(CrashConnection(endpoint));
    Ok(crashed.await.unwrap_or(false))
}

/// What makes the actor of a watch panic at the next thing its stream says, whenever it is called.
pub fn crash_watch(watch: &Watch) -> impl Fn() + Send + use<> {
    let actor = watch.actor().clone();
    move || actor.do_send(CrashOnNextUpdate)
}

/// Makes the actor of every watch stream panic at the next answer it gets.
pub fn crash_watch_streams(client: &Client) {
    client.watches().do_send(CrashStreams);
}

/// Makes the actor panic that gives watches their streams; whether it did.
pub async fn crash_watch_hub(client: &Client) -> bool {
    client.watches().send(supervisor::Crash).await.is_err()
}

/// Makes the actor of a kept lease panic.
pub fn crash_lease(client: &Client, lease: i64) {
    client.lease_keeper().do_send(CrashLease(lease));
}

/// Makes the actor that owns the keepalive streams panic.
pub fn crash_lease_keeper(client: &Client) {
    client.lease_keeper().do_send(supervisor::Crash);
}

/// Makes the actor that owns the keepalive streams panic when it is about to send.
pub fn crash_lease_keeper_when_due(client: &Client) {
    client.lease_keeper().do_send(CrashWhenDue);
}

/// Makes the actor panic that heals a session.
pub fn crash_session(session: &Session) {
    session.actor().do_send(supervisor::Crash);
}
