//! Which hierarchy of control groups has the groups of units.
//!
//! In: procfs. Out: version 2, or the hierarchy of a controller of version 1.

use crate::bounded;
use sensor_model::host::hierarchy::Hierarchy;
use std::path::Path;

/// The hierarchy on this host.
pub(crate) fn hierarchy() -> Hierarchy {
    of(Path::new("/proc"))
}

/// The same, read from the procfs at `proc`.
pub(crate) fn of(proc: &Path) -> Hierarchy {
    let text = bounded::read_text(&proc.join("self/cgroup"), bounded::TABLE).unwrap_or_else(|error| {
        tracing::warn!(%error, "Cannot read the control groups of this process: Holdfast assumes version 2.");
        String::new()
    });
    Hierarchy::of(&text)
}
