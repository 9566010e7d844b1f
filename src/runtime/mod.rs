//! The environment of the actors: the client's thread and its orderly end, supervision, backoff, tasks, delivery to
//! other actors, and the time during which the machine was suspended.

pub(crate) mod abort_on_drop;
pub(crate) mod atomic_file;
pub(crate) mod backoff;
pub(crate) mod delivery;
pub(crate) mod holders;
mod stopped_actors;
pub(crate) mod supervisor;
pub(crate) mod suspended_time;
pub(crate) mod thread;
