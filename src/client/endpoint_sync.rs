//! Updates the endpoints from the cluster's member list, once or periodically.
//!
//! Members can advertise addresses that the client cannot reach, for example behind a load balancer. Therefore a new
//! address is adopted only after its member has responded with the right cluster id, an empty list is never adopted,
//! and the endpoints given by the user stay as a fallback. `advertised_endpoints` decides which addresses are
//! considered at all.
//!
//! New addresses are checked on separate connections, without a token. The endpoints of the client change in one step
//! after all checks, so a sync that ends early changes nothing.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::{sync::oneshot, time::sleep};

use super::{Client, RunningClient, advertised_endpoints::advertised_endpoints, update_endpoints};
use crate::{
    balancer::{ReadySet, messages::EndpointSource, split_tls_downgrades},
    call::Caller,
    connection::{ConnectionContext, ConnectivityState, cluster_at},
    error::{Error, ErrorKind},
    proto::{Member, MemberListRequest, MemberListResponse, rpc},
    request::{ClientCore, ClientView, macros::response_headers},
    runtime::{abort_on_drop::AbortOnDrop, backoff::Backoff},
    transport::{Endpoint, grpc},
};

response_headers!(MemberListResponse);

/// Share of the sync interval that jitter adds or subtracts.
const SYNC_JITTER: f64 = 0.1;

type SyncResult = Result<Vec<String>, Error>;

impl Client {
    /// Replaces the endpoints by the addresses in the cluster's member list, and returns the endpoints then in use.
    ///
    /// Leaves out learners, members that have not started, and new addresses that do not respond with this cluster's
    /// id; they receive no token. A list cannot lead to Unix sockets, link-local addresses (169.254.0.0/16,
    /// `fe80::/10`), or plain addresses if the client's own endpoints are encrypted (unless
    /// `TlsOptions::allow_plain_endpoints` is set). At most 100 addresses are used.
    ///
    /// If no address is left, the endpoints stay as they are. If no member can be reached, the endpoints that were
    /// given to the client are tried, too. If [`set_endpoints`](Self::set_endpoints) is called meanwhile, its endpoints
    /// are used.
    ///
    /// Calls at the same time share one sync. It runs to its end even if a caller drops its future.
    pub async fn sync(&self) -> Result<Vec<String>, Error> {
        let (result, run) = self.running.sync.join();
        if let Some(run) = run {
            let (caller, timeout) = (self.running.caller.clone(), self.running.request_timeout());
            // If the thread has ended, the result is dropped with the job.
            self.running.run(Box::new(move || {
                actix_rt::spawn(async move {
                    let result = sync_endpoints(&caller, timeout).await;
                    run.finish(&result);
                });
            }));
        }
        result.await.unwrap_or_else(|_| Err(Error::shut_down()))
    }
}

/// Syncs at this interval until the client is shut down.
pub(super) async fn sync_periodically(client: Weak<RunningClient>, interval: Duration) {
    let schedule = Backoff::new(interval, interval).jitter(SYNC_JITTER);
    loop {
        sleep(schedule.delay(0, fastrand::f64())).await;
        let Some(running) = client.upgrade() else {
            return;
        };
        let client = Client {
            running,
            lifetime: None,
            view: ClientView::default(),
        };
        match client.sync().await {
            Ok(endpoints) => tracing::debug!(?endpoints, "endpoints synced"),
            Err(error) if error.kind() == ErrorKind::Shutdown => return,
            Err(error) => tracing::warn!(%error, "cannot sync endpoints"),
        }
    }
}

/// The sync that is running, if there is one.
#[derive(Default)]
pub(super) struct RunningSync {
    /// Callers that wait for the result; `None` if no sync is running.
    waiting: Mutex<Option<Vec<oneshot::Sender<SyncResult>>>>,
}

impl RunningSync {
    /// Returns a receiver of the result. Also returns a [`SyncRun`] if no sync is running: the caller must start one.
    fn join(self: &Arc<Self>) -> (oneshot::Receiver<SyncResult>, Option<SyncRun>) {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.waiting();
        if let Some(others) = &mut *waiting {
            others.push(sender);
            return (receiver, None);
        }
        *waiting = Some(vec![sender]);
        let run = SyncRun {
            sync: Some(self.clone()),
        };
        (receiver, Some(run))
    }

