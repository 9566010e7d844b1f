//! The README and the examples are complete and correct.

mod examples;
mod rpc_table;
