//! `/var/lib/dpkg/diversions`: three lines for each: the path, where the files of other packages go, and the package whose files keep
//! the path (`:` for an admin's diversion: no package's do).

use std::collections::BTreeMap;

/// The diversions of a host.
#[derive(Debug, Default)]
pub struct Diversions(BTreeMap<Vec<u8>, (Vec<u8>, Vec<u8>)>);

impl Diversions {
    /// Reads them.
    pub fn of(text: &[u8]) -> Self {
        let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
        let (triples, _) = lines.as_chunks::<3>();
        let is_path = |path: &[u8]| path.starts_with(b"/");
        let triples = triples.iter().filter(|[from, to, _]| is_path(from) && is_path(to));
        Self(triples.map(|[from, to, by]| (from.to_vec(), (to.to_vec(), by.to_vec()))).collect())
    }

    /// Where a package's file is.
    pub fn place<'a>(&'a self, path: &'a [u8], package: &str) -> &'a [u8] {
        match self.0.get(path) {
            Some((to, by)) if by != package.as_bytes() => to,
            _ => path,
        }
    }
}