    fn waiting(&self) -> MutexGuard<'_, Option<Vec<oneshot::Sender<SyncResult>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The duty to finish the running sync. If it is dropped, the sync ends without a result.
struct SyncRun {
    /// `None` once the sync is finished.
    sync: Option<Arc<RunningSync>>,
}

impl SyncRun {
    fn finish(mut self, result: &SyncResult) {
        for caller in self.end() {
            // Fails if the caller dropped its future.
            let _ = caller.send(result.clone());
        }
    }

    /// Ends the sync and returns the callers that wait for its result.
    fn end(&mut self) -> Vec<oneshot::Sender<SyncResult>> {
        let waiting = self.sync.take().and_then(|sync| sync.waiting().take());
        waiting.unwrap_or_default()
    }
}

impl Drop for SyncRun {
    fn drop(&mut self) {
        self.end();
    }
}

async fn sync_endpoints(caller: &Caller, timeout: Duration) -> SyncResult {
    let source = EndpointSource::MemberList {
        seeds_version: caller.ready_set.load().seeds_version,
    };
    let members = match member_list(caller, timeout).await {
        Err(error) if is_unreachable(&error) => {
            let set = caller.ready_set.load_full();
            let mut with_seeds = set.endpoints();
            add_missing(&mut with_seeds, &usable_seeds(caller, &set));
            update_endpoints(caller, with_seeds, source).await?;
            member_list(caller, timeout).await?
        }
        members => members?,
    };
    let set = caller.ready_set.load_full();
    let allow_plain = caller.context.dial.tls.allows_plain();
    let advertised = advertised_endpoints(&members, &set.seeds, &set.endpoints(), allow_plain);
    let checks = check_endpoints(&caller.context, &set, &advertised).await;
    let adopted = adopted_endpoints(set.endpoints(), &advertised, &checks);
    update_endpoints(caller, adopted, source).await?;
    let names = caller.ready_set.load().endpoints();
    Ok(names.iter().map(|name| name.as_str().to_owned()).collect())
}

/// Returns the seeds without plain ones if endpoints in use are encrypted, unless the user allows the mixture.
fn usable_seeds(caller: &Caller, set: &ReadySet) -> Vec<Endpoint> {
    if caller.context.dial.tls.allows_plain() {
        return set.seeds.to_vec();
    }
    split_tls_downgrades(set.seeds.to_vec(), &set.endpoints()).0
}

fn is_unreachable(error: &Error) -> bool {
    let kind = error.kind();
    matches!(kind, ErrorKind::Unavailable | ErrorKind::ClusterChanged)
}

async fn member_list(caller: &Caller, timeout: Duration) -> Result<Vec<Member>, Error> {
    let request = MemberListRequest { linearizable: true };
    let body = grpc::encode(&request)?;
    let response: MemberListResponse = caller.unary(rpc::MEMBER_LIST, body, timeout).await?;
    Ok(response.members)
}

/// Checks all endpoints at the same time. Those without a connection are dialled.
async fn check_endpoints(
    context: &Arc<ConnectionContext>,
    set: &ReadySet,
    endpoints: &[Endpoint],
) -> Vec<EndpointCheck> {
    let mut pending = Vec::with_capacity(endpoints.len());
    for endpoint in endpoints {
        let (sender, check) = oneshot::channel();
        if is_connected(set, endpoint) {
            let _ = sender.send(EndpointCheck::Reachable);
            pending.push((check, None));
            continue;
        }
        let (endpoint, context) = (endpoint.clone(), context.clone());
        let task = AbortOnDrop::spawn(async move {
            let found = cluster_at(&endpoint, &context).await;
            let check = EndpointCheck::of(&endpoint, found, context.cluster.get());
            let _ = sender.send(check);
        });
        pending.push((check, Some(task)));
    }
    let mut checks = Vec::with_capacity(pending.len());
    for (check, task) in pending {
        checks.push(check.await.unwrap_or(EndpointCheck::Unreachable));
        drop(task);
    }
    checks
}

/// Returns whether an endpoint has a connection, whose member has shown the client's cluster id.
fn is_connected(set: &ReadySet, endpoint: &Endpoint) -> bool {
    let view = set.views.iter().find(|view| view.endpoint == *endpoint);
    view.is_some_and(|view| match view.state {
        ConnectivityState::Ready | ConnectivityState::NoLeader => true,
        ConnectivityState::Idle
        | ConnectivityState::Connecting
        | ConnectivityState::TransientFailure
        | ConnectivityState::Shutdown => false,
    })
}

/// Result of connecting to an advertised endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndpointCheck {
    /// Responded with this cluster's id.
    Reachable,
    /// Cannot be reached now.
    Unreachable,
    /// Belongs to another cluster, or reports no cluster id.
    Foreign,
}

