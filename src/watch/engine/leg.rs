//! The legs of a watch: one, or two if the watch is hedged.

/// A member on which a watch runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leg {
    /// The only leg of a watch that is not hedged.
    First,
    Second,
}
