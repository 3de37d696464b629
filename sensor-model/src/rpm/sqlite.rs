//! The rows of one table of an SQLite file.
//!
//! In: pages of the file (<https://www.sqlite.org/fileformat.html>). Out: the first blob of each row. It reads table trees and their
//! overflow pages alone: no index, no SQL. The pages may be those of a [write-ahead log](super::sqlite_log). A page is read at most once, so no loop of pages ends
//! in a loop here.

use std::collections::HashSet;

const MAGIC: &[u8] = b"SQLite format 3\0";
/// Bytes of the header of the file, on the first page.
const FILE_HEADER: usize = 100;
const LEAF: u8 = 0x0d;
const INTERIOR: u8 = 0x05;
/// Deepest tree. One with a billion rows is not deeper.
const DEEPEST: usize = 16;
/// Most bytes of one row: twice the largest header of a package of Fedora.
const LARGEST: usize = 32 << 20;

/// The pages of a file.
pub trait Pages {
    /// The first bytes of the file, up to the length of the buffer. `false` if there are fewer.
    fn start(&mut self, buffer: &mut [u8]) -> bool;

    /// The page with a number from 1 on. `false` if the file has no such page.
    fn page(&mut self, number: u32, buffer: &mut [u8]) -> bool;
}

/// Why a table cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SqliteError {
    /// It is another file.
    #[error("it is not an SQLite file")]
    OtherFile,
    /// A page is missing, or its numbers lead out of it.
    #[error("page {0} is damaged")]
    Page(u32),
    /// The file has no such table.
    #[error("it has no such table")]
    NoTable,
    /// A row is too large.
    #[error("a row has more than {LARGEST} bytes")]
    TooLarge,
}

/// Calls `take` with the first blob of each row of a table.
///
/// # Errors
/// See [`SqliteError`]. `take` may have had rows before.
pub fn each_blob(
    pages: &mut impl Pages,
    table: &str,
    mut take: impl FnMut(&[u8]),
) -> Result<(), SqliteError> {
    let mut file = File::open(pages)?;
    let mut root = None;
    file.each_row(1, &mut |row| {
        let Some(columns) = columns(row) else { return };
        let text = |number: usize| columns.get(number).map(|column| column.bytes);
        if text(0) == Some(b"table".as_slice()) && text(1) == Some(table.as_bytes()) {
            root = columns.get(3).and_then(Column::number);
        }
    })?;
    let root = root.and_then(|root| u32::try_from(root).ok()).filter(|root| *root > 1);
    file.seen.clear();
    file.each_row(root.ok_or(SqliteError::NoTable)?, &mut |row| {
        let columns = columns(row).unwrap_or_default();
        if let Some(blob) = columns.iter().find(|column| column.is_blob) {
            take(blob.bytes);
        }
    })
}

struct File<'a, P> {
    pages: &'a mut P,
    size: usize,
    /// Bytes of a page without those at its end that extensions use.
    usable: usize,
    seen: HashSet<u32>,
}

impl<'a, P: Pages> File<'a, P> {
    fn open(pages: &'a mut P) -> Result<Self, SqliteError> {
        let mut start = [0; FILE_HEADER];
        if !pages.start(&mut start) || !start.starts_with(MAGIC) {
            return Err(SqliteError::OtherFile);
        }
        let size = match u16::from_be_bytes([start[16], start[17]]) {
            1 => 1 << 16,
            size => usize::from(size),
        };
        let usable = size.saturating_sub(usize::from(start[20]));
        if !size.is_power_of_two() || size < 512 || usable < 480 {
            return Err(SqliteError::OtherFile);
        }
        Ok(Self { pages, size, usable, seen: HashSet::new() })
    }

    fn page(&mut self, number: u32) -> Result<Vec<u8>, SqliteError> {
        let mut page = vec![0; self.size];
        if number == 0 || !self.seen.insert(number) || !self.pages.page(number, &mut page) {
            return Err(SqliteError::Page(number));
        }
        page.truncate(self.usable);
        Ok(page)
    }

