//! Testing an actor without etcd: the actor holds a `Recipient` of the requests it may send, and a test gives it a fake
//! that handles the same messages. The same actor then runs with a real member.
//!
//! `cargo run --example fake_etcd`

use std::{collections::HashMap, error::Error};

use actix::{Actor, Context, Handler, Message, Recipient, ResponseFuture};
use actix_etcd::{
    Client, ErrorKind, Etcd, Outcome,
    kv::{Get, GetResponse, get, put},
    proto::{KeyValue, RangeResponse, ResponseHeader},
};
use testbed::Cluster;

/// The actor under test. It can read keys, but not write them.
struct Prices {
    reader: Recipient<Get>,
}

impl Actor for Prices {
    type Context = Context<Self>;
}

/// Returns the price of a fruit, or `None` if it has none.
#[derive(Message)]
#[rtype(result = "Option<u32>")]
struct PriceOf(&'static str);

impl Handler<PriceOf> for Prices {
    type Result = ResponseFuture<Option<u32>>;

    fn handle(&mut self, PriceOf(fruit): PriceOf, _: &mut Context<Self>) -> Self::Result {
        let response = self.reader.send(get(format!("price/{fruit}")));
        Box::pin(async move {
            let response = response.await.ok()?.ok()?;
            response.first()?.value_str().ok()?.parse().ok()
        })
    }
}

/// Returns values from a map. Reading any other key fails.
struct FakeEtcd(HashMap<&'static str, &'static str>);

impl Actor for FakeEtcd {
    type Context = Context<Self>;
}

impl Handler<Get> for FakeEtcd {
    type Result = actix_etcd::Result<GetResponse>;

    fn handle(&mut self, get: Get, _: &mut Context<Self>) -> Self::Result {
        let key = get.wire()?.key;
        let name = String::from_utf8_lossy(&key);
        let Some(value) = self.0.get(&*name) else {
            let (kind, outcome) = (ErrorKind::PermissionDenied, Outcome::Rejected);
            return Err(actix_etcd::Error::new(kind, outcome, "not in the map"));
        };
        let response = RangeResponse {
            header: Some(ResponseHeader::default()),
            kvs: vec![KeyValue {
                key: key.clone(),
                value: (*value).into(),
                ..KeyValue::default()
            }],
            ..RangeResponse::default()
        };
        response.try_into()
    }
}

#[actix_rt::main]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("▸ with a fake");
    let fake = FakeEtcd([("price/apple", "3"), ("price/pear", "?")].into());
    let reader = fake.start().recipient();
    let prices = Prices { reader }.start();
    assert_eq!(prices.send(PriceOf("apple")).await?, Some(3));
    assert_eq!(prices.send(PriceOf("pear")).await?, None);
    assert_eq!(prices.send(PriceOf("plum")).await?, None);
    println!("  tested: a price, a value that is no number, and an error");

    println!("▸ with a real member");
    let cluster = Cluster::start(1).await;
    let client = Client::connect(cluster.endpoints()).await?;
    let etcd = Etcd::new(client.clone()).start();
    etcd.send(put("price/apple", "4")).await??;
    let reader = etcd.recipient();
    let prices = Prices { reader }.start();
    let price = prices.send(PriceOf("apple")).await?;
    println!("  price of an apple: {price:?}");
    assert_eq!(price, Some(4));
    client.shutdown().await;
    Ok(())
}
