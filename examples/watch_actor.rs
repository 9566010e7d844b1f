//! An actor of yours gets the changes of keys as messages, and goes on getting them when a member is killed.
//!
//! `cargo run --example watch_actor` starts three members itself. With `ETCD_ENDPOINTS=http://a:2379,http://b:2379` it
//! uses yours, and kills nobody.

use std::{collections::BTreeMap, error::Error};

use actix::{Actor, AsyncContext, Context, Handler};
use actix_etcd::{
    Client, Etcd, WatchEvent,
    kv::{delete, put},
    proto::{Event, event::EventType},
    watch::watch_keys,
};
use testbed::Cluster;
use tokio::sync::oneshot;

/// Holds the settings as they are now.
struct Settings {
    etcd: actix::Addr<Etcd>,
    since: i64,
    now: BTreeMap<String, String>,
    complete: Option<oneshot::Sender<BTreeMap<String, String>>>,
}

impl Actor for Settings {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        // With `do_send` the watch lives as long as this actor does.
        let changes = watch_keys("settings/").prefix().start_revision(self.since);
        let me = ctx.address().recipient();
        self.etcd.do_send(changes.status_events().deliver_to(me));
    }
}

impl Handler<WatchEvent> for Settings {
    type Result = ();

    fn handle(&mut self, item: WatchEvent, _: &mut Context<Self>) {
        match item {
            WatchEvent::Events(events) => {
                println!("  revision {}", events.revision());
                events.iter().for_each(|event| self.apply(event));
            }
            WatchEvent::Disconnected(error) => println!("  interrupted: {error}"),
            WatchEvent::Resumed => println!("  resumed, with nothing lost"),
            WatchEvent::Ended(why) => println!("  over: {why}"),
            _ => {}
        }
        if self.now.contains_key("settings/done")
            && let Some(complete) = self.complete.take()
        {
            let _ = complete.send(self.now.clone());
        }
    }
}

impl Settings {
    fn apply(&mut self, event: &Event) {
        let Some(kv) = &event.kv else { return };
        let key = String::from_utf8_lossy(&kv.key).into_owned();
        if event.r#type() == EventType::Delete {
            println!("    {key} is gone");
            self.now.remove(&key);
        } else {
            let value = String::from_utf8_lossy(&kv.value).into_owned();
            println!("    {key} = {value}");
            self.now.insert(key, value);
        }
    }
}

#[actix_rt::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (cluster, endpoints) = if let Ok(given) = std::env::var("ETCD_ENDPOINTS") {
        (None, given.split(',').map(str::to_owned).collect())
    } else {
        println!("▸ starting three etcd members on this machine");
        let cluster = Cluster::start(3).await;
        let endpoints = cluster.endpoints();
        (Some(cluster), endpoints)
    };
    let client = Client::connect(endpoints).await?;
    let emptied = client.delete("settings/").prefix().await?;
    let etcd = Etcd::new(client.clone()).start();

    println!("▸ an actor that holds the settings");
    let (complete, completed) = oneshot::channel();
    let settings = Settings {
        etcd: etcd.clone(),
        since: emptied.header.revision + 1,
        now: BTreeMap::new(),
        complete: Some(complete),
    };
    let _settings = settings.start();

    etcd.send(put("settings/color", "green")).await??;
    etcd.send(put("settings/size", "1")).await??;
    if let Some(cluster) = &cluster {
        println!("▸ killing a member");
        cluster.member(0).kill();
    }
    // Of a write that was under way when the member died nobody can know: this one may be done twice.
    while let Err(error) = etcd.send(put("settings/size", "2")).await? {
        println!("  {error}");
    }
    etcd.send(delete("settings/color")).await??;
    etcd.send(put("settings/done", "yes")).await??;

    let seen = completed.await?;
    println!("▸ the actor holds {seen:?}");
    assert_eq!(seen.len(), 2);
    client.shutdown().await;
    Ok(())
}