    /// Calls `take` with each row of the tree below a page.
    fn each_row(&mut self, root: u32, take: &mut dyn FnMut(&[u8])) -> Result<(), SqliteError> {
        let mut waiting = vec![(root, 0)];
        while let Some((number, depth)) = waiting.pop() {
            let damaged = SqliteError::Page(number);
            if depth > DEEPEST {
                return Err(damaged);
            }
            let page = self.page(number)?;
            let start = if number == 1 { FILE_HEADER } else { 0 };
            let kind = *page.get(start).ok_or(damaged)?;
            let cells = usize::from(short(&page, start + 3).ok_or(damaged)?);
            let pointers = start + if kind == INTERIOR { 12 } else { 8 };
            // Rows do not share bytes, so those of one page are not larger than it.
            let mut left = self.usable;
            for cell in 0..cells {
                let at = usize::from(short(&page, pointers + 2 * cell).ok_or(damaged)?);
                match kind {
                    INTERIOR => waiting.push((long(&page, at).ok_or(damaged)?, depth + 1)),
                    LEAF => {
                        let (row, part) = self.row(&page, at, damaged)?;
                        left = left.checked_sub(part).ok_or(damaged)?;
                        take(&row);
                    }
                    _ => return Err(damaged),
                }
            }
            if kind == INTERIOR {
                waiting.push((long(&page, start + 8).ok_or(damaged)?, depth + 1));
            } else if kind != LEAF {
                return Err(damaged);
            }
        }
        Ok(())
    }

    /// The bytes of a row: a part in the page, and the others in a chain of overflow pages. Also gives the length of that part.
    fn row(&mut self, page: &[u8], at: usize, damaged: SqliteError) -> Result<(Vec<u8>, usize), SqliteError> {
        let (size, length) = varint(page, at).ok_or(damaged)?;
        let (_, key) = varint(page, at + length).ok_or(damaged)?;
        let size = usize::try_from(size).map_err(|_| SqliteError::TooLarge)?;
        if size > LARGEST {
            return Err(SqliteError::TooLarge);
        }
        let start = at + length + key;
        let most = self.usable - 35;
        if size <= most {
            return Ok((page.get(start..start + size).ok_or(damaged)?.to_vec(), size));
        }
        let least = (self.usable - 12) * 32 / 255 - 23;
        let part = least + (size - least) % (self.usable - 4);
        let part = if part <= most { part } else { least };
        let mut row = page.get(start..start + part).ok_or(damaged)?.to_vec();
        let mut next = long(page, start + part).ok_or(damaged)?;
        while row.len() < size {
            let damaged = SqliteError::Page(next);
            let page = self.page(next)?;
            let length = (size - row.len()).min(self.usable - 4);
            row.extend_from_slice(page.get(4..4 + length).ok_or(damaged)?);
            next = long(&page, 0).ok_or(damaged)?;
        }
        Ok((row, part))
    }
}

#[derive(Debug)]
struct Column<'a> {
    kind: u64,
    bytes: &'a [u8],
    is_blob: bool,
}

impl Column<'_> {
    /// A whole number; `None` for a column of another kind.
    fn number(&self) -> Option<u64> {
        match self.kind {
            1..=6 => Some(self.bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))),
            8 => Some(0),
            9 => Some(1),
            _ => None,
        }
    }
}

/// The columns of a row; `None` if it is damaged.
fn columns(row: &[u8]) -> Option<Vec<Column<'_>>> {
    let (header, mut at) = varint(row, 0)?;
    let header = usize::try_from(header).ok()?;
    let mut value = header;
    let mut columns = Vec::new();
    while at < header {
        let (kind, length) = varint(row, at)?;
        at += length;
        let size = match kind {
            0 | 8 | 9 => 0,
            1..=4 => usize::try_from(kind).ok()?,
            5 => 6,
            6 | 7 => 8,
            10 | 11 => return None,
            text_or_blob => usize::try_from((text_or_blob - 12) / 2).ok()?,
        };
        let bytes = row.get(value..value.checked_add(size)?)?;
        columns.push(Column { kind, bytes, is_blob: kind >= 12 && kind % 2 == 0 });
        value += size;
    }
    Some(columns)
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// A number of one to nine bytes, and their count.
fn varint(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let mut number = 0;
    for length in 1..=9 {
        let byte = *bytes.get(at.checked_add(length)?.checked_sub(1)?)?;
        if length == 9 {
            return Some((number << 8 | u64::from(byte), length));
        }
        number = number << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some((number, length));
        }
    }
    None
}
