//! How many Events a node may have. The API server and other clients limit Events too, and drop what is above.

use std::time::Duration;
use tokio::time::Instant;

/// Events at once.
const BURST: u32 = 5;
/// Time in which one more Event may be created.
const REFILL: Duration = Duration::from_secs(30);

/// The Events that may still be created.
#[derive(Debug)]
pub(super) struct EventBudget {
    left: u32,
    /// When the budget was refilled last; `None` while it is full.
    since: Option<Instant>,
}

impl EventBudget {
    pub(super) const fn new() -> Self {
        Self { left: BURST, since: None }
    }

    /// When the next Event may be created; `None` if at once.
    pub(super) fn later(&mut self) -> Option<Instant> {
        let now = Instant::now();
        while let Some(since) = self.since.filter(|since| *since + REFILL <= now) {
            self.left += 1;
            self.since = (self.left < BURST).then_some(since + REFILL);
        }
        if self.left > 0 { None } else { self.since.map(|since| since + REFILL) }
    }

    /// One Event was created.
    pub(super) fn spend(&mut self) {
        self.left = self.left.saturating_sub(1);
        self.since = self.since.or_else(|| Some(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_then_one_event_in_each_stretch_of_time() {
        let mut budget = EventBudget::new();
        for _ in 0..BURST {
            assert_eq!(budget.later(), None);
            budget.spend();
        }
        let next = budget.later().unwrap();
        assert_eq!(next, Instant::now() + REFILL);
        tokio::time::advance(REFILL).await;
        assert_eq!(budget.later(), None);
        budget.spend();
        assert!(budget.later().is_some());
        tokio::time::advance(REFILL * 100).await;
        for _ in 0..BURST {
            assert_eq!(budget.later(), None);
            budget.spend();
        }
        assert!(budget.later().is_some(), "a full budget is one burst");
    }
}
