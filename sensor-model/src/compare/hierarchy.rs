//! What is mounted over a hierarchy of the OS.
//!
//! In: the expected extensions, and what is mounted over the hierarchy. Out: one difference for each mount that should not be there, and one
//! if expected extensions are not merged.

use crate::{
    difference::{Difference, DifferenceKind},
    expectation::HierarchyExpectation,
    os::hierarchy::{Cover, list},
};
use std::path::Path;

pub(super) fn compare(path: &Path, declared: &HierarchyExpectation, covers: &[Cover]) -> Vec<Difference> {
    let expected = if declared.extensions.is_empty() {
        "nothing over it".to_owned()
    } else {
        format!("extensions {}", list(&declared.extensions))
    };
    let is_expected = |cover: &Cover| match cover {
        Cover::Extensions { names, writable: false, .. } => {
            !names.is_empty() && is_same_set(names, &declared.extensions)
        }
        _ => false,
    };
    let mut is_covered = false;
    let mut found: Vec<Difference> = covers
        .iter()
        // A second mount shows the list of the first one and hides its files, so only one is expected.
        .filter(|cover| !is_expected(cover) || std::mem::replace(&mut is_covered, true))
        .map(|cover| Difference {
            kind: DifferenceKind::MountOver,
            expected: expected.clone(),
            found: cover.summary(),
            text: cover.text(path),
        })
        .collect();
    let is_merged = covers.iter().any(|cover| matches!(cover, Cover::Extensions { .. }));
    if !declared.extensions.is_empty() && !is_merged {
        let text =
            format!("extensions are not merged over {}: {}", path.display(), list(&declared.extensions));
        found.push(Difference {
            kind: DifferenceKind::Missing,
            expected,
            found: "no extension".to_owned(),
            text,
        });
    }
    found
}

fn is_same_set(names: &[String], expected: &[String]) -> bool {
    let sorted = |names: &[String]| {
        let mut names = names.to_vec();
        names.sort();
        names
    };
    sorted(names) == sorted(expected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::hierarchy::ExtensionClass;

    fn differences(declared: &[&str], covers: &[Cover]) -> Vec<(DifferenceKind, String)> {
        let extensions = declared.iter().map(|name| (*name).to_owned()).collect();
        let found = compare(Path::new("/usr"), &HierarchyExpectation { extensions }, covers);
        found.into_iter().map(|difference| (difference.kind, difference.text)).collect()
    }

    fn merged(names: &[&str], writable: bool) -> Cover {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Cover::Extensions { class: ExtensionClass::System, names, writable }
    }

    #[test]
    fn each_mount_is_one_difference() {
        assert_eq!(differences(&[], &[]), []);
        let both = [merged(&["a"], false), Cover::Overlay { writable: true }];
        let found = differences(&[], &both);
        assert_eq!(found.len(), 2);
        assert_eq!(
            found[0],
            (DifferenceKind::MountOver, "system extensions are merged over /usr: \"a\"".to_owned())
        );
    }

    #[test]
    fn the_expected_extensions_are_no_difference_and_others_are() {
        assert_eq!(differences(&["a", "b"], &[merged(&["b", "a"], false)]), []);
        assert_eq!(differences(&["a"], &[merged(&["a", "b"], false)]).len(), 1);
        let twice = [merged(&["a"], false), merged(&["a"], false)];
        assert_eq!(differences(&["a"], &twice).len(), 1, "one that only has the list of the other");
        assert_eq!(differences(&["a"], &[merged(&["a"], true)]).len(), 1, "a writable merge");
        assert_eq!(differences(&[], &[merged(&[], false)]).len(), 1, "a merge without a list");
    }

    #[test]
    fn expected_extensions_that_are_not_merged_are_missing() {
        let text = "extensions are not merged over /usr: \"a\"".to_owned();
        assert_eq!(differences(&["a"], &[]), [(DifferenceKind::Missing, text)]);
    }
}
