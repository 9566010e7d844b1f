//! An actix-web server whose settings live in etcd: changed there, they hold from the next request on, without a
//! restart, and on every server at once.
//!
//! `cargo run --example config_reload` starts one member and the server, asks it, changes the settings, asks again.

use std::{error::Error, sync::Arc};

use actix::{Actor, Addr, AsyncContext, Context, Handler};
use actix_etcd::{
    Client, Etcd, WatchEvent,
    kv::{get, put},
    watch::watch_keys,
};
use actix_web::{App, HttpResponse, HttpServer, web};
use testbed::Cluster;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch as current,
};

const GREETING: &str = "web/greeting";

/// Keeps the greeting current; handlers read it without asking anybody.
struct Reload {
    etcd: Addr<Etcd>,
    since: i64,
    greeting: Arc<current::Sender<String>>,
}

impl Actor for Reload {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        // From the revision that was read on, so no change is missed; and a compaction does not end it.
        let changes = watch_keys(GREETING).start_revision(self.since).resync();
        self.etcd
            .do_send(changes.deliver_to(ctx.address().recipient()));
    }
}

impl Handler<WatchEvent> for Reload {
    type Result = ();

    fn handle(&mut self, item: WatchEvent, _: &mut Context<Self>) {
        let kvs: Vec<_> = match &item {
            WatchEvent::Events(events) => events.iter().filter_map(|e| e.kv.as_ref()).collect(),
            WatchEvent::Resynced(now) => now.created.iter().chain(&now.changed).collect(),
            WatchEvent::Ended(why) => return println!("  no more changes: {why}"),
            _ => return,
        };
        if let Some(kv) = kvs.last() {
            let greeting = String::from_utf8_lossy(&kv.value).into_owned();
            self.greeting.send_replace(greeting);
        }
    }
}

async fn greet(
    greeting: web::Data<current::Sender<String>>,
    name: web::Path<String>,
) -> HttpResponse {
    HttpResponse::Ok().body(format!("{}, {name}!", *greeting.borrow()))
}

#[actix_web::main]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("▸ starting one etcd member on this machine");
    let cluster = Cluster::start(1).await;
    let client = Client::connect(cluster.endpoints()).await?;
    Etcd::configure(client.clone())?;
    let etcd = Etcd::from_registry();

    etcd.send(put(GREETING, "Hello")).await??;
    let found = etcd.send(get(GREETING)).await??;
    let first = found.kvs.first().ok_or("it was put just now")?;
    let first = String::from_utf8_lossy(&first.value).into_owned();
    let greeting = Arc::new(current::Sender::new(first));
    let reload = Reload {
        etcd: etcd.clone(),
        since: found.header.revision + 1,
        greeting: greeting.clone(),
    };
    let _reload = reload.start();

    println!("▸ starting the web server");
    let settings = web::Data::from(greeting.clone());
    let server = HttpServer::new(move || {
        let app = App::new().app_data(settings.clone());
        app.route("/{name}", web::get().to(greet))
    });
    let server = server.workers(2).bind("127.0.0.1:0")?;
    let address = server.addrs()[0];
    let server = server.run();
    let handle = server.handle();
    actix_rt::spawn(server);
    println!("  http://{address}/etcd says: {}", ask(address).await?);

    println!("▸ changing the greeting in etcd");
    let mut changes = greeting.subscribe();
    etcd.send(put(GREETING, "Good evening")).await??;
    changes.changed().await?;
    let answer = ask(address).await?;
    println!("  http://{address}/etcd says: {answer}");
    assert_eq!(answer, "Good evening, etcd!");

    handle.stop(true).await;
    client.shutdown().await;
    Ok(())
}

/// What a browser would show.
async fn ask(address: std::net::SocketAddr) -> Result<String, Box<dyn Error>> {
    let mut socket = TcpStream::connect(address).await?;
    let request = "GET /etcd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    socket.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await?;
    Ok(answer.split("\r\n\r\n").skip(1).collect())
}
