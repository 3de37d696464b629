//! The write-ahead log of an SQLite file.
//!
//! In: bytes of the log (<https://www.sqlite.org/fileformat.html#the_write_ahead_log>). Out: where it has the newest committed state of each
//! page. SQLite writes a page to the log first, and to the file later: when the log is long, or the last program that writes closes the
//! file. After a crash committed pages stay in the log alone until a program writes again. Checksums end at the first
//! frame that a crash tore, or that is left from before the log began anew.

use std::collections::HashMap;

/// Bytes of the header of the log.
const HEADER: usize = 32;
/// Bytes before each page.
const FRAME: usize = 24;
/// The header's first number. The lowest bit says in which order of bytes the checksums take numbers.
const MAGIC: u32 = 0x377f_0682;
/// The only version of the format.
const VERSION: u32 = 3_007_000;
/// Most frames: 4 GiB of usual pages.
const MOST: usize = 1 << 20;

/// Why a log cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// It is another file, or its header is damaged.
    #[error("it does not begin as a write-ahead log of SQLite")]
    OtherFile,
    /// It is too long.
    #[error("it has more than {MOST} pages")]
    TooLong,
}

/// Where a log has pages.
#[derive(Debug, PartialEq, Eq)]
pub struct SqliteLog {
    /// Bytes of a page.
    size: usize,
    places: HashMap<u32, u64>,
}

impl SqliteLog {
    /// Reads a log. `bytes_at` fills the buffer with the bytes from an offset on; it gives `false` if the log ends before.
    ///
    /// # Errors
    /// See [`LogError`].
    pub fn read(mut bytes_at: impl FnMut(u64, &mut [u8]) -> bool) -> Result<Self, LogError> {
        let mut header = [0; HEADER];
        if !bytes_at(0, &mut header) {
            return Err(LogError::OtherFile);
        }
        let magic = number(&header, 0);
        let size = usize::try_from(number(&header, 8)).unwrap_or(0);
        let mut sums = Checksums { is_big_endian: magic & 1 == 1, sums: (0, 0) };
        sums.add(&header[..24]);
        let is_header = magic & !1 == MAGIC
            && number(&header, 4) == VERSION
            && size.is_power_of_two()
            && (512..=1 << 16).contains(&size)
            && sums.are_at(&header, 24);
        if !is_header {
            return Err(LogError::OtherFile);
        }
        let mut log = Self { size, places: HashMap::new() };
        let mut waiting: Vec<(u32, u64)> = Vec::new();
        let mut frame = vec![0; FRAME + size];
        let mut offset = HEADER as u64;
        let (mut frames, mut pages_of_file) = (0, 0);
        while bytes_at(offset, &mut frame) {
            let page = number(&frame, 0);
            sums.add(&frame[..8]);
            sums.add(&frame[FRAME..]);
            if page == 0 || frame[8..16] != header[16..24] || !sums.are_at(&frame, 16) {
                break;
            }
            frames += 1;
            if frames > MOST {
                return Err(LogError::TooLong);
            }
            waiting.push((page, offset + FRAME as u64));
            // The last frame of a transaction has the number of pages of the file.
            let pages = number(&frame, 4);
            if pages > 0 {
                log.places.extend(waiting.drain(..));
                pages_of_file = pages;
            }
            offset += frame.len() as u64;
        }
        log.places.retain(|page, _| *page <= pages_of_file);
        Ok(log)
    }

    /// Bytes of a page. Those of the file's pages are as many.
    pub fn page_size(&self) -> usize {
        self.size
    }

    /// Where a page is in the log: its offset there. `None` if only the file has it.
    pub fn place(&self, page: u32) -> Option<u64> {
        self.places.get(&page).copied()
    }
}

/// The checksums of the header and of each frame, each of which goes on from the one before.
struct Checksums {
    is_big_endian: bool,
    sums: (u32, u32),
}

impl Checksums {
    /// Adds bytes, a multiple of 8.
    fn add(&mut self, bytes: &[u8]) {
        let (pairs, _) = bytes.as_chunks::<8>();
        for pair in pairs {
            let (numbers, _) = pair.as_chunks::<4>();
            let number = |bytes: [u8; 4]| {
                if self.is_big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
            };
            let [first, second] = [0, 1].map(|place| number(numbers[place]));
            self.sums.0 = self.sums.0.wrapping_add(first).wrapping_add(self.sums.1);
            self.sums.1 = self.sums.1.wrapping_add(second).wrapping_add(self.sums.0);
        }
    }

    /// Whether the sums are those at a place.
    fn are_at(&self, bytes: &[u8], at: usize) -> bool {
        self.sums == (number(bytes, at), number(bytes, at + 4))
    }
}

/// A number of four bytes within the bytes.
fn number(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk::<4>().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}
