//! Watches: events, progress, resume, resync and slow consumers.

mod bookmarks;
mod chaos;
mod compaction;
mod crash;
mod failover;
mod freshness;
mod hedged_faults;
mod hedged_scripted;
mod hedged_watches;
mod idle_streams;
mod leaderless;
mod operations;
mod progress;
mod restore;
mod resync;
mod scripted;
mod slow_consumers;
mod streams;
