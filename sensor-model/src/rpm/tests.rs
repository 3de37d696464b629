//! A database that rpm 4.18 made, and damaged ones.

use super::*;
use sqlite_log::{LogError, SqliteLog};
use std::io::Read as _;

/// The file in memory.
struct Bytes<'a>(&'a [u8]);

impl sqlite::Pages for Bytes<'_> {
    fn start(&mut self, buffer: &mut [u8]) -> bool {
        let start = self.0.get(..buffer.len());
        start.inspect(|start| buffer.copy_from_slice(start)).is_some()
    }

    fn page(&mut self, number: u32, buffer: &mut [u8]) -> bool {
        let start = (number as usize - 1) * buffer.len();
        let page = self.0.get(start..start + buffer.len());
        page.inspect(|page| buffer.copy_from_slice(page)).is_some()
    }
}

fn database() -> Vec<u8> {
    unpacked(include_bytes!("testdata/rpmdb.sqlite.gz"))
}

fn unpacked(packed: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    bytes
}

fn log(bytes: &[u8]) -> Result<SqliteLog, LogError> {
    SqliteLog::read(|offset, buffer| {
        let found = bytes.get(usize::try_from(offset).unwrap()..).and_then(|rest| rest.get(..buffer.len()));
        found.inspect(|found| buffer.copy_from_slice(found)).is_some()
    })
}

const SMALL: &[u8] = include_bytes!("../../fuzz/seeds/rpm/database");

fn blobs(file: &[u8], table: &str) -> Result<Vec<Vec<u8>>, sqlite::SqliteError> {
    let mut found = Vec::new();
    sqlite::each_blob(&mut Bytes(file), table, |blob| found.push(blob.to_vec())).map(|()| found)
}

#[test]
fn the_paths_of_packages_are_those_that_rpm_lists() {
    let blobs = blobs(&database(), TABLE).unwrap();
    assert_eq!(blobs.len(), 1);
    let paths: Vec<String> =
        header::paths(&blobs[0]).unwrap().into_iter().map(|path| String::from_utf8(path).unwrap()).collect();
    assert_eq!(paths.len(), 605, "what `rpm -qal` prints");
    for path in [
        "/etc/cron.d/sub",
        "/etc/cron.d/sub/x",
        "/etc/sudoers.d/from rpm",
        "/etc/sudoers.d/ghost",
        "/usr/lib/systemd/system-generators/gen",
        "/etc/yum.repos.d/a-name-of-a-file-that-takes-some-room-in-the-header-600.repo",
    ] {
        assert!(paths.iter().any(|found| found == path), "{path}");
    }
}

#[test]
fn rows_of_all_sizes_are_read_from_a_tree_of_pages() {
    let mut lengths: Vec<usize> = blobs(SMALL, TABLE).unwrap().iter().map(Vec::len).collect();
    lengths.sort_unstable();
    let header = include_bytes!("../../fuzz/seeds/rpm/header").len();
    assert_eq!(lengths, [0, 2, 100, 100, 100, 100, 100, 100, 100, 100, 100, header, 3000]);
}

#[test]
fn another_file_and_another_table_and_a_damaged_page_are_errors() {
    use sqlite::SqliteError;
    assert_eq!(blobs(b"SQLite format 3", TABLE), Err(SqliteError::OtherFile));
    assert_eq!(blobs(&[0; 4096], TABLE), Err(SqliteError::OtherFile));
    assert_eq!(blobs(SMALL, "None"), Err(SqliteError::NoTable));
    assert!(matches!(blobs(&SMALL[..SMALL.len() / 2], TABLE), Err(SqliteError::Page(_))));
    // A loop of overflow pages: each page leads to itself.
    let mut looped = SMALL.to_vec();
    for page in 3..looped.len() / 512 {
        let number = u32::try_from(page + 1).unwrap().to_be_bytes();
        looped[page * 512..page * 512 + 4].copy_from_slice(&number);
    }
    assert!(blobs(&looped, TABLE).is_err());
}

/// The log is what rpm 4.18 left when it was killed before it merged the log. SQLite's format has a frame of 24 bytes and a page of 4096.
#[test]
fn a_log_has_the_pages_of_complete_transactions_up_to_the_first_damaged_frame() {
    let bytes = unpacked(include_bytes!("testdata/interrupted.sqlite-wal.gz"));
    let frame = |number: usize| 32 + number * (24 + 4096);
    assert_eq!(bytes.len(), frame(19));
    let whole = log(&bytes).unwrap();
    assert_eq!((whole.page_size(), whole.place(1), whole.place(2)), (4096, None, Some(32 + 24)));
    assert_eq!(whole.place(32), Some(frame(18) as u64 + 24), "the only frame that ends a transaction");
    for length in [32, frame(1), frame(18), bytes.len() - 1] {
        let cut = log(&bytes[..length]).unwrap();
        assert!((1..64).all(|page| cut.place(page).is_none()), "{length} bytes");
    }
    for (at, what) in [(40, "a salt"), (frame(3) + 100, "a page"), (frame(18) + 4, "the end")] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert_eq!(log(&damaged).unwrap().place(2), None, "{what}");
    }
    // What an older use of the file left behind the end.
    let longer = [&bytes[..], &bytes[32..]].concat();
    assert_eq!(log(&longer), Ok(whole));
    let mut other = bytes.clone();
    other[12] ^= 1;
    assert_eq!(log(&other), Err(LogError::OtherFile), "the sum of the header");
    assert_eq!(log(&bytes[..31]), Err(LogError::OtherFile));
    assert_eq!(log(b""), Err(LogError::OtherFile));
}

