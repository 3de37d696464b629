//! A tree that the kernel proves.
//!
//! In: what identified its contents when they were compared with an index, and what is there now. Out: one difference for each mount over a path
//! in it, or that it is not this tree.

use super::subject::ComparedThing;
use crate::{
    difference::{Difference, DifferenceKind},
    expectation::{SealedTree, TreeExpectation},
};
use std::path::PathBuf;

pub(super) fn compare(
    subject: &ComparedThing<'_>,
    expected: &TreeExpectation,
    sealed: Option<SealedTree>,
    over: &[PathBuf],
) -> Vec<Difference> {
    // Another tree may have any content, which nothing was compared with.
    if sealed != Some(expected.sealed) {
        return vec![subject.unreadable(
            "it is not the sealed tree any more whose entries were compared with the image; each entry is compared next",
        )];
    }
    let mount = |point: &PathBuf| Difference {
        kind: DifferenceKind::MountOver,
        expected: "nothing over it".to_owned(),
        found: format!("a mount at {}", point.display()),
        text: format!(
            "a mount at {} hides a part of the sealed tree {}",
            point.display(),
            subject.path.display()
        ),
    };
    over.iter().map(mount).collect()
}
