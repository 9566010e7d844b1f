//! Suspicion is not proof: a failed probe, a proxy's error or a slow link does not cost a request in flight.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use actix_etcd::{Client, Outcome, balancer::ConnectivityState, client::Liveness};
use testbed::{
    Fault, Reason, Reply, ResponseHeader, STATUS, ScriptedServer, StatusResponse, TcpProxy,
    chaos_duration,
};

use crate::support::{
    quiet_window::ready_members,
    scripted_put::{PUT, put_reply},
    wait::until,
};

/// `UNAVAILABLE`, as a proxy without a connection to a member sends it.
fn no_upstream() -> Reply {
    Reply::status(14, "no healthy upstream")
}

fn healthy() -> Reply {
    Reply::message(&StatusResponse::healthy())
}

/// Returns a server whose puts take `delay`, and whose probes get this reply after the first.
async fn start_with_probes(
    delay: Duration,
    probe: impl Fn() -> Reply + Send + Sync + 'static,
) -> ScriptedServer {
    let server = ScriptedServer::start().await;
    server.on(STATUS, move |call| match call.nth {
        0 => healthy(),
        _ => probe(),
    });
    server.on(PUT, move |_| put_reply().after(delay));
    server
}

#[tokio::test]
async fn reset_probe_costs_no_request_in_flight() {
    let reset = || Reply::reset(Reason::INTERNAL_ERROR);
    let server = start_with_probes(Duration::from_millis(900), reset).await;
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    etcd.put("k", "v").await.unwrap();
    assert!(server.count(STATUS) >= 2, "the slow put must cause a probe");
}

#[tokio::test]
async fn probe_http_error_costs_no_request_in_flight() {
    let unavailable = || Reply::http_status(503);
    let server = start_with_probes(Duration::from_millis(900), unavailable).await;
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    etcd.put("k", "v").await.unwrap();
    assert!(server.count(STATUS) >= 2, "the slow put must cause a probe");
}

#[tokio::test]
async fn proxy_without_upstream_gets_no_requests() {
    let (proxy, member) = (ScriptedServer::start().await, ScriptedServer::start().await);
    proxy.on(STATUS, |_| no_upstream());
    proxy.on(PUT, |_| no_upstream());
    member.on(PUT, |_| put_reply());
    let etcd = Client::connect([proxy.endpoint(), member.endpoint()])
        .await
        .unwrap();
    until("the proxy is dialled", || proxy.count(STATUS) > 0).await;
    for _ in 0..20 {
        etcd.put("k", "v").await.unwrap();
    }
    assert_eq!(proxy.count(PUT), 0);
}

#[tokio::test]
async fn proxy_that_loses_its_upstream_is_avoided() {
    let (proxy, member) = (ScriptedServer::start().await, ScriptedServer::start().await);
    let upstream = Arc::new(AtomicBool::new(true));
    for (path, reply) in [
        (STATUS, healthy as fn() -> Reply),
        (PUT, put_reply as fn() -> Reply),
    ] {
        let upstream = upstream.clone();
        proxy.on(path, move |_| {
            if upstream.load(Ordering::Relaxed) {
                reply()
            } else {
                no_upstream()
            }
        });
    }
    member.on(PUT, |_| put_reply());
    let etcd = Client::connect([proxy.endpoint(), member.endpoint()])
        .await
        .unwrap();
    until("both endpoints are ready", || ready_members(&etcd) == 2).await;
    upstream.store(false, Ordering::Relaxed);
    let mut unknown = 0;
    while ready_members(&etcd) == 2 {
        if let Err(error) = etcd.put("k", "v").await {
            assert_eq!(error.outcome(), Outcome::Unknown);
            unknown += 1;
        }
    }
    assert!(
        unknown > 0,
        "only a failed request shows that the upstream is gone"
    );
    for _ in 0..20 {
        etcd.put("k", "v").await.unwrap();
    }
    let reason = etcd.connectivity()[0]
        .last_error
        .clone()
        .unwrap()
        .to_string();
    assert!(reason.contains("no healthy upstream"), "{reason}");
    upstream.store(true, Ordering::Relaxed);
    until("the proxy is used again", || ready_members(&etcd) == 2).await;
}

