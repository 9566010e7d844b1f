//! An actix-web server with settings in etcd. A change applies from the next request on, without a restart.
//!
//! `cargo run --example config_reload` starts one member and the server, requests a page, changes the settings, and
//! requests the page again.

use std::{error::Error, net::SocketAddr, sync::Arc};

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
    sync::watch,
};

const KEY: &str = "web/greeting";

/// The current greeting. Handlers of HTTP requests read it without a request to etcd.
type Greeting = watch::Sender<String>;

/// Updates the greeting whenever its key changes.
struct ConfigReloader {
    etcd: Addr<Etcd>,
    start_revision: i64,
    greeting: Arc<Greeting>,
}

impl Actor for ConfigReloader {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        // Starts after the revision that was read, so no change is missed. `resync` continues after a compaction.
        let watch = watch_keys(KEY).start_revision(self.start_revision).resync();
        let recipient = ctx.address().recipient();
        self.etcd.do_send(watch.deliver_to(recipient));
    }
}

impl Handler<WatchEvent> for ConfigReloader {
    type Result = ();

    fn handle(&mut self, event: WatchEvent, _: &mut Context<Self>) {
        let kv = match &event {
            // The watch has one key, so a revision has one event.
            WatchEvent::Events(events) if events[0].is_put() => events[0].kv.as_ref(),
            WatchEvent::Resynced(state) => state.created.iter().chain(&state.changed).next(),
            WatchEvent::Ended(reason) => return println!("  watch ended: {reason}"),
            _ => None,
        };
        if let Some(text) = kv.and_then(|kv| kv.value_str().ok()) {
            self.greeting.send_replace(text.to_owned());
        }
    }
}

async fn greet(greeting: web::Data<Greeting>, name: web::Path<String>) -> HttpResponse {
    HttpResponse::Ok().body(format!("{}, {name}!", *greeting.borrow()))
}

#[actix_web::main]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("▸ starting one etcd member on this machine");
    let cluster = Cluster::start(1).await;
    let client = Client::connect(cluster.endpoints()).await?;
    Etcd::configure(client.clone())?;
    let etcd = Etcd::from_registry();

    etcd.send(put(KEY, "Hello")).await??;
    let response = etcd.send(get(KEY)).await??;
    let text = response.first().ok_or("key not found")?.value_str()?;
    let greeting = Arc::new(Greeting::new(text.to_owned()));
    let reloader = ConfigReloader {
        etcd: etcd.clone(),
        start_revision: response.header.revision + 1,
        greeting: greeting.clone(),
    };
    let _reloader = reloader.start();

    println!("▸ starting the web server");
    let data = web::Data::from(greeting.clone());
    let app = move || App::new().app_data(data.clone());
    let server = HttpServer::new(move || app().route("/{name}", web::get().to(greet)));
    let server = server.workers(2).bind("127.0.0.1:0")?;
    let address = server.addrs()[0];
    let server = server.run();
    let handle = server.handle();
    actix_rt::spawn(server);
    println!("  GET http://{address}/etcd: {}", http_get(address).await?);

    println!("▸ changing the greeting in etcd");
    let mut changes = greeting.subscribe();
    etcd.send(put(KEY, "Good evening")).await??;
    changes.changed().await?;
    let body = http_get(address).await?;
    println!("  GET http://{address}/etcd: {body}");
    assert_eq!(body, "Good evening, etcd!");

    handle.stop(true).await;
    client.shutdown().await;
    Ok(())
}

/// Requests `/etcd` and returns the body of the response.
async fn http_get(address: SocketAddr) -> Result<String, Box<dyn Error>> {
    let mut socket = TcpStream::connect(address).await?;
    let request = "GET /etcd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    socket.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    socket.read_to_string(&mut response).await?;
    Ok(response.split("\r\n\r\n").skip(1).collect())
}
