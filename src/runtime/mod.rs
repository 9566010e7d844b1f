//! Where the actors run: the client's thread, supervision, delivery to other actors.

pub(crate) mod delivery;
pub(crate) mod supervisor;
pub(crate) mod thread;
