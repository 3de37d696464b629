//! The protections of watches that follow from deny rules, as data. `protection` computes them. No I/O.

use crate::agent::rule_numbers::RuleNumbers;
use sensor_model::protocol::ThingId;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::path::PathBuf;

/// The protections of all watches.
#[derive(Debug, Default)]
pub(super) struct Protections {
    /// The numbers of rules, and of sets of rules.
    pub(super) numbers: RuleNumbers,
    /// The protection of each watch that has one.
    pub(super) by_watch: HashMap<u32, WatchProtection>,
    /// By thing: the directory at which its route ends, and the name that is missing there.
    pub(super) missing: HashMap<ThingId, (PathBuf, OsString)>,
    /// Directories in which another name is missing since the last `WatchRegistry::update_protections`.
    pub(super) moved: BTreeSet<PathBuf>,
}

/// The protection of one watch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct WatchProtection {
    /// The number of the rules of all things at or below it.
    pub(super) rules: Option<u32>,
    /// A name in it is protected.
    pub(super) has_names: bool,
}
