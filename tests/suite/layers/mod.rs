//! Exactly-once writes, bulk writes, reads of many keys, streams of ranges, caches, live configurations, mirrors, typed
//! values, and clients with a namespace or an order.

mod bulk_chaos;
mod bulk_faults;
mod bulk_limits;
mod bulk_scripted;
mod bulk_writes;
mod cache;
mod cache_chaos;
mod cache_faults;
mod cache_scripted;
mod exactly_once;
mod exactly_once_chaos;
mod exactly_once_scripted;
mod get_many;
mod live_config;
mod mirror;
mod mirror_chaos;
mod mirror_faults;
mod mirror_scripted;
mod namespace;
mod ordered;
mod ordered_chaos;
mod ordered_scripted;
mod range_streams;
mod scripted_streams;
mod typed;
mod typed_scripted;
