//! Watches: one logical watch over any number of streams, nothing lost, nothing twice.
//!
//! What is decided here, apart from actors and sockets:
//! - [`cursor`]: which events of a stream are new, complete and in order, and where to resume.
//! - [`cancel`]: what a cancelled watch may still do.
//! - [`creates`]: which watch of a shared stream an answer is about.
//! - [`resync`]: what changed in a range while its history was compacted away.

// The actors that drive these decisions are not in the tree yet.
#![allow(dead_code)]

pub(crate) mod cancel;
pub(crate) mod creates;
pub(crate) mod cursor;
pub(crate) mod resync;
