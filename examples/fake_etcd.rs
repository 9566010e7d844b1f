//! How to test an actor that uses etcd, without etcd: it holds a `Recipient` of what it may ask, and in a test that is
//! a fake which answers the same messages. The same actor then runs on a real member.
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

/// The actor to be tested: may read keys, and nothing else.
struct Prices {
    reader: Recipient<Get>,
}

impl Actor for Prices {
    type Context = Context<Self>;
}

/// What does this cost? Where nobody knows, it is not for sale.
#[derive(Message)]
#[rtype(result = "Option<u32>")]
struct PriceOf(&'static str);

impl Handler<PriceOf> for Prices {
    type Result = ResponseFuture<Option<u32>>;

    fn handle(&mut self, PriceOf(fruit): PriceOf, _: &mut Context<Self>) -> Self::Result {
        let found = self.reader.send(get(format!("price/{fruit}")));
        Box::pin(async move {
            let found = found.await.ok()?.ok()?;
            let value = &found.kvs.first()?.value;
            std::str::from_utf8(value).ok()?.parse().ok()
        })
    }
}

/// Answers from a map; keys that are not in it cannot be read at all.
struct FakeEtcd(HashMap<&'static str, &'static str>);

impl Actor for FakeEtcd {
    type Context = Context<Self>;
}

impl Handler<Get> for FakeEtcd {
    type Result = actix_etcd::Result<GetResponse>;

    fn handle(&mut self, get: Get, _: &mut Context<Self>) -> Self::Result {
        let key = get.wire()?.key;
        let value = std::str::from_utf8(&key)
            .ok()
            .and_then(|key| self.0.get(key));
        let Some(value) = value else {
            let (kind, outcome) = (ErrorKind::PermissionDenied, Outcome::Rejected);
            return Err(actix_etcd::Error::new(kind, outcome, "not in the map"));
        };
        let answer = RangeResponse {
            header: Some(ResponseHeader::default()),
            kvs: vec![KeyValue {
                key,
                value: (*value).into(),
                ..KeyValue::default()
            }],
            ..RangeResponse::default()
        };
        answer.try_into()
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
    println!("  as expected: a price, what is no price, and an error");

    println!("▸ with a real member");
    let cluster = Cluster::start(1).await;
    let client = Client::connect(cluster.endpoints()).await?;
    let etcd = Etcd::new(client.clone()).start();
    etcd.send(put("price/apple", "4")).await??;
    let reader = etcd.recipient();
    let prices = Prices { reader }.start();
    let price = prices.send(PriceOf("apple")).await?;
    println!("  an apple costs {price:?}");
    assert_eq!(price, Some(4));
    client.shutdown().await;
    Ok(())
}
