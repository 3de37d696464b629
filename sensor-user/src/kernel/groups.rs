//! Which hierarchy of control groups tells where processes run.
//!
//! In: procfs. Out: version 2, or the hierarchy of a controller of version 1.

use crate::bounded;
use sensor_model::host::hierarchy::Hierarchy;
use std::path::Path;

/// The hierarchy on this host.
pub(crate) fn hierarchy() -> Hierarchy {
    of(Path::new("/proc"))
}

/// The same by the procfs at `proc`.
pub(crate) fn of(proc: &Path) -> Hierarchy {
    let text = bounded::read_text(&proc.join("self/cgroup"), bounded::TABLE).unwrap_or_else(|error| {
        tracing::warn!(%error, "Cannot read the control groups: version 2 is assumed.");
        String::new()
    });
    Hierarchy::of(&text)
}
