//! Leases: kept alive as long as the cluster lets them, and told about honestly.
//!
//! - [`deadline`]: when to ask for a lease again, when it is at risk, and when it is lost.

// The actor that drives this decision is not in the tree yet.
#![allow(dead_code)]

pub(crate) mod deadline;
