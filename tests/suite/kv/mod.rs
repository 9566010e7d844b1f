//! Keys and values.

mod operations;
mod pages;
