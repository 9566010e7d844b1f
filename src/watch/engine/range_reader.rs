//! Reads a whole range at one revision, page by page.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    call::Caller,
    error::Error,
    proto::{KeyValue, RangeRequest, RangeResponse, rpc},
    transport::grpc,
};

const PAGE_SIZE: i64 = 1000;

/// The range to read.
#[derive(Debug, Clone)]
pub(crate) struct RangeToRead {
    pub(crate) key: Bytes,
    pub(crate) end: Bytes,
    /// Revision to read at; 0 is the current one.
    pub(crate) revision: i64,
    pub(crate) keys_only: bool,
}

/// Passes every page to `on_page` and returns the revision at which all pages were read.
///
/// `page_timeout` limits each page. Fails with the error of the first page that cannot be read.
pub(crate) async fn read_range(
    caller: &Caller,
    range: RangeToRead,
    page_timeout: Duration,
    mut on_page: impl FnMut(Vec<KeyValue>),
) -> Result<i64, Error> {
    let mut request = RangeRequest {
        key: range.key,
        range_end: range.end,
        revision: range.revision,
        keys_only: range.keys_only,
        limit: PAGE_SIZE,
        ..RangeRequest::default()
    };
    loop {
        let response: RangeResponse = caller
            .unary(rpc::RANGE, grpc::encode(&request)?, page_timeout)
            .await?;
        if request.revision == 0 {
            request.revision = response.header.as_ref().map_or(0, |header| header.revision);
        }
        let last = response.kvs.last().map(|last| last.key.clone());
        on_page(response.kvs);
        match last {
            Some(last) if response.more => request.key = successor(&last),
            _ => return Ok(request.revision),
        }
    }
}

/// Returns the smallest key greater than `key`.
fn successor(key: &[u8]) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.put_u8(0);
    next.freeze()
}