/// Two transactions on one page, with sums over numbers of both orders of bytes.
#[test]
fn the_newest_committed_state_of_a_page_counts_and_pages_behind_the_end_of_the_file_do_not() {
    for is_big_endian in [false, true] {
        let made = logged(is_big_endian, &[(1, 0), (9, 9), (1, 2), (2, 0)]);
        let found = log(&made).unwrap();
        let at = |frame: u64| Some(32 + frame * (24 + 512) + 24);
        let places = [1, 2, 9].map(|page| found.place(page));
        assert_eq!(places, [at(2), None, None], "page 2 is not committed, and the file has 2 pages");
    }
}

/// A log with pages of 512 bytes: of each frame its page, and how many pages the file has if it ends a transaction.
fn logged(is_big_endian: bool, frames: &[(u32, u32)]) -> Vec<u8> {
    let sum = |mut sums: [u32; 2], bytes: &[u8]| {
        for pair in bytes.chunks(8) {
            let number = |bytes: &[u8]| {
                let bytes = bytes.try_into().unwrap();
                if is_big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
            };
            sums[0] = sums[0].wrapping_add(number(&pair[..4])).wrapping_add(sums[1]);
            sums[1] = sums[1].wrapping_add(number(&pair[4..])).wrapping_add(sums[0]);
        }
        sums
    };
    let numbers =
        |numbers: &[u32]| numbers.iter().flat_map(|number| number.to_be_bytes()).collect::<Vec<_>>();
    let mut bytes = numbers(&[0x377f_0682 | u32::from(is_big_endian), 3_007_000, 512, 0, 7, 8]);
    let mut sums = sum([0, 0], &bytes);
    bytes.extend(numbers(&sums));
    for (number, (page, end)) in frames.iter().enumerate() {
        let (head, content) = (numbers(&[*page, *end]), vec![u8::try_from(number).unwrap(); 512]);
        sums = sum(sum(sums, &head), &content);
        bytes.extend([head, numbers(&[7, 8]), numbers(&sums), content].concat());
    }
    bytes
}

#[test]
fn a_header_that_ends_early_or_lacks_a_directory_is_an_error() {
    let whole = include_bytes!("../../fuzz/seeds/rpm/header");
    assert_eq!(header::paths(whole).unwrap().len(), 5);
    for length in 0..whole.len() {
        assert!(header::paths(&whole[..length]).is_err(), "{length} bytes");
    }
    let number = |number: u32| number.to_be_bytes();
    // One file in directory 1, and there is only directory 0.
    let index = [1117, 8, 0, 1, 1118, 8, 2, 1, 1116, 4, 4, 1].map(number).concat();
    let blob =
        [number(3).to_vec(), number(8).to_vec(), index, b"f\0/\0".to_vec(), number(1).to_vec()].concat();
    assert_eq!(header::paths(&blob), Err(header::HeaderError::NoDirectory));
    assert_eq!(header::paths(&number(u32::MAX).repeat(2)), Err(header::HeaderError::TooMany));
}

#[test]
fn a_package_has_its_version_and_the_state_of_each_of_its_paths() {
    use crate::{image::Known, observation::FileType};
    let blobs = blobs(&database(), TABLE).unwrap();
    let found = package(&blobs[0]).unwrap();
    println!("{:?} {:?}", found.package, &found.files[..12]);
    assert_eq!(found.files.len(), 605);
    let entry = |path: &str| {
        let file = found.files.iter().find(|file| file.path == path.as_bytes()).unwrap();
        file.entry(7, |name| (name == b"root").then_some(0), |name| (name == b"root").then_some(0))
    };
    let ghost = entry("/etc/sudoers.d/ghost");
    assert_eq!((ghost.known, ghost.sha256, ghost.layer), (Known::Name, None, 7));
    let generator = entry("/usr/lib/systemd/system-generators/gen");
    assert_eq!((generator.file_type, generator.known), (FileType::Regular, Known::All));
    assert!(generator.sha256.is_some() && generator.md5.is_none());
    let directory = entry("/etc/cron.d/sub");
    assert_eq!((directory.file_type, directory.sha256), (FileType::Directory, None));
}

/// The header that rpm 4.18 made of a package with `%caps` of three files, one of them with `%verify(not caps)`.
#[test]
fn a_file_has_the_capabilities_that_rpm_verifies() {
    use crate::image::Known;
    let found = package(include_bytes!("testdata/capabilities.header")).unwrap();
    let entry = |path: &str| {
        let file = found.files.iter().find(|file| file.path == path.as_bytes()).unwrap();
        let entry = file.entry(0, |_| Some(0), |_| Some(0));
        (entry.known, entry.xattrs.first().map(|(_, value)| value.clone()).unwrap_or_default())
    };
    assert_eq!(entry("/opt/caps/ping"), (Known::All, "cap_net_admin,cap_net_raw+p".to_owned()));
    assert_eq!(entry("/opt/caps/both"), (Known::All, "cap_setuid+p cap_kill+i".to_owned()));
    assert_eq!(entry("/opt/caps/plain"), (Known::All, String::new()));
    assert_eq!(entry("/opt/caps/unverified"), (Known::All, "unknown".to_owned()));
}
