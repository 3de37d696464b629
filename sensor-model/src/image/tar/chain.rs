//! The blocks that make one header.
//!
//! In: the beginning of a header, which grows from call to call. Out: how many bytes it has, or that it is complete. Each block is
//! read once. A header may have long names and PAX records before it, and the map of a sparse file behind it.

use super::{
    header::{BLOCK, HeaderFault, METADATA_LIMIT, SPARSE_LIMIT},
    pax,
};
use tar_core::Header;

/// Where a header has the first byte of its size.
const SIZE: usize = 124;
/// Where a header of GNU tar says that the map of a sparse file goes on.
const IS_EXTENDED: usize = 482;
/// The same in a block of the map.
const MAP_GOES_ON: usize = 504;

/// What is known of the header after a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The header has at least so many bytes.
    Need(usize),
    /// The header is complete.
    Ready,
    /// It was a header for all entries that has no effect.
    Global,
    /// It is the end of the archive.
    End,
}

/// How far the blocks of a header were read.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// The next block.
    at: usize,
    long_name: bool,
    long_link: bool,
    pax: Option<pax::Facts>,
    map: Map,
}

/// The map of a sparse file that follows the header.
#[derive(Debug, Default)]
enum Map {
    #[default]
    None,
    /// Blocks of GNU tar.
    Blocks,
    /// Lines: those that are left if the first one was read, and where the next one begins.
    Lines { start: usize, at: usize, left: Option<usize> },
}

impl Chain {
    /// Reads the blocks that came since the last step.
    pub(super) fn step(&mut self, buffer: &[u8]) -> Result<Step, HeaderFault> {
        loop {
            match self.map {
                Map::None => {}
                Map::Blocks => return Ok(self.map_blocks(buffer)),
                Map::Lines { .. } => return self.map_lines(buffer),
            }
            let Some(block) = buffer.get(self.at..).and_then(|rest| rest.first_chunk::<BLOCK>()) else {
                return Ok(Step::Need(self.at + BLOCK));
            };
            if block.iter().all(|byte| *byte == 0) {
                return self.zeros(buffer);
            }
            let header = Header::from_bytes(block);
            header.verify_checksum().map_err(|error| HeaderFault::Invalid(error.to_string()))?;
            numbers(block)?;
            let size = size(block, header)?;
            let kind = block[156];
            if !matches!(kind, b'x' | b'g' | b'L' | b'K') {
                self.last(kind, block, size)?;
                if matches!(self.map, Map::None) {
                    return Ok(Step::Ready);
                }
                continue;
            }
            if !header.is_gnu() && !header.is_ustar() {
                return Err(HeaderFault::ambiguous("an extension in a header of the oldest format"));
            }
            let content = self.at + BLOCK;
            let length = usize::try_from(size).ok().filter(|size| *size <= METADATA_LIMIT as usize);
            let length = length.ok_or(HeaderFault::Large)?;
            let end = content + length.next_multiple_of(BLOCK);
            let Some(bytes) = buffer.get(content..content + length).filter(|_| buffer.len() >= end) else {
                return Ok(Step::Need(end));
            };
            if kind == b'g' {
                return self.global(bytes);
            }
            // Some readers take a name from the whole block, up to its first zero byte.
            let goes_on = buffer.get(content + length..end).is_none_or(|rest| rest.first() != Some(&0));
            if matches!(kind, b'L' | b'K') && !bytes.ends_with(b"\0") && goes_on {
                return Err(HeaderFault::ambiguous("a long name that does not end with a zero byte"));
            }
            self.extension(kind, bytes)?;
            self.at = end;
        }
    }

    fn zeros(&self, buffer: &[u8]) -> Result<Step, HeaderFault> {
        if self.at != 0 {
            return Err(HeaderFault::ambiguous("the archive ends after a long name or PAX records"));
        }
        match buffer.get(BLOCK..2 * BLOCK) {
            None => Ok(Step::Need(2 * BLOCK)),
            Some(second) if second.iter().all(|byte| *byte == 0) => Ok(Step::End),
            Some(_) => Err(HeaderFault::ambiguous("one block of zeros is in the middle of the archive")),
        }
    }

    fn extension(&mut self, kind: u8, bytes: &[u8]) -> Result<(), HeaderFault> {
        if kind == b'x' {
            if self.pax.is_some() {
                return Err(HeaderFault::ambiguous("two headers with PAX records"));
            }
            self.pax = Some(pax::check(bytes)?);
            return Ok(());
        }
        let seen = if kind == b'L' { &mut self.long_name } else { &mut self.long_link };
        if std::mem::replace(seen, true) {
            return Err(HeaderFault::ambiguous("two long names"));
        }
        let text = bytes.strip_suffix(b"\0").unwrap_or(bytes);
        if text.contains(&0) {
            return Err(HeaderFault::ambiguous("a zero byte is in a long name"));
        }
        Ok(())
    }

