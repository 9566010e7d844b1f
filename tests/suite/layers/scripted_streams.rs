//! Streams of ranges against a scripted server: slow paths, and streams that end too early.

use std::time::Duration;

use actix_etcd::{
    Client,
    proto::{KeyValue, RangeRequest, RangeResponse, RangeStreamResponse, ResponseHeader},
};
use prost::Message;
use testbed::{Call, Reply, ScriptedServer};

use crate::support::scripted_put::RANGE;

const RANGE_STREAM: &str = "/etcdserverpb.KV/RangeStream";
const KEYS: usize = 100;

/// Returns the keys from the start of the range on, at most `limit`.
fn keys_of(request: &RangeRequest, limit: usize) -> Vec<KeyValue> {
    let all = (0..KEYS).map(|n| format!("k/{n:03}"));
    let from = all.skip_while(|key| key.as_bytes() < &request.key[..]);
    let kv = |key: String| KeyValue {
        key: key.into(),
        mod_revision: 1,
        ..KeyValue::default()
    };
    from.take(limit).map(kv).collect()
}

/// The page that etcd would return.
fn page(request: &RangeRequest) -> RangeResponse {
    let kvs = keys_of(request, usize::try_from(request.limit).unwrap());
    let last = format!("k/{:03}", KEYS - 1);
    RangeResponse {
        header: Some(ResponseHeader {
            revision: 7,
            ..ResponseHeader::default()
        }),
        more: kvs.last().is_some_and(|kv| kv.key != last),
        kvs,
        ..RangeResponse::default()
    }
}

fn range_of(call: &Call) -> RangeRequest {
    RangeRequest::decode(call.body.clone()).unwrap()
}

async fn read_all(etcd: &Client, timeout: Duration) -> Vec<String> {
    let mut stream = etcd.get("k/").prefix().timeout(timeout).stream();
    let mut keys = Vec::new();
    while let Some(kv) = stream.next().await {
        keys.push(kv.unwrap().key_str().unwrap().to_owned());
    }
    keys
}

fn all_keys() -> Vec<String> {
    (0..KEYS).map(|n| format!("k/{n:03}")).collect()
}

#[tokio::test]
async fn page_that_is_late_is_requested_with_fewer_keys() {
    let server = ScriptedServer::start().await;
    server.on(RANGE, |call| {
        let request = range_of(&call);
        // More than two keys take longer than the timeout.
        if request.limit > 2 {
            Reply::hang()
        } else {
            Reply::message(&page(&request))
        }
    });
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let found = read_all(&etcd, Duration::from_millis(300)).await;
    assert_eq!(found, all_keys());
}

#[tokio::test]
async fn stream_that_ends_too_early_is_continued() {
    let server = ScriptedServer::start().await;
    server.on(RANGE, |call| Reply::message(&page(&range_of(&call))));
    server.on(RANGE_STREAM, |call| {
        let kvs = keys_of(&range_of(&call), 5);
        // The last message would have a header.
        Reply::message(&RangeStreamResponse {
            range_response: Some(RangeResponse {
                kvs,
                ..RangeResponse::default()
            }),
        })
    });
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let found = read_all(&etcd, Duration::from_secs(5)).await;
    assert_eq!(found, all_keys());
    assert!(server.count(RANGE_STREAM) > 0);
}
