//! The numbers of deny rules in the kernel's maps.
//!
//! In: rules, sets of rules that apply together, and the numbers of an earlier daemon's rules. Out: a number for each. It owns the
//! numbers. A number stays the same while the daemon runs, because it protects inodes in the map until the daemon enrols them
//! again. For the same reason no rule gets a number that the map has from an earlier daemon. No I/O.

use sensor_common::op::RULE_MASK;
use sensor_model::drift_policy::Rule;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The number of a rule that allows only Holdfast, for rules when no numbers are left.
pub const HOLDFAST_ONLY: u32 = RULE_MASK;

/// After this number the next run assigns all numbers again, long before none are left.
const MOST: u32 = HOLDFAST_ONLY / 2;

/// With more numbers of earlier rules than this, a new run uses them again: too few others may be left.
const MOST_EARLIER: usize = MOST as usize / 2;

/// All numbers. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct RuleNumbers(Rc<RefCell<AssignedNumbers>>);

#[derive(Debug, Default)]
struct AssignedNumbers {
    rules: Vec<(u32, Rule)>,
    /// Sets of two rules and more, with their members sorted.
    sets: BTreeMap<Vec<u32>, u32>,
    last: u32,
    /// The numbers of an earlier daemon's rules, which no rule gets.
    earlier: BTreeSet<u32>,
}

impl AssignedNumbers {
    fn next(&mut self) -> u32 {
        let mut free = (self.last + 1..HOLDFAST_ONLY).filter(|number| !self.earlier.contains(number));
        self.last = free.next().unwrap_or(HOLDFAST_ONLY);
        self.last
    }
}

impl RuleNumbers {
    /// Numbers other than those of earlier rules; `None` if there are too many of these.
    pub fn other_than(earlier: BTreeSet<u32>) -> Option<Self> {
        let is_room = earlier.len() <= MOST_EARLIER;
        is_room
            .then(|| Self(Rc::new(RefCell::new(AssignedNumbers { earlier, ..AssignedNumbers::default() }))))
    }

    /// Whether the next run assigns all numbers again.
    pub fn are_many(&self) -> bool {
        self.0.borrow().last > MOST
    }

    /// The number of a rule; [`HOLDFAST_ONLY`] when there are none left.
    pub fn of_rule(&self, rule: &Rule) -> u32 {
        let known = &mut *self.0.borrow_mut();
        if let Some((number, _)) = known.rules.iter().find(|(_, known)| known == rule) {
            return *number;
        }
        let number = known.next();
        if number != HOLDFAST_ONLY {
            known.rules.push((number, rule.clone()));
        }
        number
    }

    /// The number of rules that apply together: an actor has to be allowed by each of them. `None` for no rule, and the rule's
    /// own number for one rule.
    pub fn of_all(&self, rules: &BTreeSet<u32>) -> Option<u32> {
        let first = *rules.first()?;
        if rules.len() == 1 {
            return Some(first);
        }
        if rules.contains(&HOLDFAST_ONLY) {
            return Some(HOLDFAST_ONLY);
        }
        let members: Vec<u32> = rules.iter().copied().collect();
        let known = &mut *self.0.borrow_mut();
        if let Some(number) = known.sets.get(&members) {
            return Some(*number);
        }
        let number = known.next();
        if number != HOLDFAST_ONLY {
            known.sets.insert(members, number);
        }
        Some(number)
    }

    /// The number of all rules behind numbers of rules and of sets.
    pub fn of_union(&self, numbers: impl IntoIterator<Item = u32>) -> Option<u32> {
        let mut numbers: Vec<u32> = numbers.into_iter().collect();
        numbers.sort_unstable();
        numbers.dedup();
        if let [number] = numbers[..] {
            return Some(number);
        }
        let members = numbers.into_iter().flat_map(|number| self.members(number)).collect();
        self.of_all(&members)
    }

    fn members(&self, number: u32) -> Vec<u32> {
        let known = self.0.borrow();
        let set = known.sets.iter().find(|(_, known)| **known == number);
        set.map_or_else(|| vec![number], |(members, _)| members.clone())
    }

    /// Every rule with its number.
    pub fn rules(&self) -> Vec<(u32, Rule)> {
        self.0.borrow().rules.clone()
    }

    /// Every set of rules that apply together, with its number.
    pub fn sets(&self) -> Vec<(u32, Vec<u32>)> {
        self.0.borrow().sets.iter().map(|(members, number)| (*number, members.clone())).collect()
    }
}

#[cfg(test)]
impl RuleNumbers {
    /// The numbers after so many rules.
    pub fn after(rules: u32) -> Self {
        let numbers = Self::default();
        numbers.0.borrow_mut().last = rules;
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_one_number_however_it_is_formed() {
        let numbers = RuleNumbers::after(3);
        let both = numbers.of_all(&BTreeSet::from([1, 2])).unwrap();
        assert!(both > 3, "no rule has this number");
        assert_eq!(numbers.of_union([2, 1, 2]), Some(both));
        let all = numbers.of_union([both, 3]).unwrap();
        assert_eq!(numbers.of_all(&BTreeSet::from([1, 2, 3])), Some(all));
        assert_eq!(numbers.of_all(&BTreeSet::from([2])), Some(2), "a rule alone needs no other number");
        assert_eq!(numbers.of_union([]), None);
    }

    #[test]
    fn no_rule_and_no_set_gets_the_number_of_an_earlier_rule() {
        let numbers = RuleNumbers::other_than(BTreeSet::from([1, 3, 4])).unwrap();
        let sets = [[5, 6], [6, 7], [7, 8]].map(|members| numbers.of_all(&BTreeSet::from(members)).unwrap());
        assert_eq!(sets, [2, 5, 6]);
        let all = (1..=u32::try_from(MOST_EARLIER).unwrap()).collect::<BTreeSet<u32>>();
        assert!(RuleNumbers::other_than(all.clone()).is_some());
        assert!(RuleNumbers::other_than(all.into_iter().chain([HOLDFAST_ONLY - 1]).collect()).is_none());
    }

    #[test]
    fn without_a_number_left_only_holdfast_is_allowed() {
        let numbers = RuleNumbers::after(HOLDFAST_ONLY - 1);
        assert_eq!(numbers.of_all(&BTreeSet::from([1, 2])), Some(HOLDFAST_ONLY));
        assert_eq!(numbers.of_all(&BTreeSet::from([1, 3])), Some(HOLDFAST_ONLY));
        assert!(numbers.sets().is_empty(), "the daemon adds no actors to it");
        assert_eq!(numbers.of_union([1, HOLDFAST_ONLY]), Some(HOLDFAST_ONLY));
        assert!(numbers.are_many());
    }
}
