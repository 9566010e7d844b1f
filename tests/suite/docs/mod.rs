//! The README and the examples.

mod examples;
mod rpc_table;
