//! The environment of the actors: the client's thread, supervision, backoff, tasks, and delivery to other actors.

pub(crate) mod abort_on_drop;
pub(crate) mod backoff;
pub(crate) mod delivery;
mod stopped_actors;
pub(crate) mod supervisor;
pub(crate) mod thread;
