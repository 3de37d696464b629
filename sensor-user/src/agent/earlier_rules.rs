//! The deny rules that an earlier daemon left in the kernel's maps. They protect inodes until the daemon enrols these again.
//!
//! In: the maps. Out: the numbers that inodes and names have, and the actors that these allow. It owns nothing.

use crate::kernel::maps::{Maps, MapsError};
use sensor_common::map::{ALLOWED_PROCESS, Allowed, GROUPS_KEY};
use std::collections::{BTreeMap, BTreeSet};

/// Allowed actors, each with one bit for each rule of a set that allows it.
pub(super) type Allowances = BTreeMap<Allowed, u64>;

/// The deny rules of an earlier daemon.
#[derive(Debug, Default)]
pub(super) struct EarlierRules {
    /// The numbers of rules and of sets of rules.
    pub(super) numbers: BTreeSet<u32>,
    /// The actors in the map.
    pub(super) actors: Allowances,
}

impl EarlierRules {
    /// Reads them. Removes the actors of numbers that nothing has any more, so that starts that were cut short leave none behind.
    pub(super) fn take_over(maps: &mut Maps) -> Result<Self, MapsError> {
        maps.remove(GROUPS_KEY)?;
        let (earlier, unused) =
            Self { numbers: maps.rule_numbers()?, actors: maps.allowed()? }.without_unused();
        for actor in unused {
            maps.disallow(actor)?;
        }
        Ok(earlier)
    }

    /// Takes out the actors of numbers that nothing has. Holdfast's own processes have none; the next refresh removes those that no
    /// longer write.
    fn without_unused(mut self) -> (Self, Vec<Allowed>) {
        let is_used = |actor: &Allowed| actor.kind == ALLOWED_PROCESS || self.numbers.contains(&actor.rule);
        let unused: Vec<Allowed> = self.actors.keys().filter(|actor| !is_used(actor)).copied().collect();
        for actor in &unused {
            self.actors.remove(actor);
        }
        (self, unused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sensor_common::map::{ALLOWED_ALL, ALLOWED_LOGIN};

    #[test]
    fn actors_of_a_number_that_nothing_has_are_removed_and_no_others() {
        let actor =
            |rule, kind| Allowed { rule, kind, value: 5, dev: 0, generation: 0, volume: 0, padding: 0 };
        let [used, unused, process] =
            [actor(2, ALLOWED_LOGIN), actor(3, ALLOWED_LOGIN), actor(0, ALLOWED_PROCESS)];
        let actors = [used, unused, process].map(|actor| (actor, ALLOWED_ALL)).into();
        let (kept, removed) = EarlierRules { numbers: [1, 2].into(), actors }.without_unused();
        assert_eq!(removed, [unused]);
        assert_eq!(kept.actors.into_keys().collect::<Vec<_>>(), [process, used]);
    }
}
