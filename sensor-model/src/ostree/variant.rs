//! Serialised values of `GVariant`, as far as ostree's objects need them.
//!
//! A container has the ends of its children of variable size at its own end, as little-endian numbers whose width follows from the
//! container's size. In a tuple they are in reverse order, and the last child has none. In an array each child has one. All children here
//! are aligned to one byte, unless a caller says otherwise.

use std::collections::BTreeMap;

/// Bytes of one number of a container with so many bytes.
fn width(size: usize) -> usize {
    match u64::try_from(size).unwrap_or(u64::MAX) {
        0..=0xff => 1,
        0x100..=0xffff => 2,
        0x1_0000..=0xffff_ffff => 4,
        _ => 8,
    }
}

/// The number at a place; `None` if the bytes end before.
fn number(bytes: &[u8], at: usize, width: usize) -> Option<usize> {
    let mut value = [0; 8];
    value[..width].copy_from_slice(bytes.get(at..at.checked_add(width)?)?);
    usize::try_from(u64::from_le_bytes(value)).ok()
}

/// The ends of the first `N` children of a tuple, and the end of its last child.
pub(super) fn ends<const N: usize>(bytes: &[u8]) -> Option<([usize; N], usize)> {
    let width = width(bytes.len());
    let last = bytes.len().checked_sub(N * width)?;
    let mut found = [0; N];
    let mut before = 0;
    for (child, end) in found.iter_mut().enumerate() {
        *end = number(bytes, bytes.len() - (child + 1) * width, width)?;
        if *end < before || *end > last {
            return None;
        }
        before = *end;
    }
    Some((found, last))
}

/// The children of an array whose children have a variable size.
pub(super) fn elements(bytes: &[u8]) -> Option<Vec<&[u8]>> {
    aligned_elements(bytes, 1)
}

/// The same, if each child begins at a multiple of so many bytes.
fn aligned_elements(bytes: &[u8], alignment: usize) -> Option<Vec<&[u8]>> {
    if bytes.is_empty() {
        return Some(Vec::new());
    }
    let width = width(bytes.len());
    let table = number(bytes, bytes.len().checked_sub(width)?, width)?;
    let length = bytes.len().checked_sub(table)?;
    if !length.is_multiple_of(width) {
        return None;
    }
    let mut found = Vec::with_capacity(length / width);
    let mut start = 0;
    for place in (table..bytes.len()).step_by(width) {
        let end = number(bytes, place, width)?;
        if end > table {
            return None;
        }
        found.push(bytes.get(start..end)?);
        start = end.checked_next_multiple_of(alignment)?;
    }
    Some(found)
}

/// The texts of a dictionary from texts to values of any type (`a{sv}`). Its other values are left out.
pub(super) fn texts(bytes: &[u8]) -> Option<BTreeMap<&str, &str>> {
    let values = dictionary(bytes)?.into_iter();
    let texts = values.filter_map(|(key, value)| Some((key, value.strip_suffix(b"\0s")?)));
    texts.map(|(key, value)| Some((key, text(value)?))).collect()
}

/// The values of a dictionary from texts to values of any type (`a{sv}`). A zero and the type follow each value.
pub(super) fn dictionary(bytes: &[u8]) -> Option<BTreeMap<&str, &[u8]>> {
    // A value of any type is aligned to eight bytes, so a pair of a key and a value is too.
    const ALIGNMENT: usize = 8;
    let mut found = BTreeMap::new();
    for pair in aligned_elements(bytes, ALIGNMENT)? {
        let ([key], last) = ends::<1>(pair)?;
        let value = pair.get(key.checked_next_multiple_of(ALIGNMENT)?..last)?;
        found.insert(text(pair.get(..key)?)?, value);
    }
    Some(found)
}

/// A text without the zero at its end.
pub(super) fn text(bytes: &[u8]) -> Option<&str> {
    let (end, text) = bytes.split_last()?;
    (*end == 0 && !text.contains(&0)).then(|| std::str::from_utf8(text).ok())?
}

/// Appends the ends of a container's children to its body.
pub(super) fn close(body: &mut Vec<u8>, ends: &[usize]) {
    if ends.is_empty() {
        return;
    }
    let fits = |bytes: &usize| width(body.len() + ends.len() * bytes) <= *bytes;
    let width = [1, 2, 4, 8].into_iter().find(fits).unwrap_or(8);
    for end in ends {
        body.extend_from_slice(&end.to_le_bytes()[..width]);
    }
}
