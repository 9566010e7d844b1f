//! Everything that needs a server: one binary, a module a topic.

mod kv;