    /// Records for all entries that follow: readers disagree on whether they apply them. A comment has no effect.
    fn global(&self, bytes: &[u8]) -> Result<Step, HeaderFault> {
        if self.at != 0 {
            return Err(HeaderFault::ambiguous(
                "PAX records for all entries after a long name or PAX records",
            ));
        }
        for record in pax::records(bytes) {
            let (key, _) = record?;
            if key != b"comment" {
                let key = String::from_utf8_lossy(key).into_owned();
                return Err(HeaderFault::ambiguous(format!("PAX records for all entries set {key:?}")));
            }
        }
        Ok(Step::Global)
    }

    /// The header of the entry itself.
    fn last(&mut self, kind: u8, block: &[u8; BLOCK], size: u64) -> Result<(), HeaderFault> {
        let pax = self.pax.unwrap_or_default();
        if (pax.path && self.long_name) || (pax.link && self.long_link) {
            return Err(HeaderFault::ambiguous("a name both as a long name and as a PAX record"));
        }
        if pax.size && (pax.sparse || kind == b'S') {
            return Err(HeaderFault::ambiguous("the size of a sparse file as a PAX record"));
        }
        if pax.sparse && !matches!(kind, b'0' | b'\0') {
            return Err(HeaderFault::ambiguous(
                "the PAX records of a sparse file on an entry of another type",
            ));
        }
        self.at += BLOCK;
        if kind == b'S' && block[IS_EXTENDED] != 0 {
            self.map = Map::Blocks;
        } else if pax.sparse_lines {
            if size < BLOCK as u64 {
                return Err(HeaderFault::Invalid("the map of a sparse file is missing".to_owned()));
            }
            self.map = Map::Lines { start: self.at, at: self.at, left: None };
        }
        Ok(())
    }

    fn map_blocks(&mut self, buffer: &[u8]) -> Step {
        while let Some(block) = buffer.get(self.at..self.at + BLOCK) {
            self.at += BLOCK;
            if block[MAP_GOES_ON] == 0 {
                return Step::Ready;
            }
        }
        Step::Need(self.at + BLOCK)
    }

    /// The map is a number of pieces, and two numbers for each piece, each number in a line.
    fn map_lines(&mut self, buffer: &[u8]) -> Result<Step, HeaderFault> {
        let Map::Lines { start, at, left } = &mut self.map else { return Ok(Step::Ready) };
        while *left != Some(0) {
            let line = buffer.get(*at..).unwrap_or_default();
            let Some(length) = line.iter().take(BLOCK).position(|byte| *byte == b'\n') else {
                if line.len() >= BLOCK {
                    return Err(HeaderFault::Invalid("the map of a sparse file has no lines".to_owned()));
                }
                return Ok(Step::Need(buffer.len() + BLOCK));
            };
            let number: Option<usize> =
                std::str::from_utf8(&line[..length]).ok().and_then(|text| text.parse().ok());
            *left = Some(match (*left, number) {
                (None, Some(pieces)) if pieces <= SPARSE_LIMIT => pieces * 2,
                (Some(lines), Some(_)) => lines - 1,
                _ => return Err(HeaderFault::Invalid("the map of a sparse file".to_owned())),
            });
            *at += length + 1;
        }
        let end = *start + (*at - *start).next_multiple_of(BLOCK);
        Ok(if buffer.len() >= end { Step::Ready } else { Step::Need(end) })
    }
}

/// Refuses a number with a zero byte before its digits: some readers take it for zero, and others, among them Go's library, skip the byte.
fn numbers(block: &[u8; BLOCK]) -> Result<(), HeaderFault> {
    const FIELDS: [(&str, std::ops::Range<usize>); 6] = [
        ("mode", 100..108),
        ("owner", 108..116),
        ("group", 116..124),
        ("size", SIZE..SIZE + 12),
        ("device", 329..337),
        ("device", 337..345),
    ];
    for (name, range) in FIELDS {
        // Only entries of devices have the last two fields.
        let mut bytes = block[range].iter().skip_while(|byte| **byte == b' ');
        if name == "device" && !matches!(block[156], b'3' | b'4') || bytes.next() != Some(&0) {
            continue;
        }
        if bytes.any(|byte| !matches!(byte, 0 | b' ')) {
            return Err(HeaderFault::ambiguous(format!("the {name} has a zero byte before its digits")));
        }
    }
    Ok(())
}

/// The size in a header. A binary number that does not fit into 64 bits would be cut by the parser.
fn size(block: &[u8; BLOCK], header: &Header) -> Result<u64, HeaderFault> {
    let field = &block[SIZE..SIZE + 12];
    if field[0] & 0x80 != 0 && (field[0] != 0x80 || field[1..4].iter().any(|byte| *byte != 0)) {
        return Err(HeaderFault::Invalid("the size is negative or too large".to_owned()));
    }
    let size = header.entry_size().map_err(|error| HeaderFault::Invalid(error.to_string()))?;
    if size > 1 << 60 {
        return Err(HeaderFault::Invalid("the size is too large".to_owned()));
    }
    Ok(size)
}
