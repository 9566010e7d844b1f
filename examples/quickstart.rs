//! Put, get and a transaction on three etcd members, one of which is killed.
//!
//! `cargo run --example quickstart` starts the members itself. With `ETCD_ENDPOINTS=http://a:2379,http://b:2379` it
//! uses yours, and kills none. `RUST_LOG=actix_etcd=debug` shows what the client does.

use std::{error::Error, io::IsTerminal, time::Instant};

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

    let (cluster, endpoints) = if let Ok(list) = std::env::var("ETCD_ENDPOINTS") {
        (None, list.split(',').map(str::to_owned).collect())
    } else {
        step("starting three etcd members on this machine");
        let cluster = Cluster::start(3).await;
        let endpoints = cluster.endpoints();
        (Some(cluster), endpoints)
    };

    step("connecting");
    let etcd = Client::connect(endpoints).await?;
    print_members(&etcd);

    step("writing and reading");
    let response = etcd.put("quickstart/greeting", "hello").await?;
    println!("  written at revision {}", response.header.revision);
    let response = etcd.get("quickstart/").prefix().await?;
    for kv in &response.kvs {
        println!("  {} = {}", kv.key_str()?, kv.value_str()?);
    }

    step("creating a key, unless it exists");
    let txn = etcd
        .txn()
        .when(Compare::version("quickstart/once").eq(0))
        .then(put("quickstart/once", "created"))
        .otherwise(get("quickstart/once"))
        .await?;
    let result = if txn.succeeded {
        "created"
    } else {
        "it exists"
    };
    println!("  {result}");

    if let Some(cluster) = &cluster {
        step("killing the member that served the last request");
        let id = txn.header.member_id;
        let members = cluster.members();
        let member = members.iter().find(|member| member.id() == id);
        let member = member.ok_or("the response names no member of this cluster")?;
        println!("  kill -9 {}", member.endpoint());
        member.kill();
        write_many(&etcd).await;
        print_members(&etcd);
    }

    step("deleting the keys");
    let response = etcd.delete("quickstart/").prefix().await?;
    println!("  {} keys deleted", response.deleted);
    etcd.shutdown().await;
    Ok(())
}

async fn write_many(etcd: &Client) {
    let started = Instant::now();
    let mut succeeded = 0;
    for number in 0..100 {
        match etcd.put("quickstart/counter", number.to_string()).await {
            Ok(_) => succeeded += 1,
            // This write was in flight when the member died. `error.outcome()` is `Unknown`: the client does not
            // repeat a write that may have been applied.
            Err(error) => println!("  {error}"),
        }
    }
    println!(
        "  {succeeded} of 100 writes succeeded in {:?}",
        started.elapsed()
    );
}

fn print_members(etcd: &Client) {
    for member in etcd.connectivity() {
        match member.last_error {
            None => println!("  {} is {}", member.endpoint, member.state),
            Some(error) => println!("  {} is {}: {error}", member.endpoint, member.state),
        }
    }
}

fn step(text: &str) {
    if std::io::stdout().is_terminal() {
        println!("\x1b[1;36m▸ {text}\x1b[0m");
    } else {
        println!("▸ {text}");
    }
}
