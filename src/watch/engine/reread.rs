//! Reads a whole range at one revision, page by page.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    call::Caller,
    error::Error,
    proto::{KeyValue, RangeRequest, RangeResponse, rpc},
    transport::grpc,
};

const PAGE: i64 = 1000;

/// What to read.
#[derive(Debug, Clone)]
pub(crate) struct Range {
    pub(crate) key: Bytes,
    pub(crate) end: Bytes,
    /// 0: the newest.
    pub(crate) revision: i64,
    pub(crate) keys_only: bool,
}

/// Hands every page to `take` and gives the revision that all of them show.
pub(crate) async fn read(
    caller: &Caller,
    range: Range,
    timeout: Duration,
    mut take: impl FnMut(Vec<KeyValue>),
) -> Result<i64, Error> {
    let mut request = RangeRequest {
        key: range.key,
        range_end: range.end,
        revision: range.revision,
        keys_only: range.keys_only,
        limit: PAGE,
        ..RangeRequest::default()
    };
    loop {
        let answer: RangeResponse = caller
            .unary(rpc::RANGE, grpc::encode(&request)?, timeout)
            .await?;
        if request.revision == 0 {
            request.revision = answer.header.as_ref().map_or(0, |header| header.revision);
        }
        let last = answer.kvs.last().map(|last| last.key.clone());
        take(answer.kvs);
        match last {
            Some(last) if answer.more => request.key = successor(&last),
            _ => return Ok(request.revision),
        }
    }
}

/// The smallest key after that one.
fn successor(key: &[u8]) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.put_u8(0);
    next.freeze()
}
