//! Key-value operations.

mod operations;
mod pages;
