//! All managed things of the detection protocol, by their ids.
//!
//! In: an id. Out: the state of its thing. The daemon numbers things from 0 on, so a vector needs less memory than a tree.

use super::thing::ThingState;

/// Things by id. Equality does not depend on the order of insertions and removals.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Things(Vec<Option<ThingState>>);

fn index(id: u32) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}

impl Things {
    /// Allocates room for exactly this number of further things.
    pub(super) fn reserve(&mut self, things: usize) {
        self.0.reserve_exact(things);
    }

    pub(super) fn get(&self, id: u32) -> Option<&ThingState> {
        self.0.get(index(id))?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut ThingState> {
        self.0.get_mut(index(id))?.as_mut()
    }

    pub(super) fn insert(&mut self, id: u32, thing: ThingState) {
        let index = index(id);
        if index >= self.0.len() {
            self.0.resize(index + 1, None);
        }
        self.0[index] = Some(thing);
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<ThingState> {
        let thing = self.0.get_mut(index(id))?.take();
        while self.0.last().is_some_and(Option::is_none) {
            self.0.pop();
        }
        thing
    }

    /// Each thing with its id, by id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &ThingState)> {
        (0..).zip(&self.0).filter_map(|(id, thing)| Some((id, thing.as_ref()?)))
    }

    #[cfg(test)]
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut ThingState> {
        self.0.iter_mut().flatten()
    }
}
