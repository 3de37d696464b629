//! Pauses between attempts that fail.
//!
//! In: how often an attempt failed. Out: the pause until the next one. Nothing waits here.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// Growing pauses: each is twice the one before, up to a limit, less a random part of at most a quarter. The random part keeps
/// the reporters of many nodes from asking at the same moment.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// Pauses from the first to the longest.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    /// The pause after one more failure.
    pub fn next_pause(&mut self) -> Duration {
        let doubled = self.first.saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX));
        self.failures = self.failures.saturating_add(1);
        let pause = doubled.min(self.longest);
        // Each hasher of the standard library has random keys.
        let random = u32::from(RandomState::new().hash_one(self.failures).to_le_bytes()[0]);
        pause.saturating_sub(pause / 4 * random / 256)
    }

    /// The next pause is the first one again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Whether the last attempt failed.
    pub const fn is_failing(&self) -> bool {
        self.failures > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew_after_a_reset() {
        let seconds = Duration::from_secs;
        let mut backoff = Backoff::new(seconds(1), seconds(60));
        for whole in [1, 2, 4, 8, 16, 32, 60, 60] {
            let pause = backoff.next_pause();
            assert!(pause <= seconds(whole) && pause >= seconds(whole) * 3 / 4, "{pause:?}");
        }
        for _ in 0..100 {
            assert!(backoff.next_pause() >= seconds(45));
        }
        backoff.reset();
        assert!(!backoff.is_failing() && backoff.next_pause() <= seconds(1));
    }
}
