//! All managed things of the detection protocol, by their ids.
//!
//! The daemon numbers things from 0 on, so that a place for each costs less than a tree's nodes would.

use super::thing::ThingState;

/// Things by id. Two that hold the same things are equal, however they came to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Things(Vec<Option<ThingState>>);

fn place(id: u32) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}

impl Things {
    /// Room for so many more things, and no more than that.
    pub(super) fn reserve(&mut self, things: usize) {
        self.0.reserve_exact(things);
    }

    pub(super) fn get(&self, id: u32) -> Option<&ThingState> {
        self.0.get(place(id))?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut ThingState> {
        self.0.get_mut(place(id))?.as_mut()
    }

    pub(super) fn insert(&mut self, id: u32, thing: ThingState) {
        let place = place(id);
        if place >= self.0.len() {
            self.0.resize(place + 1, None);
        }
        self.0[place] = Some(thing);
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<ThingState> {
        let thing = self.0.get_mut(place(id))?.take();
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