impl EndpointCheck {
    /// Compares the cluster id that a member reported with the client's. Zero means that the id is not known.
    fn of(endpoint: &Endpoint, found: Result<u64, Error>, cluster: u64) -> Self {
        match found {
            Ok(found) if found != 0 && found == cluster => Self::Reachable,
            Ok(found) => {
                tracing::warn!(
                    %endpoint,
                    cluster = format_args!("{found:x}"),
                    client_cluster = format_args!("{cluster:x}"),
                    "ignored an advertised endpoint that did not report this cluster"
                );
                Self::Foreign
            }
            Err(error) => {
                tracing::debug!(%endpoint, %error, "ignored an advertised endpoint that is not reachable");
                Self::Unreachable
            }
        }
    }
}

/// Returns the endpoints after a sync: advertised ones that are reachable, and advertised ones in use before, even if
/// they are down. If none is reachable, returns the endpoints in use before.
fn adopted_endpoints(
    before: Vec<Endpoint>,
    advertised: &[Endpoint],
    checks: &[EndpointCheck],
) -> Vec<Endpoint> {
    if !checks.contains(&EndpointCheck::Reachable) {
        return before;
    }
    let adopt = |(endpoint, check): &(&Endpoint, &EndpointCheck)| match check {
        EndpointCheck::Reachable => true,
        EndpointCheck::Unreachable => before.contains(endpoint),
        EndpointCheck::Foreign => false,
    };
    let adopted = advertised.iter().zip(checks).filter(adopt);
    adopted.map(|(endpoint, _)| endpoint.clone()).collect()
}

fn add_missing(endpoints: &mut Vec<Endpoint>, more: &[Endpoint]) {
    for endpoint in more {
        if !endpoints.contains(endpoint) {
            endpoints.push(endpoint.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(names: &[&str]) -> Vec<Endpoint> {
        let parsed = names.iter().map(|name| Endpoint::parse(name));
        parsed.map(Result::unwrap).collect()
    }

    #[test]
    fn new_endpoint_is_adopted_only_if_reachable() {
        use EndpointCheck::{Foreign, Reachable, Unreachable};
        let advertised = endpoints(&["a:1", "b:1", "c:1", "d:1"]);
        let before = endpoints(&["seed:1", "b:1", "d:1"]);
        let checks = [Reachable, Unreachable, Unreachable, Foreign];
        let after = adopted_endpoints(before.clone(), &advertised, &checks);
        assert_eq!(after, endpoints(&["a:1", "b:1"]));
        let none = [Unreachable, Unreachable, Foreign, Unreachable];
        assert_eq!(
            adopted_endpoints(before.clone(), &advertised, &none),
            before
        );
    }

    #[test]
    fn only_shown_cluster_id_counts_as_reachable() {
        let endpoint = &endpoints(&["a:1"])[0];
        for (found, cluster, expected) in [
            (7, 7, EndpointCheck::Reachable),
            (8, 7, EndpointCheck::Foreign),
            (0, 7, EndpointCheck::Foreign),
            (0, 0, EndpointCheck::Foreign),
            (7, 0, EndpointCheck::Foreign),
        ] {
            assert_eq!(EndpointCheck::of(endpoint, Ok(found), cluster), expected);
        }
        let failed = Err(Error::shut_down());
        let unreachable = EndpointCheck::Unreachable;
        assert_eq!(EndpointCheck::of(endpoint, failed, 7), unreachable);
    }

    #[test]
    fn concurrent_syncs_share_one_run() {
        let sync = Arc::new(RunningSync::default());
        let (mut first, run) = sync.join();
        let (mut second, joined) = sync.join();
        assert!(joined.is_none());
        run.unwrap().finish(&Ok(vec!["a".to_owned()]));
        assert_eq!(first.try_recv().unwrap().unwrap(), ["a"]);
        assert_eq!(second.try_recv().unwrap().unwrap(), ["a"]);
        let (mut next, run) = sync.join();
        drop(run.expect("the next sync runs by itself"));
        assert!(next.try_recv().is_err());
        assert!(
            sync.join().1.is_some(),
            "a sync that ended early does not block the next"
        );
    }
}
