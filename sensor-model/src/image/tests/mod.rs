mod archive;
mod baselines;
mod index;
mod layers;
mod manifests;
mod properties;
mod refused;

use super::{ImageEntry, ImageLimits, ImageTree, LayerError, LayerReader};
use archive::Archive;
use std::collections::BTreeMap;

/// The tree of layers, each read in pieces of `piece` bytes.
fn tree_in_pieces(layers: &[Archive], piece: usize, limits: ImageLimits) -> Result<ImageTree, LayerError> {
    let mut tree = ImageTree::new(limits);
    for layer in layers {
        let mut reader = LayerReader::begin(&mut tree);
        for bytes in layer.bytes().chunks(piece) {
            reader.push(bytes, &mut tree)?;
        }
        reader.finish()?;
    }
    Ok(tree)
}

fn tree(layers: &[Archive]) -> ImageTree {
    tree_in_pieces(layers, 8192, ImageLimits::default()).unwrap()
}

/// All entries by their paths.
fn entries(tree: &ImageTree) -> BTreeMap<String, ImageEntry> {
    let mut found = BTreeMap::new();
    tree.each(|path, entry| {
        found.insert(String::from_utf8_lossy(path).into_owned(), entry.clone());
        Ok::<(), ()>(())
    })
    .unwrap();
    found
}

/// The paths of a tree besides the root, with the numbers of their layers.
fn paths(layers: &[Archive]) -> Vec<(String, u16)> {
    let mut found = entries(&tree(layers));
    found.remove("/");
    found.into_iter().map(|(path, entry)| (path, entry.layer)).collect()
}

fn entry(layers: &[Archive], path: &str) -> ImageEntry {
    entries(&tree(layers)).remove(path).unwrap()
}

/// The message of a layer that is refused.
fn refused(layer: Archive) -> String {
    let layers = [layer];
    let in_one = tree_in_pieces(&layers, 1 << 20, ImageLimits::default()).unwrap_err();
    let in_bytes = tree_in_pieces(&layers, 7, ImageLimits::default()).unwrap_err();
    assert_eq!(
        std::mem::discriminant(&in_one),
        std::mem::discriminant(&in_bytes),
        "the pieces do not matter: {in_one} {in_bytes}"
    );
    in_one.to_string()
}
