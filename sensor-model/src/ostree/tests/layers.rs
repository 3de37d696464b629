//! Which layer put something at a path.

use crate::ostree::{Checksum, DirectoryTree, LayerPaths, SubDirectory, TooManyPaths, TreeFile};

/// A directory with files, each with its object, and with directories, each with its owner and mode.
fn tree(files: &[(&str, u8)], directories: &[(&str, u8)]) -> DirectoryTree {
    let file = |(name, object): &(&str, u8)| TreeFile { name: (*name).to_owned(), file: [*object; 32] };
    let directory = |(name, meta): &(&str, u8)| SubDirectory {
        name: (*name).to_owned(),
        tree: Checksum::default(),
        meta: [*meta; 32],
    };
    DirectoryTree {
        files: files.iter().map(file).collect(),
        directories: directories.iter().map(directory).collect(),
    }
}

/// The layer and the object at a path.
fn at(paths: &LayerPaths, path: &str) -> Option<(u16, u8)> {
    paths.at(path.as_bytes()).map(|placed| (placed.layer, placed.object[0]))
}

/// The base has `/usr/a`, `/usr/b` and `/usr/d/f`.
fn base() -> LayerPaths {
    let mut paths = LayerPaths::default();
    paths.add(b"/", &tree(&[], &[("usr", 1)]), 0).unwrap();
    paths.add(b"/usr/", &tree(&[("a", 10), ("b", 11)], &[("d", 2)]), 0).unwrap();
    paths.add(b"/usr/d/", &tree(&[("f", 12)], &[]), 0).unwrap();
    paths
}

#[test]
fn the_last_layer_with_a_file_put_it_there() {
    let mut paths = base();
    paths.add(b"/usr/", &tree(&[("a", 20)], &[]), 1).unwrap();
    paths.add(b"/usr/", &tree(&[("a", 20), ("c", 30)], &[]), 2).unwrap();
    let found = ["/usr/a", "/usr/b", "/usr/c", "/usr/d/f"].map(|path| at(&paths, path));
    assert_eq!(found, [Some((2, 20)), Some((0, 11)), Some((2, 30)), Some((0, 12))]);
    assert_eq!(at(&paths, "/usr/none"), None);
}

#[test]
fn a_directory_keeps_the_owner_and_mode_of_the_layer_that_made_it() {
    let mut paths = base();
    paths.add(b"/usr/", &tree(&[], &[("d", 9), ("e", 9)]), 1).unwrap();
    assert_eq!((at(&paths, "/usr/d"), at(&paths, "/usr/e")), (Some((0, 2)), Some((1, 9))));
}

#[test]
fn a_whiteout_removes_what_lower_layers_have_and_leaves_the_layers_own() {
    let mut paths = base();
    paths.add(b"/usr/", &tree(&[(".wh.a", 0), (".wh.d", 0)], &[]), 1).unwrap();
    assert_eq!(["/usr/a", "/usr/d", "/usr/d/f", "/usr/.wh.a"].map(|path| at(&paths, path)), [None; 4]);
    assert_eq!(at(&paths, "/usr/b"), Some((0, 11)));
    // Made anew, a directory is that of its new layer.
    paths.add(b"/usr/", &tree(&[(".wh.b", 0), ("b", 30)], &[("d", 2)]), 2).unwrap();
    assert_eq!((at(&paths, "/usr/b"), at(&paths, "/usr/d")), (Some((2, 30)), Some((2, 2))));
}

#[test]
fn an_opaque_directory_has_nothing_of_lower_layers() {
    let mut paths = base();
    paths.add(b"/usr/", &tree(&[("d.conf", 13)], &[]), 0).unwrap();
    paths.add(b"/usr/d/", &tree(&[(".wh..wh..opq", 0), ("g", 20)], &[]), 1).unwrap();
    let found = ["/usr/d", "/usr/d/f", "/usr/d/g", "/usr/d.conf"].map(|path| at(&paths, path));
    assert_eq!(found, [Some((0, 2)), None, Some((1, 20)), Some((0, 13))]);
}

#[test]
fn a_file_in_the_place_of_a_directory_removes_what_was_in_it() {
    let mut paths = base();
    paths.add(b"/usr/", &tree(&[("d", 20)], &[("a", 21)]), 1).unwrap();
    let found = ["/usr/d", "/usr/d/f", "/usr/a"].map(|path| at(&paths, path));
    assert_eq!(found, [Some((1, 20)), None, Some((1, 21))]);
    assert!(paths.at(b"/usr/a").unwrap().is_directory);
}

#[test]
fn a_file_of_the_base_is_of_the_first_layer_that_lists_it() {
    let mut paths = LayerPaths::default();
    for (object, layer) in [(11, 1), (12, 2), (11, 2)] {
        paths.add_file([object; 32], layer).unwrap();
    }
    // A name in the base that looks like a whiteout is a file.
    paths
        .add_base(b"/usr/", &tree(&[(".wh.a", 10), ("a", 10), ("b", 11), ("c", 12)], &[("d", 11)]), 0)
        .unwrap();
    let found = [".wh.a", "a", "b", "c", "d"].map(|name| at(&paths, &format!("/usr/{name}")));
    assert_eq!(found, [Some((0, 10)), Some((0, 10)), Some((1, 11)), Some((2, 12)), Some((0, 11))]);
}

#[test]
fn layers_with_endless_paths_are_refused() {
    let mut paths = LayerPaths::default();
    let long = vec![b'x'; 1 << 20];
    let one = tree(&[("a", 1)], &[]);
    let added = (0..300).try_for_each(|_| paths.add(&long, &one, 0));
    assert_eq!(added, Err(TooManyPaths));
}
