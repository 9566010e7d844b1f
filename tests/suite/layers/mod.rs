//! Bulk writes, reads of many keys, streams of ranges, mirrors, and typed values.

mod bulk_chaos;
mod bulk_faults;
mod bulk_limits;
mod bulk_scripted;
mod bulk_writes;
mod exactly_once;
mod exactly_once_chaos;
mod exactly_once_scripted;
mod get_many;
mod mirror;
mod mirror_chaos;
mod mirror_faults;
mod range_streams;
mod scripted_streams;
mod typed;
