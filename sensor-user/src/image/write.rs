//! An index file, written.
//!
//! In: the tree of an image, or the entries of packages. Out: the file, whole and synced, or the old one. The records pass through one buffer.

use super::{error::ImageError, images::Images};
use crate::sys::{self, CallError};
use nix::errno::Errno;
use sensor_model::image::{
    ImageEntry, ImageMeta, ImageTree, MAGIC, RECORD_LIMIT, SlotTable, TRAILER, Trailer, encode_record,
    path_hash,
};
use sha2::{Digest as _, Sha256};
use std::{
    ffi::OsStr,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

/// Bytes that are written at once.
const PIECE: usize = 256 << 10;

/// What was indexed.
#[derive(Debug)]
pub struct Indexed {
    /// The image.
    pub meta: ImageMeta,
    /// The index file.
    pub path: PathBuf,
    /// Bytes of the index file.
    pub size: u64,
}

/// What an index is made from.
pub(super) trait Entries {
    /// Calls `take` for each path, a directory before what is in it. Gives the number of paths.
    ///
    /// # Errors
    /// Those of `take`, which end the walk.
    fn each<E>(&self, take: impl FnMut(&[u8], &ImageEntry) -> Result<(), E>) -> Result<u64, E>;
}

impl Entries for ImageTree {
    fn each<E>(&self, take: impl FnMut(&[u8], &ImageEntry) -> Result<(), E>) -> Result<u64, E> {
        Self::each(self, take)
    }
}

/// Writes the index of an image or of packages.
pub(super) fn write(images: &Images, meta: ImageMeta, tree: &impl Entries) -> Result<Indexed, ImageError> {
    write_file(images, &Images::file_name(&meta), meta, tree)
}

/// The same, into the file with this name.
pub(super) fn write_file(
    images: &Images,
    name: &str,
    mut meta: ImageMeta,
    tree: &impl Entries,
) -> Result<Indexed, ImageError> {
    let directory = images.make()?;
    let path = images.path().join(name);
    let failed = |operation| {
        let path = path.clone();
        move |errno: Errno| CallError::new(&path, operation, errno)
    };
    let temporary = format!(".{name}.new");
    let remove = || sys::remove(&directory, OsStr::new(&temporary), false);
    match remove() {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(errno) => return Err(failed("remove the temporary file")(errno).into()),
    }
    let file = sys::create(&directory, OsStr::new(&temporary)).map_err(failed("make"))?;
    let written = fill(&file, &path, &mut meta, tree);
    let placed = written.and_then(|size| {
        sys::sync(&file).map_err(failed("sync"))?;
        sys::rename_over(&directory, OsStr::new(&temporary), OsStr::new(name)).map_err(failed("rename"))?;
        sys::sync(&directory).map_err(failed("sync the directory"))?;
        Ok(size)
    });
    let size = placed.inspect_err(|_| {
        // The error of the write matters more than that of the removal.
        let _ = remove();
    })?;
    Ok(Indexed { meta, path, size })
}

/// Writes the parts of the file; gives its size.
fn fill(file: &OwnedFd, path: &Path, meta: &mut ImageMeta, tree: &impl Entries) -> Result<u64, CallError> {
    let mut out =
        Output { file, path: path.to_owned(), buffer: Vec::new(), digest: Sha256::new(), written: 0 };
    out.buffer.extend_from_slice(MAGIC);
    let hasher = path_hash(&meta.digest);
    // Two passes over the tree: the table needs the number of entries.
    let entries = tree.each(|_, _| Ok::<(), CallError>(()))?;
    let mut slots = SlotTable::with_room(entries);
    tree.each(|path, entry| {
        let offset = out.position();
        if !slots.insert(hasher.hash(path), offset) {
            return Err(CallError::new(&out.path, "fill the table of the index", Errno::EFBIG));
        }
        let start = out.buffer.len();
        encode_record(path, entry, &mut out.buffer);
        let length = out.buffer.len() - start - 4;
        if length > RECORD_LIMIT {
            // No reader would take it, and so none of the index.
            let text = format!(
                "{}: its record has {length} bytes, and {RECORD_LIMIT} are the limit; it has too many extended attributes",
                String::from_utf8_lossy(path).escape_debug()
            );
            return Err(CallError::new(&out.path, "write a record", std::io::Error::other(text)));
        }
        out.flush(PIECE)
    })?;
    let records = out.position() - MAGIC.len() as u64;
    for byte in slots.bytes() {
        out.buffer.push(byte);
        out.flush(PIECE)?;
    }
    meta.entries = entries;
    let json = serde_json::to_vec(&meta).map_err(|error| {
        CallError::new(path, "write the description of the image", std::io::Error::other(error))
    })?;
    out.buffer.extend_from_slice(&json);
    let mut trailer =
        Trailer { records, slots: slots.slots(), meta: json.len() as u64, entries, sha256: [0; 32] };
    out.buffer.extend_from_slice(&trailer.head());
    out.flush(0)?;
    trailer.sha256 = std::mem::take(&mut out.digest).finalize().into();
    out.buffer.extend_from_slice(&trailer.sha256);
    out.flush(0)?;
    debug_assert!(out.written >= TRAILER as u64);
    Ok(out.written)
}

struct Output<'a> {
    file: &'a OwnedFd,
    path: PathBuf,
    buffer: Vec<u8>,
    digest: Sha256,
    written: u64,
}

impl Output<'_> {
    fn position(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Writes the buffer if it has more than so many bytes.
    fn flush(&mut self, from: usize) -> Result<(), CallError> {
        if self.buffer.len() <= from {
            return Ok(());
        }
        sys::write(self.file, &self.buffer).map_err(|errno| CallError::new(&self.path, "write", errno))?;
        self.digest.update(&self.buffer);
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::index_baseline;
    use serde_json::json;

    #[test]
    fn an_entry_that_no_reader_would_take_is_refused_by_its_path_and_leaves_no_index() {
        let state = tempfile::tempdir().unwrap();
        let images = Images::of(state.path());
        let index = |attributes: usize| {
            let xattrs: Vec<_> =
                (0..attributes).map(|number| (number.to_string(), "x".repeat(300))).collect();
            let path = json!({"path": "/opt/a", "type": "fifo", "mode": "0644", "uid": 0, "gid": 0, "xattrs": xattrs});
            let text =
                json!({"schema": "holdfast.baseline/v1", "taken": "2026-01-01T00:00:00Z", "paths": [path]});
            index_baseline(Path::new("baseline.json"), text.to_string().as_bytes(), &images)
        };
        let error = index(500).unwrap_err().to_string();
        assert!(error.contains("/opt/a: its record has"), "{error}");
        assert!(images.named("baseline").unwrap().is_none());
        index(400).unwrap();
        let opened = images.named("baseline").unwrap().unwrap();
        assert!(opened.find(b"/opt/a").unwrap().is_some());
    }
}