#[tokio::test]
async fn slow_link_is_ready_and_kept() {
    let (far, near) = (ScriptedServer::start().await, ScriptedServer::start().await);
    for (server, member) in [(&far, 1), (&near, 2)] {
        let header = ResponseHeader {
            cluster_id: 1,
            member_id: member,
            ..ResponseHeader::default()
        };
        let status = StatusResponse {
            header: Some(header),
            ..StatusResponse::healthy()
        };
        server.on(STATUS, move |_| Reply::message(&status));
        server.on(PUT, |_| put_reply());
    }
    let slow_link = TcpProxy::to_port(far.address().port());
    slow_link
        .link()
        .set(Fault::Delay(Duration::from_millis(350)));
    let etcd = Client::connect([format!("http://{}", slow_link.address()), near.endpoint()])
        .await
        .unwrap();
    until("both members are ready", || ready_members(&etcd) == 2).await;
    let end = Instant::now() + chaos_duration();
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let etcd = etcd.clone();
            tokio::spawn(async move {
                let mut puts = 0;
                while Instant::now() < end {
                    etcd.put("k", "v").await.unwrap();
                    puts += 1;
                }
                puts
            })
        })
        .collect();
    let mut puts = 0;
    for caller in callers {
        puts += caller.await.unwrap();
    }
    assert!(puts > 20, "{puts} puts");
    assert_eq!(
        slow_link.link().accepted(),
        1,
        "the connection must be kept"
    );
    assert_eq!(etcd.connectivity()[0].state, ConnectivityState::Ready);
    assert!(
        far.count(PUT) > 5,
        "the far member must get its share of the requests"
    );
}

#[tokio::test]
async fn slow_calls_cause_few_probes() {
    let (first, second) = (ScriptedServer::start().await, ScriptedServer::start().await);
    for server in [&first, &second] {
        server.on(PUT, |_| put_reply().after(Duration::from_millis(300)));
    }
    let etcd = Client::connect([first.endpoint(), second.endpoint()])
        .await
        .unwrap();
    until("both members are ready", || ready_members(&etcd) == 2).await;
    let started = Instant::now();
    let end = started + chaos_duration();
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let etcd = etcd.clone();
            tokio::spawn(async move {
                while Instant::now() < end {
                    etcd.put("k", "v").await.unwrap();
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    // A burst of eight, then 1.6 per second.
    let allowed = 10 + started.elapsed().as_secs() * 2;
    for server in [&first, &second] {
        let probes = server.count(STATUS) as u64;
        assert!(
            probes > 2,
            "{probes} probes: slow calls must probe the member"
        );
        assert!(
            probes <= allowed,
            "{probes} probes in {:?}",
            started.elapsed()
        );
    }
}

#[tokio::test]
async fn hundred_endpoints_share_a_probe_budget() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| put_reply().after(Duration::from_millis(1500)));
    let links: Vec<_> = (0..100)
        .map(|_| TcpProxy::to_port(server.address().port()))
        .collect();
    let endpoints = links
        .iter()
        .map(|link| format!("http://{}", link.address()));
    // A hundred connections of one busy process respond late; only the number of probes matters here.
    let etcd = Client::builder(endpoints)
        .liveness(Liveness::default().unresponsive_after(Duration::from_secs(20)))
        .connect()
        .await
        .unwrap();
    until("all endpoints are ready", || ready_members(&etcd) == 100).await;
    let (contacts, started) = (server.count(STATUS), Instant::now());
    let puts: Vec<_> = (0..80)
        .map(|_| tokio::spawn(etcd.put("k", "v").into_future()))
        .collect();
    for put in puts {
        put.await.unwrap().unwrap();
    }
    let probes = (server.count(STATUS) - contacts) as u64;
    let allowed = 60 + 20 * started.elapsed().as_secs();
    assert!(
        probes > 0 && probes <= allowed,
        "{probes} probes in {:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn configured_times_delay_suspicion() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| put_reply().after(Duration::from_millis(600)));
    let etcd = Client::builder([server.endpoint()])
        .liveness(Liveness::default().suspect_after(Duration::from_secs(60)))
        .connect()
        .await
        .unwrap();
    let contacts = server.count(STATUS);
    etcd.put("k", "v").await.unwrap();
    assert_eq!(
        server.count(STATUS),
        contacts,
        "the put is not slow by this measure"
    );
}
