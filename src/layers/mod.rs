//! What applications build on top of single requests.
//!
//! | layer | provides | start with |
//! |---|---|---|
//! | [`bulk`] | writes any number of keys, many per transaction | [`Client::bulk`](crate::Client::bulk) |
//! | [`codec`] | converts between values and types of the application | [`codec::Codec`] |
//! | [`get_many`] | reads any number of keys at one revision | [`Client::get_many`](crate::Client::get_many) |
//! | [`mirror`] | copies a prefix to another cluster or prefix, and keeps the copy up to date | [`Client::mirror`](crate::Client::mirror) |
//!
//! A whole range of any size is read by [`Get::stream`](crate::kv::Get::stream).

pub mod bulk;
pub mod codec;
pub mod get_many;
pub mod mirror;
