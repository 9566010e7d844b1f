//! Shutdown of a client: no actor, socket or thread remains, and requests in flight may finish.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use actix_etcd::{Client, ErrorKind, test_faults::live_actors};
use testbed::{Reply, ScriptedServer};

use crate::support::{
    lease_server::REVOKE,
    process_isolation::in_own_process,
    process_threads::{client_thread_count, thread_names},
    quiet_window::ready_members,
    scripted_put::{PUT, RANGE, put_reply, range_reply},
    wait::{TEST_TIMEOUT, until},
};

/// Longer than any wait of these tests.
const LONG_TIMEOUT: Duration = Duration::from_secs(120);

/// Returns the number of established connections to this port.
fn sockets_to(port: u16) -> usize {
    let remote = format!("0100007F:{port:04X}");
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    // State 01 is an established connection; the third column is the remote address.
    table
        .lines()
        .filter(|line| line.split_whitespace().nth(2) == Some(&remote))
        .filter(|line| line.contains(" 01 "))
        .count()
}

#[test]
fn closed_clients_leave_nothing_running() {
    if !in_own_process!() {
        return;
    }
    // The server's threads start before the first client and outlive the last one.
    let server_runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let server = server_runtime.block_on(ScriptedServer::start());
    server.on(RANGE, |_| range_reply());
    let before = thread_names();
    let port = server.address().port();
    let system = actix_rt::System::new();
    system.block_on(async {
        for round in 0..100 {
            let builder = Client::builder([
                server.endpoint(),
                server.endpoint().replace("127.0.0.1", "localhost"),
            ]);
            let builder = if round % 3 == 0 {
                builder.on_current_arbiter()
            } else {
                builder
            };
            let etcd = builder.connect().await.unwrap();
            etcd.get("k").await.unwrap();
            assert!(
                live_actors() >= 4,
                "the actors of the client must be counted"
            );
            until("the socket of the client is open", || sockets_to(port) >= 1).await;
            if round % 2 == 0 {
                etcd.shutdown().await;
            } else {
                drop(etcd);
            }
            until("the thread of the client ends", || {
                client_thread_count() == 0
            })
            .await;
        }
        until("all actors end", || live_actors() == 0).await;
        until("all sockets are closed", || sockets_to(port) == 0).await;
    });
    // Name lookups run on threads that outlive the lookup. Those of the system end with the system, those of a client
    // must have ended with the client.
    drop(system);
    let ended = || thread_names().len() <= before.len();
    let all_ended = until("every thread ends", ended);
    server_runtime.block_on(all_ended);
    println!("{} threads before and after", before.len());
}

#[tokio::test]
async fn clones_fail_after_shutdown() {
    let server = ScriptedServer::start().await;
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let clone = etcd.clone();
    etcd.shutdown().await;
    assert_eq!(
        clone.get("k").await.unwrap_err().kind(),
        ErrorKind::Shutdown
    );
    assert_eq!(
        clone
            .wait_ready(Duration::from_secs(5))
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::Shutdown
    );
    clone.shutdown().await;
}

#[tokio::test]
async fn shutdown_waits_for_requests_in_flight() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| put_reply().after(Duration::from_millis(200)));
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let put = tokio::spawn(etcd.put("k", "v").into_future());
    until("the request has arrived", || server.count(PUT) == 1).await;
    etcd.shutdown().await;
    put.await.unwrap().unwrap();
    until("the connection is closed", || server.connections() == 0).await;
}

#[tokio::test]
async fn requests_fail_after_shutdown_grace() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| Reply::hang());
    let etcd = Client::builder([server.endpoint()])
        .shutdown_grace(Duration::from_millis(50))
        .connect()
        .await
        .unwrap();
    let put = tokio::spawn(
        etcd.put("k", "v")
            .timeout(Duration::from_secs(60))
            .into_future(),
    );
    until("the request has arrived", || server.count(PUT) == 1).await;
    etcd.shutdown().await;
    let error = put.await.unwrap().unwrap_err();
    assert_eq!(error.outcome(), actix_etcd::Outcome::Unknown, "{error:?}");
}

#[actix_rt::test]
async fn connections_on_arbiter_close_after_shutdown_grace() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| Reply::hang());
    let etcd = Client::builder([server.endpoint()])
        .on_current_arbiter()
        .shutdown_grace(Duration::from_millis(50))
        .connect()
        .await
        .unwrap();
    let put = etcd.put("k", "v").timeout(LONG_TIMEOUT);
    let put = actix_rt::spawn(put.into_future());
    until("the request has arrived", || server.count(PUT) == 1).await;
    let started = Instant::now();
    etcd.shutdown().await;
    let error = put.await.unwrap().unwrap_err();
    assert!(started.elapsed() < TEST_TIMEOUT / 2, "{error:?}");
    assert_eq!(error.outcome(), actix_etcd::Outcome::Unknown, "{error:?}");
    until("the connection is closed", || server.connections() == 0).await;
}

