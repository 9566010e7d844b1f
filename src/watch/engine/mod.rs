//! The engine of watches: one watch continues over any number of streams, without a lost or repeated event.
//!
//! Three kinds of actors. The [`hub`], one per client, decides on which member and on which shared stream a watch runs.
//! A [`watch_stream`] is one Watch stream on one connection: it pipelines creates and routes every response to its
//! watch. A [`watch_actor`], one per watch, owns the cursor and fills the bounded [`event_buffer`] of its consumer.
//!
//! ```text
//!              AttachWatch, DetachWatch          AddWatch, RemoveWatch
//! consumer ── WatchActor ──────────────▶ HubActor ──────────────▶ StreamActor ── h2
//!                 ▲                                                    │
//!                 └────────────────── UpdateReceived ──────────────────┘
//! ```
//!
//! Every attempt to attach has a number, and a watch ignores updates for older attempts: a watch that moved, paused or
//! restarted never receives events of a stream it left. When a stream fails, each of its watches requests another
//! stream and resumes at its cursor.
//!
//! The position of a watch moves by its events and by progress, which each stream requests at intervals for all its
//! watches. The [`freshness_record`] of a watch, shared by stream, actor and consumer, holds up to which revision the watch
//! is complete, and when that was confirmed.
//!
//! A hedged watch has two [`watch_actor`]s, its legs, on different members. The second one sends complete revisions to the
//! first one, which merges them into its cursor.
//!
//! An event on its way to the user: bytes of an HTTP/2 frame → `WatchResponse` (decoded, keys and values are slices of
//! the frame) → `ResponsesReceived` (to the stream's actor) → `UpdateReceived` (to the watch's actor) → `BufferItem`
//! (complete revisions only) → `RevisionEvents` in a `WatchEvent` (one revision each).

pub(crate) mod cursor;
pub(crate) mod event_buffer;
pub(crate) mod freshness_record;
pub(crate) mod hub;
pub(crate) mod known_keys;
pub(crate) mod leg;
pub(crate) mod range_reader;
pub(crate) mod watch_actor;
pub(crate) mod watch_service;
pub(crate) mod watch_spec;
pub(crate) mod watch_stream;
