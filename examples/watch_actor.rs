//! An actor receives the changes of keys as messages, without a gap when a member is killed.
//!
//! `cargo run --example watch_actor` starts three members itself. With `ETCD_ENDPOINTS=http://a:2379,http://b:2379` it
//! uses yours, and kills none.

use std::{collections::BTreeMap, error::Error};

use actix::{Actor, Addr, AsyncContext, Context, Handler};
use actix_etcd::{
    Client, Etcd, WatchEvent,
    kv::{delete, put},
    proto::Event,
    watch::watch_keys,
};
use testbed::Cluster;
use tokio::sync::oneshot;

type Values = BTreeMap<String, String>;

/// Holds the current settings.
struct Settings {
    etcd: Addr<Etcd>,
    start_revision: i64,
    values: Values,
    done: Option<oneshot::Sender<Values>>,
}

impl Actor for Settings {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let watch = watch_keys("settings/").prefix().status_events();
        let watch = watch.start_revision(self.start_revision);
        // Sent with `do_send`, the watch lives as long as this actor.
        let recipient = ctx.address().recipient();
        self.etcd.do_send(watch.deliver_to(recipient));
    }
}

impl Handler<WatchEvent> for Settings {
    type Result = ();

    fn handle(&mut self, event: WatchEvent, _: &mut Context<Self>) {
        match event {
            WatchEvent::Events(events) => {
                println!("  revision {}", events.revision());
                events.iter().for_each(|event| self.apply(event));
            }
            WatchEvent::Disconnected(error) => println!("  watch interrupted: {error}"),
            WatchEvent::Resumed => println!("  watch resumed, no event was lost"),
            WatchEvent::Ended(reason) => println!("  watch ended: {reason}"),
            _ => {}
        }
        if self.values.contains_key("settings/done")
            && let Some(done) = self.done.take()
        {
            let _ = done.send(self.values.clone());
        }
    }
}

impl Settings {
    fn apply(&mut self, event: &Event) {
        let key = String::from_utf8_lossy(event.key()).into_owned();
        if event.is_delete() {
            println!("    {key} was deleted");
            self.values.remove(&key);
        } else {
            let value = String::from_utf8_lossy(event.value()).into_owned();
            println!("    {key} = {value}");
            self.values.insert(key, value);
        }
    }
}

#[actix_rt::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (cluster, endpoints) = if let Ok(list) = std::env::var("ETCD_ENDPOINTS") {
        (None, list.split(',').map(str::to_owned).collect())
    } else {
        println!("▸ starting three etcd members on this machine");
        let cluster = Cluster::start(3).await;
        let endpoints = cluster.endpoints();
        (Some(cluster), endpoints)
    };
    let client = Client::connect(endpoints).await?;
    let deleted = client.delete("settings/").prefix().await?;
    let etcd = Etcd::new(client.clone()).start();

    println!("▸ starting an actor that watches settings/");
    let (done, settings_done) = oneshot::channel();
    let settings = Settings {
        etcd: etcd.clone(),
        start_revision: deleted.header.revision + 1,
        values: Values::new(),
        done: Some(done),
    };
    let _settings = settings.start();

    etcd.send(put("settings/color", "green")).await??;
    etcd.send(put("settings/size", "1")).await??;
    if let Some(cluster) = &cluster {
        println!("▸ killing a member");
        cluster.member(0).kill();
    }
    // A write in flight when the member dies may fail. This one is safe to repeat.
    while let Err(error) = etcd.send(put("settings/size", "2")).await? {
        println!("  {error}");
    }
    etcd.send(delete("settings/color")).await??;
    etcd.send(put("settings/done", "yes")).await??;

    let values = settings_done.await?;
    println!("▸ the actor holds {values:?}");
    assert_eq!(values.len(), 2);
    client.shutdown().await;
    Ok(())
}
