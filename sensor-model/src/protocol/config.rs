//! The times of the detection protocol.

/// Times of the protocol, in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Config {
    /// How long a difference may be held back because it looks like a change in progress, counted from
    /// the first change; also the delay before the second look where there is no evidence.
    pub settle_ns: u64,
    /// First pause between looks at a thing in flux; it doubles.
    pub backoff_first_ns: u32,
    /// Longest pause between looks at a thing in flux. At most 4.2 s, by its type.
    pub backoff_max_ns: u32,
    /// A thing in flux is not looked at more often than this because of events, nor one that was found at rest.
    pub event_spacing_ns: u32,
    /// A fault put in by the tests, to show that they find it.
    #[cfg(test)]
    pub(super) mutation: Option<Mutation>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            settle_ns: 500_000_000,
            backoff_first_ns: 500_000,
            backoff_max_ns: 1_000_000_000,
            event_spacing_ns: 8_000_000,
            #[cfg(test)]
            mutation: None,
        }
    }
}

/// Faults that the tests put in.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Mutation {
    /// Take every look as quiet, as if the entry were not read a second time.
    IgnoreSecondRead,
    /// Ignore the loss counter.
    SkipSweep,
}
