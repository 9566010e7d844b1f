//! Like `ranges`, and counts allocations. A separate program, because counting slows down a client with many of them.

#[path = "../ranges/mod.rs"]
mod ranges;

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() -> std::process::ExitCode {
    ranges::main(|| {
        let stats = ALLOCATOR.stats();
        stats.allocations + stats.reallocations
    })
}
