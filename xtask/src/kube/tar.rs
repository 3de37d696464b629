//! The archive format of images' layers (tar, format "ustar").
//!
//! In: paths with contents and modes. Out: the bytes. Parent folders are added by themselves. Everything belongs
//! to root and has the same date, so that equal inputs give equal archives.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

/// Size of a header, and what every entry is padded to.
const BLOCK: usize = 512;
/// Longest path that fits the header's first field, with its end.
const NAME: usize = 100;
const FOLDER: u8 = b'5';
const FILE: u8 = b'0';

/// An archive that is being put together. Entries are sorted, so folders precede what is in them.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    entries: BTreeMap<String, (u8, u32, Vec<u8>)>,
}

impl Archive {
    /// Adds a file with permission bits.
    pub(crate) fn file(&mut self, path: &str, mode: u32, content: Vec<u8>) -> Result<()> {
        let path = path.trim_matches('/');
        ensure!(!path.is_empty() && path.len() < NAME, "{path:?} is no path of at most {} bytes", NAME - 1);
        for (end, _) in path.match_indices('/') {
            self.entries.entry(format!("{}/", &path[..end])).or_insert((FOLDER, 0o755, Vec::new()));
        }
        self.entries.insert(path.to_owned(), (FILE, mode & 0o7777, content));
        Ok(())
    }

    /// The archive's bytes.
    pub(crate) fn finish(self) -> Vec<u8> {
        let mut out = Vec::new();
        for (path, (kind, mode, content)) in &self.entries {
            out.extend_from_slice(&header(path, *kind, *mode, content.len()));
            out.extend_from_slice(content);
            out.resize(out.len().next_multiple_of(BLOCK), 0);
        }
        // Two empty blocks end an archive.
        out.resize(out.len() + 2 * BLOCK, 0);
        out
    }
}

fn header(path: &str, kind: u8, mode: u32, size: usize) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
    put(0, path.as_bytes());
    put(100, format!("{mode:07o}").as_bytes());
    // Owner and group, both root.
    put(108, b"0000000");
    put(116, b"0000000");
    put(124, format!("{size:011o}").as_bytes());
    // The date.
    put(136, b"00000000000");
    // The sum is computed with spaces in its own field.
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::run::output;

    #[test]
    fn the_program_tar_reads_what_was_put_in() {
        let folder = tempfile::tempdir().unwrap();
        let mut archive = Archive::default();
        archive.file("/usr/bin/program", 0o755, vec![7; BLOCK + 1]).unwrap();
        archive.file("etc/empty", 0o640, Vec::new()).unwrap();
        let path = folder.path().join("archive.tar");
        std::fs::write(&path, archive.finish()).unwrap();
        let list =
            output(Command::new("tar").args(["--list", "--verbose", "--numeric-owner", "-f"]).arg(&path))
                .unwrap();
        let rows: Vec<(&str, &str, &str)> = list
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .map(|words| (words[0], words[2], words[5]))
            .collect();
        assert_eq!(
            rows,
            [
                ("drwxr-xr-x", "0", "etc/"),
                ("-rw-r-----", "0", "etc/empty"),
                ("drwxr-xr-x", "0", "usr/"),
                ("drwxr-xr-x", "0", "usr/bin/"),
                ("-rwxr-xr-x", "513", "usr/bin/program"),
            ]
        );
    }

    #[test]
    fn a_path_that_does_not_fit_is_refused() {
        let mut archive = Archive::default();
        assert!(archive.file(&"a".repeat(NAME - 1), 0o644, Vec::new()).is_ok());
        assert!(archive.file(&"a".repeat(NAME), 0o644, Vec::new()).is_err());
        assert!(archive.file("/", 0o644, Vec::new()).is_err());
    }
}
