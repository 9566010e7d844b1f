//! An actix-web server with settings in etcd. A change applies from the next request on, without a restart.
//!
//! `cargo run --example config_reload` starts one member and the server, requests a page, changes the settings, and
//! requests the page again.

use std::{error::Error, net::SocketAddr};

use actix_etcd::{
    Client,
    layers::{codec::Utf8, live_config::LiveConfig},
};
use actix_web::{App, HttpResponse, HttpServer, web};
use testbed::Cluster;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const KEY: &str = "web/greeting";

async fn greet(greeting: web::Data<LiveConfig<String>>, name: web::Path<String>) -> HttpResponse {
    HttpResponse::Ok().body(format!("{}, {name}!", greeting.get()))
}

#[actix_web::main]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("▸ starting one etcd member on this machine");
    let cluster = Cluster::start(1).await;
    let client = Client::connect(cluster.endpoints()).await?;
    client.put(KEY, "Hello").await?;
    // Handlers of HTTP requests read it without a request to etcd.
    let greeting = client
        .live_config::<String, Utf8>(KEY)
        .validate(|text: &String| {
            if text.is_empty() {
                Err("it is empty")
            } else {
                Ok(())
            }
        })
        .await?;

    println!("▸ starting the web server");
    let data = web::Data::new(greeting.clone());
    let app = move || App::new().app_data(data.clone());
    let server = HttpServer::new(move || app().route("/{name}", web::get().to(greet)));
    let server = server.workers(2).bind("127.0.0.1:0")?;
    let address = server.addrs()[0];
    let server = server.run();
    let handle = server.handle();
    actix_rt::spawn(server);
    println!("  GET http://{address}/etcd: {}", http_get(address).await?);

    println!("▸ changing the greeting in etcd");
    client.put(KEY, "Good evening").await?;
    greeting.wait_until(|text| text == "Good evening").await?;
    let body = http_get(address).await?;
    println!("  GET http://{address}/etcd: {body}");
    assert_eq!(body, "Good evening, etcd!");

    println!("▸ an empty greeting is rejected");
    let mut changes = greeting.changed();
    client.put(KEY, "").await?;
    changes.next().await;
    let rejected = greeting.rejected().ok_or("the greeting was accepted")?;
    println!("  {rejected}");
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
