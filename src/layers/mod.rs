//! What applications build on top of single requests.
//!
//! | layer | provides | start with |
//! |---|---|---|
//! | [`bulk`] | writes any number of keys, many per transaction | [`Client::bulk`](crate::Client::bulk) |
//! | [`cache`] | keys mirrored in memory: reads without a request, and a stream of changes | [`Client::cache`](crate::Client::cache) |
//! | [`codec`] | converts between values and types of the application | [`codec::Codec`] |
//! | [`conditional_write`] | create, update, remove and modify a key, with outcomes | [`Client::create`](crate::Client::create), [`Client::modify`](crate::Client::modify) |
//! | [`exactly_once`] | resolves unknown outcomes of writes | [`Put::exactly_once`](crate::kv::Put::exactly_once), [`Txn::exactly_once`](crate::kv::Txn::exactly_once) |
//! | [`get_many`] | reads any number of keys at one revision | [`Client::get_many`](crate::Client::get_many) |
//! | [`live_config`] | a typed and validated value that is always current | [`Client::live_config`](crate::Client::live_config) |
//! | [`mirror`] | copies a prefix to another cluster or prefix, and keeps the copy up to date | [`Client::mirror`](crate::Client::mirror) |
//! | [`typed`] | values of a type of the application instead of bytes | [`Client::typed`](crate::Client::typed) |
//! | [`namespace`] | a client for the keys under a prefix | [`Client::namespace`](crate::Client::namespace) |
//! | [`ordered`] | a client whose reads never return an older state than before | [`Client::ordered`](crate::Client::ordered) |
//!
//! A whole range of any size is read by [`Get::stream`](crate::kv::Get::stream).

pub mod bulk;
pub mod cache;
pub mod codec;
pub mod conditional_write;
pub mod exactly_once;
pub mod get_many;
pub mod live_config;
pub mod mirror;
pub mod namespace;
pub mod ordered;
pub(crate) mod read_then_watch;
pub mod typed;
