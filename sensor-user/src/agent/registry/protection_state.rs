//! What deny rules mean for watches: the state of the rules on the way to what they protect. No I/O.

use crate::agent::rule_numbers::Numbers;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::path::PathBuf;

/// What deny rules mean for all watches.
#[derive(Debug, Default)]
pub(super) struct Guards {
    pub(super) numbers: Numbers,
    pub(super) by_watch: HashMap<u32, Guard>,
    /// By thing: the directory at which the way to it ends, and the name that is not there.
    pub(super) missing: HashMap<u32, (PathBuf, OsString)>,
    /// Directories of which other names are such ends since the last `Registry::guard`.
    pub(super) moved: BTreeSet<PathBuf>,
}

/// What they mean for one watch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Guard {
    /// The number of the rules of all that goes with it.
    pub(super) rules: Option<u32>,
    /// Some name in it is protected.
    pub(super) has_names: bool,
}
