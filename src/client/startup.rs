//! Starts the actors of a client.

use std::{
    panic::catch_unwind,
    sync::Arc,
    time::{Duration, Instant},
};

use actix::Addr;
use tokio::runtime::Handle;

use super::{
    Client, ClientBuilder,
    client_lifetime::ClientLifetime,
    endpoint_sync::sync_periodically,
    running_client::{ClientActors, RunningClient},
    update_endpoints,
};
use crate::{
    auth::{
        AuthMethod,
        engine::{AuthActor, AuthOptions},
    },
    balancer::{BalancerActor, ReadySetCell, messages::EndpointSource},
    call::{Caller, in_flight_limit::InFlightLimit, tokens::Tokens},
    connection::{
        ClusterId, ConnectionContext, OpenConnections, SharedProbeBudget,
        token::{TokenCell, header_value},
    },
    error::Error,
    lease::engine::keeper::KeeperActor,
    request::{ClientCore, ClientView},
    retry::{actor::RetryActor, budget::RetryBudget},
    runtime::thread::Runtime,
    transport::Endpoint,
    watch::engine::hub::{HubActor, WatchStreamSettings},
};

impl Client {
    pub(super) async fn start(
        options: ClientBuilder,
        endpoints: Vec<Endpoint>,
    ) -> Result<Self, Error> {
        let runtime = if options.on_current_arbiter {
            Runtime::current_arbiter()?
        } else {
            Runtime::own_thread()?
        };
        let ready_set = Arc::new(ReadySetCell::default());
        let token = Arc::new(TokenCell::default());
        let provider = match options.auth_method {
            AuthMethod::Anonymous => None,
            AuthMethod::FixedToken(value) => {
                token.replace(Some(header_value(&value)?));
                None
            }
            AuthMethod::Login(provider) => Some(provider),
        };
        let auth_options = provider.map(|provider| AuthOptions {
            provider,
            request_timeout: options.request_options.timeout,
            token_lifetime: options.token_lifetime,
        });
        let context = Arc::new(ConnectionContext {
            dial: options.dial,
            token: token.clone(),
            connections: OpenConnections::new(),
            members: ready_set.clone(),
            cluster: Arc::new(ClusterId::new(options.follow_cluster_change, token.clone())),
            follow_leader: options.balance_policy.follows_leader(),
            liveness: options.liveness,
            probes: SharedProbeBudget::default(),
        });
        let in_flight = InFlightLimit::new(options.max_in_flight);
        let budget = RetryBudget::new(options.retry_budget, Instant::now());
        let request_options = options.request_options;
        let (policy, retry_policy) = (options.balance_policy, options.retry_policy);
        let hedging = options.hedging;
        let (caller, auth) = runtime
            .call(move || {
                let retries = RetryActor::start();
                let balancer = BalancerActor::start(
                    context.clone(),
                    ready_set.clone(),
                    policy.clone(),
                    retries.clone().recipient(),
                );
                let token_members = ready_set.clone();
                let caller = Caller {
                    ready_set,
                    context,
                    policy,
                    retry_policy,
                    budget: Arc::new(budget),
                    hedging,
                    // A login carries no token, and other requests wait for it.
                    tokens: Tokens::fixed(Arc::default()),
                    in_flight: InFlightLimit::new(usize::MAX),
                    named_endpoint: None,
                    balancer,
                    retries,
                };
                let auth = auth_options
                    .map(|options| AuthActor::start(token.clone(), options, caller.clone()));
                let tokens = match &auth {
                    None => Tokens::fixed(token),
                    Some(actor) => {
                        Tokens::renewed_by(token, actor.clone().recipient(), token_members)
                    }
                };
                let caller = Caller {
                    in_flight,
                    tokens,
                    ..caller
                };
                (caller, auth)
            })
            .await?;
        // Awaited, so that the endpoints are known before the first request.
        update_endpoints(&caller, endpoints, EndpointSource::User).await?;

        let caller = Arc::new(caller);
        let (watch_hub, lease_keeper) =
            start_stream_actors(&runtime, &caller, options.watch_streams).await?;
        let actors = ClientActors {
            watch_hub,
            lease_keeper,
            balancer: caller.balancer.clone(),
            auth,
            shutdown_grace: options.shutdown_grace,
        };
        let running = Arc::new(RunningClient::new(caller, actors, request_options, runtime));
        if let Some(interval) = options.auto_sync {
            let client = Arc::downgrade(&running);
            running.run(Box::new(move || {
                actix_rt::spawn(sync_periodically(client, interval));
            }));
        }
        let lifetime = ClientLifetime::new(running.clone(), options.drop_grace);
        Ok(Self {
            running,
            lifetime: Some(Arc::new(lifetime)),
            view: ClientView::default(),
        })
    }
}

/// Starts the actors of watches and leases.
async fn start_stream_actors(
    runtime: &Runtime,
    caller: &Arc<Caller>,
    watch_streams: WatchStreamSettings,
) -> Result<(Addr<HubActor>, Addr<KeeperActor>), Error> {
    let (hub_caller, keeper_caller) = (caller.clone(), caller.clone());
    runtime
        .call(move || {
            (
                HubActor::start(hub_caller, watch_streams),
                KeeperActor::start(keeper_caller),
            )
        })
        .await
}

/// Fails outside of a tokio runtime and on one without a timer, where every request would panic.
pub(super) fn require_tokio_runtime() -> Result<(), Error> {
    const ADVICE: &str = "use `#[tokio::main]`, `#[actix_rt::main]` or `Builder::enable_all`";
    if Handle::try_current().is_err() {
        return Err(Error::invalid(format!(
            "the client needs a tokio runtime, but `connect` was called outside of one; {ADVICE}"
        )));
    }
    // tokio has no other way to find out: without a timer, creating a sleep panics.
    let timer = catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO)));
    timer.map_err(|_| {
        Error::invalid(format!(
            "the client needs a tokio runtime with its timer enabled, but this one has none; {ADVICE}"
        ))
    })
}
