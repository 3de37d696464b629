//! The age of watches.
//!
//! In: how long a watch lived. Out: what its end means for the next watch.
//!
//! An API server whose etcd was restored from a backup accepts a watch from a version that it does not have yet, and sends nothing until it has
//! that version again, which may take days. So after a watch that broke, the next one begins with a read that the API server refuses if it
//! has only earlier versions.

use std::time::Duration;

/// After so many seconds the API server ends a watch.
pub(crate) const WATCH_SECONDS: u32 = 290;
/// A watch that is older gets no answer any more.
pub(crate) const LONGEST_WATCH: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 10);
/// The API server ended a watch of this age because of its age, and not because of an outage.
const WHOLE: Duration = Duration::from_secs(WATCH_SECONDS as u64 - 10);
/// A watch that lived this long did not end early.
const LONG: Duration = Duration::from_secs(10);

/// Whether a watch lived for a while, so that the pauses before the next one need not grow. `lived`: its age, if the API server accepted it.
pub(crate) fn is_long(lived: Option<Duration>) -> bool {
    lived.is_some_and(|lived| lived >= LONG)
}

/// Whether the API server may have been restored to an earlier version since a watch began that ended at this age.
pub(crate) fn is_broken(lived: Option<Duration>, has_failed: bool) -> bool {
    has_failed || lived.is_none_or(|lived| lived < WHOLE)
}
