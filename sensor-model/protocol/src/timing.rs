//! The times of the detection protocol.
//!
//! In: nothing. Out: settle time, pauses and spacing. The protocol itself reads no clock.

/// Times of the protocol, in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Timing {
    /// The settle time. A difference that looks like a change in progress is held back for this long, counted from the first
    /// change. Without evidence, a second verification follows after this time.
    pub settle_ns: u64,
    /// First pause between verifications of a thing that is not settled; the pause doubles each time.
    pub backoff_first_ns: u32,
    /// Longest pause between verifications of a thing that is not settled. The type limits it to 4.2 s.
    pub backoff_max_ns: u32,
    /// Least time between two verifications that changes cause.
    pub change_spacing_ns: u32,
    /// A fault that a test plants, to show that the checker finds it.
    #[cfg(test)]
    pub(crate) mutation: Option<Mutation>,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            settle_ns: 500_000_000,
            backoff_first_ns: 500_000,
            backoff_max_ns: 1_000_000_000,
            change_spacing_ns: 8_000_000,
            #[cfg(test)]
            mutation: None,
        }
    }
}

/// Faults that the tests plant.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Mutation {
    /// Every observation is taken for settled, as if the entry were not read a second time.
    IgnoreSecondRead,
    /// The loss counter is ignored.
    SkipSweep,
}
