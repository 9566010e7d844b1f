//! The synchronization types of [`driver_wakes`](super::driver_wakes) and [`poll_lock`](super::poll_lock). The test
//! `concurrency_model` compiles both files with the types of loom instead.

pub(crate) use std::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering, fence},
    },
    thread_local,
};

pub(crate) use atomic_waker::AtomicWaker;
