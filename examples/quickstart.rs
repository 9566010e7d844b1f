//! Writes, reads and a transaction on three real members, one of which is killed on the way.
//!
//! `cargo run --example quickstart` starts the members itself. With `ETCD_ENDPOINTS=http://a:2379,http://b:2379` it uses
//! yours, and kills nobody.

use std::{borrow::Cow, error::Error, io::IsTerminal, time::Instant};

use actix_etcd::{
    Client,
    kv::{Compare, get, put},
};
use testbed::Cluster;

#[actix_rt::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();

    let (cluster, endpoints) = if let Ok(given) = std::env::var("ETCD_ENDPOINTS") {
        (None, given.split(',').map(str::to_owned).collect())
    } else {
        step("starting three etcd members on this machine");
        let cluster = Cluster::start(3).await;
        let endpoints = cluster.endpoints();
        (Some(cluster), endpoints)
    };

    step("connecting");
    let etcd = Client::connect(endpoints).await?;
    show_members(&etcd);

    step("writing and reading");
    let written = etcd.put("quickstart/greeting", "hello").await?;
    println!("  put at revision {}", written.header.revision);
    let found = etcd.get("quickstart/").prefix().await?;
    for kv in &found.kvs {
        println!("  {} = {}", text(&kv.key), text(&kv.value));
    }

    step("a transaction: create the key only if it is not there");
    let done = etcd
        .txn()
        .when([Compare::version("quickstart/once").eq(0)])
        .then([put("quickstart/once", "created")])
        .otherwise([get("quickstart/once")])
        .await?;
    println!(
        "  {}",
        if done.succeeded {
            "created"
        } else {
            "it was there already"
        }
    );

    if let Some(cluster) = &cluster {
        let served = done.header.member_id;
        let member = cluster
            .members()
            .into_iter()
            .find(|member| member.id() == served);
        let member = member.ok_or("the member that answered is one of ours")?;
        step("killing the member that served last, and going on");
        println!("  kill -9 {}", member.endpoint());
        member.kill();
        go_on_writing(&etcd).await;
        show_members(&etcd);
    }

    step("cleaning up");
    let gone = etcd.delete("quickstart/").prefix().await?;
    println!("  {} keys deleted", gone.deleted);
    etcd.shutdown().await;
    Ok(())
}

async fn go_on_writing(etcd: &Client) {
    let started = Instant::now();
    let mut answered = 0;
    for number in 0..100 {
        match etcd.put("quickstart/counter", number.to_string()).await {
            Ok(_) => answered += 1,
            // A write that was under way when the member died: nobody can know, and the client says so.
            Err(error) => println!("  {error}"),
        }
    }
    println!("  {answered} of 100 writes done in {:?}", started.elapsed());
}

fn show_members(etcd: &Client) {
    for member in etcd.connectivity() {
        match member.last_error {
            None => println!("  {} is {}", member.endpoint, member.state),
            Some(error) => println!("  {} is {}: {error}", member.endpoint, member.state),
        }
    }
}

fn step(what: &str) {
    if std::io::stdout().is_terminal() {
        println!("\x1b[1;36m▸ {what}\x1b[0m");
    } else {
        println!("▸ {what}");
    }
}

fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}
