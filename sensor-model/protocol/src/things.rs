//! All managed things of the detection protocol, by their numbers.
//!
//! In: the number of a thing. Out: its state. The daemon numbers things from 0 on, so a vector needs less memory than a tree.

use crate::thing::ThingState;

/// The number of a managed thing: the index of its expectation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThingId(pub u32);

impl ThingId {
    /// The number as an index.
    pub fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// Things by number. Equality does not depend on the order of insertions and removals.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Things(Vec<Option<ThingState>>);

impl Things {
    /// Allocates room for exactly this number of further things.
    pub(crate) fn reserve(&mut self, things: usize) {
        self.0.reserve_exact(things);
    }

    pub(crate) fn get(&self, thing: ThingId) -> Option<&ThingState> {
        self.0.get(thing.index())?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, thing: ThingId) -> Option<&mut ThingState> {
        self.0.get_mut(thing.index())?.as_mut()
    }

    pub(crate) fn insert(&mut self, thing: ThingId, state: ThingState) {
        let index = thing.index();
        if index >= self.0.len() {
            self.0.resize(index + 1, None);
        }
        self.0[index] = Some(state);
    }

    pub(crate) fn remove(&mut self, thing: ThingId) -> Option<ThingState> {
        let state = self.0.get_mut(thing.index())?.take();
        while self.0.last().is_some_and(Option::is_none) {
            self.0.pop();
        }
        state
    }

    /// Each thing with its number, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ThingId, &ThingState)> {
        (0..).map(ThingId).zip(&self.0).filter_map(|(thing, state)| Some((thing, state.as_ref()?)))
    }

    #[cfg(test)]
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut ThingState> {
        self.0.iter_mut().flatten()
    }
}
