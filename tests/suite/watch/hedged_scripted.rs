//! Hedged watches on scripted servers, for what a real cluster does not do on demand.

use std::time::Duration;

use actix_etcd::{
    Client, WatchEvent,
    proto::{RangeRequest, RangeResponse},
};
use prost::Message;
use testbed::{Reply, STATUS, ScriptedServer, StatusResponse};
use tokio::sync::watch;

use crate::support::{
    quiet_window::ready_members,
    scripted_put::RANGE,
    wait::until,
    watch_items::{WATCH_TIMEOUT, next_change, next_item},
    watch_server::{
        WATCH, created, event, events, header, next_create, refused, start_watch_server,
    },
};

/// Makes a member of two servers, and connects a client to both.
async fn connect_to_members(servers: [&ScriptedServer; 2]) -> Client {
    for (member_id, server) in (1..).zip(servers) {
        let mut status = StatusResponse::healthy();
        status.header.get_or_insert_default().member_id = member_id;
        server.on(STATUS, move |_| Reply::message(&status));
    }
    let etcd = Client::builder(servers.map(ScriptedServer::endpoint))
        .request_timeout(WATCH_TIMEOUT)
        .connect()
        .await
        .unwrap();
    until("both members are ready", || ready_members(&etcd) == 2).await;
    etcd
}

#[tokio::test]
async fn hedged_watch_survives_unknown_cancels_of_one_leg() {
    let send_event = watch::Sender::new(false);
    let event_wanted = send_event.clone();
    let (serving, _) = start_watch_server(move |_, mut tx, mut rx, _| {
        let mut event_wanted = event_wanted.subscribe();
        async move {
            let id = next_create(&mut rx).await.watch_id;
            tx.send(&created(id, 5)).await.unwrap();
            event_wanted.wait_for(|wanted| *wanted).await.unwrap();
            let event = vec![event("k", 6)];
            tx.send(&events(id, false, event)).await.unwrap();
            tx.closed().await;
        }
    })
    .await;
    let (refusing, creates) = start_watch_server(|_, mut tx, mut rx, creates| async move {
        loop {
            next_create(&mut rx).await;
            creates.lock().unwrap().push(0);
            let refusal = refused("etcdserver: something else");
            tx.send(&refusal).await.unwrap();
        }
    })
    .await;
    let etcd = connect_to_members([&serving, &refusing]).await;
    let mut watch = etcd.watch("k").hedged().await.unwrap();
    // A watch on this member alone ends after six refusals.
    until("the second leg is refused often", || {
        creates.lock().unwrap().len() > 7
    })
    .await;
    send_event.send_replace(true);
    assert_eq!(next_change(&mut watch).await.0, 6);
    etcd.shutdown().await;
}

/// Both legs run on a cluster that is restored. While the first leg reads the range, the new history passes the old
/// revision, and the second leg receives events of the new history.
#[tokio::test]
async fn resync_after_restore_ignores_other_leg() {
    #[derive(Clone, Copy, PartialEq, PartialOrd)]
    enum Phase {
        Before,
        Restored,
        Reading,
    }
    let phase = watch::Sender::new(Phase::Before);
    let start_member = async || {
        let (stream_phase, read_phase) = (phase.clone(), phase.clone());
        let (server, _) = start_watch_server(move |_, mut tx, mut rx, _| {
            let mut phase = stream_phase.subscribe();
            async move {
                let id = next_create(&mut rx).await.watch_id;
                if *phase.borrow() == Phase::Before {
                    tx.send(&created(id, 900)).await.unwrap();
                    phase.wait_for(|p| *p > Phase::Before).await.unwrap();
                    return tx.status(14, "the member is restored");
                }
                tx.send(&created(id, 10)).await.unwrap();
                phase.wait_for(|p| *p == Phase::Reading).await.unwrap();
                // The stream is closed if its leg has left it.
                let _ = tx.send(&events(id, false, vec![event("k", 901)])).await;
                tx.closed().await;
            }
        })
        .await;
        server.on(RANGE, move |call| {
            let request = RangeRequest::decode(call.body).unwrap();
            let reply = |revision| {
                Reply::message(&RangeResponse {
                    header: Some(header(revision)),
                    ..RangeResponse::default()
                })
            };
            if *read_phase.borrow() == Phase::Before {
                return reply(900);
            }
            if request.count_only {
                return reply(10);
            }
            read_phase.send_replace(Phase::Reading);
            reply(905).after(Duration::from_millis(300))
        });
        server
    };
    let (one, other) = (start_member().await, start_member().await);
    let etcd = connect_to_members([&one, &other]).await;
    let mut watch = etcd.watch("k").hedged().resync().await.unwrap();
    until("the watch runs on both members", || {
        one.count(WATCH) > 0 && other.count(WATCH) > 0
    })
    .await;
    phase.send_replace(Phase::Restored);
    let resynced = loop {
        match next_item(&mut watch).await {
            WatchEvent::RevisionRegressed { .. } => {}
            WatchEvent::Resynced(resynced) => break resynced,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(resynced.revision, 905);
    etcd.shutdown().await;
}
