//! Targets for the layers, documents and indexes of OS images.
//!
//! In: any bytes. Out: nothing; a target panics if a property does not hold.

use crate::{
    image::{
        Baseline, BaselinePath, ImageLimits, ImageTree, LayerReader, ManifestDocument, SlotTable, TRAILER,
        Trailer, decode_record, encode_record, is_digest, parse_config, parse_document,
    },
    observation::FileType,
};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, path::Path};

/// The size of a block of an archive.
const BLOCK: usize = 512;

/// An uncompressed layer: every path is below the root and once in the tree, every file has a digest, and the pieces in which the
/// bytes come do not matter. Headers get their right checksums first, since a changed byte seldom makes one.
pub fn image_layer(data: &[u8]) {
    let mut bytes = data.to_vec();
    for block in bytes.as_chunks_mut::<BLOCK>().0 {
        if &block[257..262] == b"ustar" {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
    let limits = ImageLimits { bytes: 1 << 20, ..ImageLimits::default() };
    let read = |piece: usize| {
        let mut tree = ImageTree::new(limits);
        let mut layer = LayerReader::begin(&mut tree);
        for bytes in bytes.chunks(piece) {
            layer.push(bytes, &mut tree).ok()?;
        }
        layer.finish().ok()?;
        let mut found = Vec::new();
        let walked = tree.each(|path, entry| {
            found.push((path.to_vec(), entry.clone()));
            Ok::<(), ()>(())
        });
        assert_eq!(walked, Ok(found.len() as u64));
        Some(found)
    };
    let found = read(BLOCK);
    assert_eq!(found, read(37), "the pieces do not matter");
    let mut paths: Vec<Vec<u8>> = Vec::new();
    for (path, entry) in found.unwrap_or_default() {
        assert!(path.starts_with(b"/") && path.len() <= limits.path && !path.contains(&0));
        let mut names = path.split(|byte| *byte == b'/').skip(1);
        assert!(
            path == b"/"
                || names.all(|name| !matches!(name, b"" | b"." | b"..") && name.len() <= limits.name)
        );
        assert_eq!(entry.file_type == FileType::Regular, entry.sha256.is_some(), "{path:?}");
        assert_eq!(entry.file_type == FileType::Symlink, entry.target.is_some(), "{path:?}");
        let mut record = Vec::new();
        encode_record(&path, &entry, &mut record);
        assert_eq!(decode_record(&record[4..]), Some((path.as_slice(), entry)));
        paths.push(path);
    }
    let count = paths.len();
    paths.sort();
    paths.dedup();
    assert_eq!(count, paths.len(), "each path is once in the tree");
}

/// Parts of an index file: an accepted trailer is that of the file's length, and an accepted record is written again as it was.
pub fn image_index(data: &[u8]) {
    if let Some((path, entry)) = decode_record(data) {
        let mut again = Vec::new();
        encode_record(path, &entry, &mut again);
        assert_eq!(decode_record(&again[4..]), Some((path, entry)));
    }
    if let Some(bytes) = data.first_chunk::<TRAILER>()
        && let Ok(trailer) = Trailer::decode(bytes, data.len() as u64)
    {
        assert!(trailer.records <= data.len() as u64 && trailer.meta <= data.len() as u64);
    }
    if let Ok(table) = SlotTable::of_bytes(data) {
        let hash = data.iter().fold(0, |hash: u64, byte| hash.rotate_left(8) ^ u64::from(*byte));
        assert!(table.candidates(hash).count() as u64 <= table.slots());
    }
}

/// A document of a layout: every digest of an accepted document is one. A baseline: each entry gives its path back.
pub fn image_document(data: &[u8]) {
    if let Ok(entries) = Baseline::parse(data).and_then(|baseline| baseline.entries()) {
        for (path, entry) in entries {
            let path = Path::new(OsStr::from_bytes(&path));
            let again = Baseline::new(String::new(), vec![BaselinePath::of(path, &entry)]).entries();
            assert_eq!(again, Ok(vec![(path.as_os_str().as_bytes().to_vec(), entry)]));
        }
    }
    let digests = match parse_document(data) {
        Ok(ManifestDocument::Index(manifests)) => manifests.into_iter().map(|found| found.digest).collect(),
        Ok(ManifestDocument::Manifest(manifest)) => {
            let layers = manifest.layers.into_iter().map(|(layer, _)| layer.digest);
            layers.chain([manifest.config.digest]).collect()
        }
        Err(_) => Vec::new(),
    };
    assert!(digests.iter().all(|digest| is_digest(digest)));
    for layers in 0..3 {
        if let Ok(config) = parse_config(data, layers) {
            assert!(
                config.layers.len() == layers && config.layers.iter().all(|(digest, _)| is_digest(digest))
            );
        }
    }
}
