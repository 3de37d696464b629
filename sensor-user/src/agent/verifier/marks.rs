//! The fanotify marks of watches.
//!
//! In: new watches, and whether each has its mark. Out: the watches to mark, and the things with a path that has none. It owns both.

use crate::agent::registry::WatchRegistry;
use sensor_model::protocol::ThingId;
use std::collections::HashSet;

/// The fanotify marks of all watches.
#[derive(Debug, Default)]
pub(super) struct FanotifyMarks {
    /// Watches that are new since the last [`FanotifyMarks::take_new`].
    new: Vec<u32>,
    /// Watches without a mark.
    unmarked: HashSet<u32>,
    /// Things that these watches concern; `None` until they are computed again.
    things: Option<HashSet<ThingId>>,
}

impl FanotifyMarks {
    /// Adds watches that need a mark.
    pub(super) fn add(&mut self, watches: Vec<u32>) {
        if !watches.is_empty() {
            self.things = None;
        }
        self.new.extend(watches);
    }

    /// The registry has other things, so that watches may concern others.
    pub(super) fn things_changed(&mut self) {
        self.things = None;
    }

    /// Watches that are new since the last call.
    pub(super) fn take_new(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.new)
    }

    /// Notes whether a watch has its mark.
    pub(super) fn set(&mut self, watch: u32, is_marked: bool) {
        let has_changed = if is_marked { self.unmarked.remove(&watch) } else { self.unmarked.insert(watch) };
        if has_changed {
            self.things = None;
        }
    }

    /// Whether a watch of a thing has no mark.
    pub(super) fn are_missing(&mut self, thing: ThingId, registry: &WatchRegistry) -> bool {
        let unmarked = &self.unmarked;
        let things = self.things.get_or_insert_with(|| {
            let concerned = unmarked.iter().map(|watch| registry.all_concerned(&[*watch]));
            concerned
                .flat_map(|(in_evidence, outside_evidence)| in_evidence.into_iter().chain(outside_evidence))
                .collect()
        });
        things.contains(&thing)
    }
}
