//! PAX records.
//!
//! In: the content of a header with PAX records. Out: which of them matter, or what readers would read in two ways. A reader that
//! stops at a record that it cannot parse would lose those behind it.

use super::header::HeaderFault;

/// Which records a header has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one record")]
pub(super) struct Facts {
    pub(super) path: bool,
    pub(super) link: bool,
    pub(super) size: bool,
    /// Those of a sparse file.
    pub(super) sparse: bool,
    /// The map of the sparse file is before its content.
    pub(super) sparse_lines: bool,
}

/// Checks all records.
pub(super) fn check(bytes: &[u8]) -> Result<Facts, HeaderFault> {
    let mut facts = Facts::default();
    let mut sparse = SparseRecords::default();
    for record in records(bytes) {
        let (key, value) = record?;
        let name = || String::from_utf8_lossy(key).into_owned();
        match key {
            b"path" | b"linkpath" | b"GNU.sparse.name" if value.is_empty() || value.contains(&0) => {
                return Err(HeaderFault::ambiguous(format!(
                    "the PAX record {:?} is empty or has a zero byte",
                    name()
                )));
            }
            b"path" => facts.path = true,
            b"GNU.sparse.name" => (facts.path, facts.sparse) = (true, true),
            b"linkpath" => facts.link = true,
            b"size" => facts.size = true,
            _ => sparse.note(key, value),
        }
        let is_number = matches!(
            key,
            b"size"
                | b"uid"
                | b"gid"
                | b"GNU.sparse.realsize"
                | b"GNU.sparse.size"
                | b"GNU.sparse.offset"
                | b"GNU.sparse.numbytes"
                | b"GNU.sparse.numblocks"
        );
        if is_number && !is_decimal(value) {
            return Err(HeaderFault::ambiguous(format!("the PAX record {:?} is not a number", name())));
        }
        facts.sparse |= key.starts_with(b"GNU.sparse.");
    }
    facts.sparse_lines = matches!(sparse.version, [Some(b"1"), Some(b"0")]);
    if facts.sparse && !sparse.are_of_one_form() {
        return Err(HeaderFault::ambiguous(
            "PAX records of a sparse file that are not all those of one form",
        ));
    }
    Ok(facts)
}

/// The records of a sparse file. Three forms exist. Of a part of one, or a mixture, each reader makes something else.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is one record")]
struct SparseRecords<'a> {
    /// Major and minor number of the form.
    version: [Option<&'a [u8]>; 2],
    has_realsize: bool,
    has_size: bool,
    /// The map in one record.
    has_map: bool,
    /// The map in two records for each part.
    has_offset: bool,
    has_numbytes: bool,
}

impl<'a> SparseRecords<'a> {
    fn note(&mut self, key: &[u8], value: &'a [u8]) {
        match key {
            b"GNU.sparse.major" => self.version[0] = Some(value),
            b"GNU.sparse.minor" => self.version[1] = Some(value),
            b"GNU.sparse.realsize" => self.has_realsize = true,
            b"GNU.sparse.size" => self.has_size = true,
            b"GNU.sparse.map" => self.has_map = true,
            b"GNU.sparse.offset" => self.has_offset = true,
            b"GNU.sparse.numbytes" => self.has_numbytes = true,
            _ => {}
        }
    }

    fn are_of_one_form(&self) -> bool {
        let has_pairs = self.has_offset || self.has_numbytes;
        let is_pairs = self.has_offset && self.has_numbytes && self.has_size && !self.has_map;
        let is_map = self.has_map && self.has_size && !has_pairs;
        match self.version {
            [Some(b"1"), Some(b"0")] => self.has_realsize && !self.has_map && !has_pairs,
            [Some(b"0"), Some(b"1")] => is_map,
            [Some(b"0"), Some(b"0")] => is_pairs,
            [None, None] => is_map || is_pairs,
            _ => false,
        }
    }
}

/// Digits alone. Other readers accept a sign or refuse it.
fn is_decimal(value: &[u8]) -> bool {
    (1..=19).contains(&value.len()) && value.iter().all(u8::is_ascii_digit)
}

/// All records, with their keys and values. Every byte belongs to a record.
pub(super) fn records(bytes: &[u8]) -> impl Iterator<Item = Result<(&[u8], &[u8]), HeaderFault>> {
    let mut left = bytes;
    std::iter::from_fn(move || {
        if left.is_empty() {
            return None;
        }
        let found = record(left);
        left = found.map_or(&[][..], |(_, rest)| rest);
        Some(
            found
                .map(|(record, _)| record)
                .ok_or_else(|| HeaderFault::ambiguous("a PAX record that is not valid")),
        )
    })
}

/// Key and value of a record, and what follows it.
type Split<'a> = ((&'a [u8], &'a [u8]), &'a [u8]);

/// `LENGTH KEY=VALUE\n`, in which the length counts all of it.
fn record(bytes: &[u8]) -> Option<Split<'_>> {
    let space = bytes.iter().take(20).position(|byte| *byte == b' ')?;
    let digits = bytes.get(..space).filter(|digits| is_decimal(digits))?;
    let length: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let record = bytes.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=').filter(|at| *at > 0)?;
    let key = &record[..equals];
    let is_text = std::str::from_utf8(key).is_ok() && !key.contains(&0);
    is_text.then_some(((key, &record[equals + 1..]), &bytes[length..]))
}
