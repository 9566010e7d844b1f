//! Bulk writes, exactly-once writes, reads of many keys, streams of ranges, caches and live configurations.

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
mod range_streams;
mod scripted_streams;
