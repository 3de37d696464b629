//! Sealed trees: what the daemon need not watch, because the kernel proves it.
//!
//! In: what the image expects at paths, one after the other. Out: whether a path is in a tree that the kernel proves now and is as the image has it;
//! and one expectation for each such tree. A content is compared once, and its pair of a seal and a SHA-256 is kept in the state directory.

use super::scan_files::TreeFiles;
use crate::observation::Observer;
use sensor_model::{
    compare::{Ids, compare},
    expectation::{Expectation, ExpectationSource, Expected, ImageLayer, SealedTree, Thing, TreeExpectation},
    observation::{FileType, Observation},
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// The sealed trees of a host, and what was found in them.
#[derive(Debug)]
pub(super) struct SealedTrees<'a> {
    observer: &'a Observer,
    files: TreeFiles,
    found: BTreeMap<PathBuf, Found>,
}

/// A tree with entries that are as the image has them.
#[derive(Debug)]
struct Found {
    sealed: SealedTree,
    entries: u32,
    /// The image of the first entry.
    image: ExpectationSource,
}

impl<'a> SealedTrees<'a> {
    /// The trees of a host, if this observer finds them.
    pub(super) fn of(observer: &'a Observer, state: &Path) -> Option<Self> {
        observer.finds_trees().then(|| Self { observer, files: TreeFiles::of(state), found: BTreeMap::new() })
    }

    /// Whether a sealed tree has the path as the image expects it. Then the path needs no watch, and its tree has one entry more.
    pub(super) fn covers(&mut self, path: &Path, expectation: &Expectation) -> bool {
        let Some((top, sealed)) = self.observer.sealed_tree_of(path) else { return false };
        if self.found.get(&top).is_some_and(|known| known.sealed != sealed)
            || !self.is_as_expected(expectation)
        {
            return false;
        }
        let found = || Found { sealed, entries: 0, image: expectation.source.clone() };
        self.found.entry(top).or_insert_with(found).entries += 1;
        true
    }

    /// Whether a path is as the image has it, and stays so. A file is read if no pair of its seal is known yet.
    fn is_as_expected(&self, expectation: &Expectation) -> bool {
        let is_equal = |found: &Observation| compare(expectation, found, &Ids::default()).is_empty();
        let found = self.observer.observe(expectation).observation;
        let Observation::Object(object) = &found else { return false };
        if !is_equal(&found) {
            return false;
        }
        if object.file_type != FileType::Regular || object.sealed.is_some() {
            return true;
        }
        // It was read now, and has a pair from now on, if it is sealed and its content is the expected one.
        let again = self.observer.observe(expectation).observation;
        again.seal().is_some() && is_equal(&again)
    }

    /// An expectation for each tree. Keeps the pairs of what was read.
    pub(super) fn expectations(self) -> Vec<Expectation> {
        if let Some(contents) = self.observer.sealed()
            && !contents.take_new().is_empty()
            && let Err(error) = self.files.keep(&contents.used())
        {
            tracing::warn!(%error, "Cannot keep which files of sealed trees were compared; they are read again at the next start.");
        }
        let expectation = |(top, found): (PathBuf, Found)| Expectation {
            source: ImageLayer {
                layer: format!("sealed tree {}", top.display()).into(),
                image: found.image.origin().into(),
                strength: Some(found.sealed.by.into()),
            }
            .into(),
            thing: Thing::Tree { path: top.into() },
            expected: Expected::Tree(TreeExpectation { sealed: found.sealed, entries: found.entries }),
            ssh_keys: false,
            label: None,
        };
        self.found.into_iter().map(expectation).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::ScanFiles;
    use crate::observation::seals::tests::{on_sealed_root, with_contents};
    use sensor_model::{
        expectation::{Content, FileExpectation, Owner},
        strength::{SealKind, Strength},
    };
    use sha2::{Digest as _, Sha256};
    use std::fs;

    fn file(path: &str, content: &str) -> Expectation {
        let content = Content { size: content.len() as u64, sha256: Sha256::digest(content).into() };
        let expected = FileExpectation {
            content: Some(content),
            mode: 0o644,
            user: Owner::Undeclared,
            group: Owner::Undeclared,
            may_be_missing: false,
            keys: Box::default(),
            layout_free: false,
            xattrs: None,
        };
        let layer = ImageLayer { layer: "layer 1 of 1".into(), image: "sha256:1".into(), strength: None };
        Expectation {
            thing: Thing::file(path),
            expected: Expected::File(expected),
            ssh_keys: false,
            label: None,
            source: layer.into(),
        }
    }

    #[test]
    fn a_sealed_tree_covers_only_what_is_as_the_image_has_it() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("usr/bin")).unwrap();
        for name in ["a", "b", "c"] {
            let path = root.path().join("usr/bin").join(name);
            fs::write(&path, name).unwrap();
            let mode = if name == "c" { 0o755 } else { 0o644 };
            fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        }
        let observer = on_sealed_root(root.path());
        let mut trees = SealedTrees::of(&observer, root.path()).unwrap();
        let mut covers = |path: &str, content: &str| trees.covers(Path::new(path), &file(path, content));
        assert!(covers("/usr/bin/a", "a"));
        assert!(!covers("/usr/bin/b", "other"), "another content");
        assert!(!covers("/usr/bin/c", "c"), "another mode");
        assert!(!covers("/usr/bin/d", "d"), "nothing is there");
        let made = trees.expectations();
        let [Expectation { thing: Thing::Tree { path }, expected: Expected::Tree(tree), source, .. }] =
            &made[..]
        else {
            panic!("{made:?}")
        };
        assert_eq!((&**path, tree.entries), (Path::new("/usr"), 1));
        assert_eq!((source.strength(), source.origin()), (Some(Strength::Sealed), "sha256:1"));
        let known = TreeFiles::of(root.path()).sealed();
        assert_eq!(known.take_new().len() + known.used().len(), 0, "nothing was read with it yet");
        let kept = fs::read(root.path().join("scan/sealed-trees")).unwrap();
        assert_eq!(kept.len(), 2 * 32, "a pair of each file with the expected content, whatever its mode");
    }

    #[test]
    fn a_command_does_not_read_a_file_again_that_was_read_for_its_sealed_tree() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("usr/bin")).unwrap();
        fs::write(root.path().join("usr/bin/a"), "a").unwrap();
        let expected = file("/usr/bin/a", "a");
        let seal = |observer: &Observer| observer.observe(&expected).observation.seal();
        let command = || with_contents(root.path(), ScanFiles::of(root.path()).sealed_with_trees());
        assert_eq!(seal(&command()), None, "no process has read it");
        let observer = on_sealed_root(root.path());
        let mut trees = SealedTrees::of(&observer, root.path()).unwrap();
        assert!(trees.covers(Path::new("/usr/bin/a"), &expected));
        trees.expectations();
        assert_eq!(seal(&command()), Some(SealKind::FsVerity));
    }

    #[test]
    fn without_a_sealed_mount_no_tree_covers_anything() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("usr/bin")).unwrap();
        fs::write(root.path().join("usr/bin/a"), "a").unwrap();
        let observer = Observer::new(root.path()).unwrap().with_trees();
        let mut trees = SealedTrees::of(&observer, root.path()).unwrap();
        assert!(!trees.covers(Path::new("/usr/bin/a"), &file("/usr/bin/a", "a")));
        assert!(trees.expectations().is_empty());
    }
}
