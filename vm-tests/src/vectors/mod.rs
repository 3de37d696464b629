//! The vector table: the ways in which a managed thing can change, each with the code that makes the change.
//!
//! In: the id of a vector and the path of a managed thing. Out: the change, made by the process that performs it;
//! and for each vector what Holdfast must report. Numbers are those of [`NUMBERS`]; letters distinguish variants. This
//! module never reads Holdfast's output: the scenario does.

mod actors;
mod attributes;
mod beneath;
pub(crate) mod content;
mod hooks;
mod ioctls;
mod mapped;
mod mounts;
mod names;
mod narrow;
mod numbers;
pub(crate) mod prepare;
mod raw;
mod rest;
mod uring;
mod vector;

pub use hooks::operations_of;
pub use numbers::NUMBERS;
pub(crate) use vector::declared_content;
pub use vector::{Does, ExpectedActor, ExpectedReport, REFUSED, StartState, Vector};

/// The whole table, in the order of its families.
pub fn all() -> impl Iterator<Item = &'static Vector> {
    [
        content::VECTORS,
        ioctls::VECTORS,
        uring::VECTORS,
        mapped::VECTORS,
        names::VECTORS,
        attributes::VECTORS,
        mounts::VECTORS,
        beneath::VECTORS,
        actors::VECTORS,
        rest::VECTORS,
    ]
    .into_iter()
    .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_vectors_share_an_id() {
        let mut seen = BTreeSet::new();
        for vector in all() {
            assert!(seen.insert(vector.id), "{} is there twice", vector.id);
        }
    }

    #[test]
    fn only_a_vector_with_hooks_names_an_actor() {
        for vector in all().filter(|vector| vector.is_performed()) {
            let swept = vector.hooks.is_empty();
            let has_no_actor = vector.who == ExpectedActor::NoActor;
            assert_eq!(swept, has_no_actor, "{}: hooks {:?}, who {:?}", vector.id, vector.hooks, vector.who);
        }
    }
}
