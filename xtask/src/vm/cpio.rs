//! The archive that a kernel unpacks as its first root file system (cpio, format "newc").
//!
//! In: paths with contents and modes. Out: the bytes. It adds parent folders. Everything belongs to root and has the same date,
//! so that equal inputs give equal archives.

use std::collections::BTreeMap;

/// An archive under construction. Its entries are sorted, so a folder precedes its contents.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    entries: BTreeMap<String, (u32, Vec<u8>)>,
}

const FOLDER: u32 = 0o040_755;
const LINK: u32 = 0o120_777;
const FILE: u32 = 0o100_000;
const CONSOLE: u32 = 0o020_600;

impl Archive {
    fn add(&mut self, path: &str, mode: u32, content: Vec<u8>) {
        let path = path.trim_matches('/');
        for (end, _) in path.match_indices('/') {
            self.entries.entry(path[..end].to_owned()).or_insert((FOLDER, Vec::new()));
        }
        self.entries.insert(path.to_owned(), (mode, content));
    }

    /// Adds a file with permission bits.
    pub(crate) fn file(&mut self, path: &str, mode: u32, content: Vec<u8>) {
        self.add(path, FILE | (mode & 0o7777), content);
    }

    /// Adds a symbolic link.
    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.add(path, LINK, target.as_bytes().to_vec());
    }

    /// Adds an empty folder.
    pub(crate) fn folder(&mut self, path: &str) {
        self.add(path, FOLDER, Vec::new());
    }

    /// Adds the console device, which the kernel opens for the first process before anything is mounted.
    pub(crate) fn console(&mut self) {
        self.add("dev/console", CONSOLE, Vec::new());
    }

    /// The archive's bytes.
    pub(crate) fn finish(self) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, (path, (mode, content))) in (1..).zip(&self.entries) {
            write_entry(&mut out, number, path, *mode, content);
        }
        write_entry(&mut out, 0, "TRAILER!!!", 0, &[]);
        out
    }
}

fn write_entry(out: &mut Vec<u8>, number: usize, path: &str, mode: u32, content: &[u8]) {
    // /dev/console is character device 5:1.
    let device = if mode == CONSOLE { (5, 1) } else { (0, 0) };
    let fields =
        [number, mode as usize, 0, 0, 1, 0, content.len(), 0, 0, device.0, device.1, path.len() + 1, 0];
    out.extend_from_slice(b"070701");
    for field in fields {
        out.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    out.extend_from_slice(path.as_bytes());
    out.push(0);
    out.resize(out.len().next_multiple_of(4), 0);
    out.extend_from_slice(content);
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_come_before_children_and_everything_is_aligned() {
        let mut archive = Archive::default();
        archive.file("/a/b/file", 0o644, b"xyz".to_vec());
        archive.link("/a/link", "b/file");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        let names: Vec<usize> = ["a\0", "a/b\0", "a/b/file\0", "a/link\0", "TRAILER!!!\0"]
            .iter()
            .filter_map(|n| text.find(n))
            .collect();
        assert_eq!(names.len(), 5);
        assert!(names.is_sorted(), "out of order: {names:?}");
        assert_eq!(text.matches("070701").count(), 5);
    }
}