/// A replaced connection is not in use, but its requests in flight have the grace, too.
#[actix_rt::test]
async fn shutdown_includes_replaced_connections() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |call| match call.nth {
        0 => put_reply().after(Duration::from_millis(500)),
        _ => Reply::hang(),
    });
    let connect = || Client::builder([server.endpoint()]).on_current_arbiter();
    let patient = connect().shutdown_grace(TEST_TIMEOUT);
    let hasty = connect().shutdown_grace(Duration::from_millis(50));
    for (builder, succeeds) in [(patient, true), (hasty, false)] {
        let etcd = builder.connect().await.unwrap();
        let (puts, accepted) = (server.count(PUT), server.accepted());
        let put = etcd.put("k", "v").timeout(LONG_TIMEOUT);
        let put = actix_rt::spawn(put.into_future());
        until("the request has arrived", || server.count(PUT) > puts).await;
        server.go_away_gracefully();
        until("the connection is replaced", || {
            server.accepted() > accepted
        })
        .await;
        etcd.shutdown().await;
        let result = put.await.unwrap();
        assert_eq!(result.is_ok(), succeeds, "{result:?}");
        until("all connections are closed", || server.connections() == 0).await;
    }
}

/// One copy of a hedged request is rejected during the shutdown. The other one may be applied.
#[tokio::test]
async fn hedged_write_is_unknown_after_shutdown() {
    let arrived = Arc::new(AtomicUsize::new(0));
    let mut servers = Vec::new();
    for _ in 0..2 {
        let (server, arrived) = (ScriptedServer::start().await, arrived.clone());
        server.on(REVOKE, move |_| {
            match arrived.fetch_add(1, Ordering::SeqCst) {
                0 => Reply::hang(),
                _ => Reply::status(7, "etcdserver: permission denied")
                    .after(Duration::from_millis(500)),
            }
        });
        servers.push(server);
    }
    let endpoints = servers.iter().map(ScriptedServer::endpoint);
    let etcd = Client::connect(endpoints).await.unwrap();
    until("both members are ready", || ready_members(&etcd) == 2).await;
    let revoke = tokio::spawn(etcd.revoke(7).into_future());
    until("both copies have arrived", || {
        arrived.load(Ordering::SeqCst) == 2
    })
    .await;
    etcd.shutdown().await;
    let error = revoke.await.unwrap().unwrap_err();
    assert_eq!(error.outcome(), actix_etcd::Outcome::Unknown, "{error:?}");
}

#[test]
fn cancelled_shutdown_goes_on() {
    if !in_own_process!() {
        return;
    }
    actix_rt::System::new().block_on(async {
        let server = ScriptedServer::start().await;
        server.on(PUT, |_| Reply::hang());
        for on_arbiter in [true, false] {
            let builder =
                Client::builder([server.endpoint()]).shutdown_grace(Duration::from_millis(200));
            let builder = if on_arbiter {
                builder.on_current_arbiter()
            } else {
                builder
            };
            let etcd = builder.connect().await.unwrap();
            let (puts, clone) = (server.count(PUT), etcd.clone());
            let put = etcd.put("k", "v").timeout(LONG_TIMEOUT);
            let put = actix_rt::spawn(put.into_future());
            until("the request has arrived", || server.count(PUT) > puts).await;
            let cancelled = tokio::time::timeout(Duration::ZERO, etcd.shutdown()).await;
            assert!(cancelled.is_err(), "the request is in flight");
            until("the connection is closed", || server.connections() == 0).await;
            assert!(put.await.unwrap().is_err());
            clone.shutdown().await;
            assert_eq!(client_thread_count(), 0);
            until("all actors end", || live_actors() == 0).await;
        }
    });
}

#[test]
fn stopped_system_ends_calls_in_flight() {
    let server = tokio::runtime::Runtime::new()
        .unwrap()
        .block_on(ScriptedServer::start());
    server.on(PUT, |_| Reply::hang());
    let system = actix_rt::System::new();
    let etcd = system
        .block_on(
            Client::builder([server.endpoint()])
                .on_current_arbiter()
                .connect(),
        )
        .unwrap();
    let caller = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(
            etcd.put("k", "v")
                .timeout(Duration::from_secs(60))
                .into_future(),
        )
    });
    system.block_on(until("the request has arrived", || server.count(PUT) == 1));
    drop(system);
    let error = caller.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shutdown, "{error:?}");
}
