//! Watches that do without a leader.

use crate::watch_script::{WATCH, connect, create, created, server};

#[tokio::test]
async fn only_watches_that_need_a_leader_ask_for_one_and_have_streams_of_their_own() {
    let (server, _) = server(|_, mut tx, mut rx, _| async move {
        loop {
            let id = create(&mut rx).await.watch_id;
            tx.send(&created(id, 5)).await.unwrap();
        }
    })
    .await;
    let etcd = connect(&server).await;
    let mut watches = Vec::new();
    for require in [true, false, true, false] {
        watches.push(etcd.watch("a").require_leader(require).await.unwrap());
    }
    let asked = server.calls(WATCH);
    let asked: Vec<bool> = asked
        .iter()
        .map(|call| call.metadata.contains_key("hasleader"))
        .collect();
    assert_eq!(asked, [true, false]);
    etcd.shutdown().await;
}
