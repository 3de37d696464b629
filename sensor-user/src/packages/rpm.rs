//! rpm's database.
//!
//! In: `rpmdb.sqlite`, which rpm has had since Fedora 33 and RHEL 9, and its write-ahead log. Out: the paths of packages below certain
//! directories, or what each package has at its paths. No program runs. The older formats are recognised and not read.

use super::{collector::Collector, unread::Unread};
use crate::{
    observation::Observer,
    sys::{FileVersion, version_of},
};
use nix::{errno::Errno, fcntl::OFlag, sys::stat::fstat};
use sensor_model::rpm::{self, Format, TABLE, header, sqlite, sqlite_log::SqliteLog};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::File,
    os::{
        fd::AsFd,
        unix::{ffi::OsStrExt as _, fs::FileExt as _},
    },
    path::{Path, PathBuf},
};

/// Where the database is. One of the first two directories is a link to the other on most hosts.
const DATABASES: [(&str, Format); 6] = [
    ("/usr/lib/sysimage/rpm/rpmdb.sqlite", Format::Sqlite),
    ("/var/lib/rpm/rpmdb.sqlite", Format::Sqlite),
    ("/usr/lib/sysimage/rpm/Packages", Format::BerkeleyDb),
    ("/var/lib/rpm/Packages", Format::BerkeleyDb),
    ("/usr/lib/sysimage/rpm/Packages.db", Format::Ndb),
    ("/var/lib/rpm/Packages.db", Format::Ndb),
];

/// The end of the name of the database's write-ahead log. It has packages that rpm has not merged yet: while rpm is at work, after rpm was
/// killed, and while another program reads the database.
const LOG: &str = "-wal";

/// The paths of the databases, for their versions.
pub(super) fn paths() -> impl Iterator<Item = &'static Path> {
    DATABASES.iter().map(|(path, _)| Path::new(*path))
}

/// The paths of the databases' logs, for their versions. An empty log, or none, is the usual state.
pub(super) fn logs() -> impl Iterator<Item = PathBuf> {
    let of_sqlite = DATABASES.iter().filter(|(_, format)| *format == Format::Sqlite);
    of_sqlite.map(|(path, _)| log_of(Path::new(path)))
}

fn log_of(database: &Path) -> PathBuf {
    let mut log = database.as_os_str().to_owned();
    log.push(LOG);
    log.into()
}

/// Adds what packages put below these directories. Nothing on a host without rpm.
pub(super) fn packaged(
    observer: &Observer,
    is_wanted: &dyn Fn(&Path) -> bool,
    found: &mut BTreeSet<PathBuf>,
) -> Result<(), Unread> {
    each_header(observer, &mut |blob| {
        let paths = header::paths(blob)?;
        let paths = paths.iter().map(|path| Path::new(OsStr::from_bytes(path)));
        found.extend(paths.filter(|path| path.is_absolute() && is_wanted(path)).map(Path::to_owned));
        Ok(())
    })
    .map(drop)
}

/// Gives the collector what each package has at its paths. `false` on a host without rpm.
pub(super) fn collect(observer: &Observer, collector: &mut Collector) -> Result<bool, Unread> {
    let mut too_many = Ok(());
    let has_rpm = each_header(observer, &mut |blob| {
        let rpm::RpmPackage { package, files } = rpm::package(blob)?;
        match collector.package(package, Path::new(TABLE)) {
            Ok(number) => {
                for file in files {
                    let entry = file.entry(number, |name| collector.uid(name), |name| collector.gid(name));
                    collector.add(&file.path, entry);
                }
            }
            Err(error) => too_many = Err(error),
        }
        Ok(())
    })?;
    too_many.map(|()| has_rpm)
}

/// Calls `take` with the header of each package. `false` on a host without rpm.
fn each_header(
    observer: &Observer,
    take: &mut dyn FnMut(&[u8]) -> Result<(), header::HeaderError>,
) -> Result<bool, Unread> {
    let opened = DATABASES.iter().find_map(|(path, format)| {
        let path = Path::new(path);
        match observer.root().open_at(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK) {
            Ok(file) => Some(Ok((path, *format, file))),
            Err(Errno::ENOENT | Errno::ENOTDIR) => None,
            Err(errno) => Some(Err(Unread::new(path, errno.desc()))),
        }
    });
    let Some(opened) = opened else { return Ok(false) };
    let (path, format, file) = opened?;
    let failed = |reason: &dyn std::fmt::Display| Unread::new(path, reason);
    match format {
        Format::Sqlite => {}
        Format::BerkeleyDb => return Err(failed(&"a database of Berkeley DB, which Holdfast does not read")),
        Format::Ndb => return Err(failed(&"a database in rpm's format ndb, which Holdfast does not read")),
    }
    let before = version(path, &file)?;
    let log = Log::open(observer, path)?.filter(|_| before.1 > 0);
    let mut damaged = None;
    let mut pages = FilePages { file: file.into(), log };
    let read = sqlite::each_blob(&mut pages, TABLE, |blob| {
        if let Err(error) = take(blob) {
            damaged = Some(error);
        }
    });
    // A program that merges the log, or begins it anew, may mix old pages with new ones.
    let is_same = version(path, &pages.file)? == before && pages.log.as_ref().is_none_or(Log::is_same);
    if !is_same {
        return Err(failed(&"rpm changed it while Holdfast read it; try again"));
    }
    read.map_err(|error| failed(&error))?;
    damaged.map_or(Ok(true), |error| Err(failed(&error)))
}

/// The state of a regular file.
fn version(path: &Path, file: impl AsFd) -> Result<FileVersion, Unread> {
    let stat = fstat(file).map_err(|errno| Unread::new(path, errno.desc()))?;
    if stat.st_mode & nix::libc::S_IFMT != nix::libc::S_IFREG {
        return Err(Unread::new(path, "it is not a file"));
    }
    Ok(version_of(&stat))
}

/// A log that is not empty.
struct Log {
    path: PathBuf,
    file: File,
    version: FileVersion,
    pages: SqliteLog,
}

impl Log {
    /// The log of a database; `None` if there is none, or an empty one.
    fn open(observer: &Observer, database: &Path) -> Result<Option<Self>, Unread> {
        let path = log_of(database);
        let file = match observer.root().open_at(&path, OFlag::O_RDONLY | OFlag::O_NONBLOCK) {
            Ok(file) => File::from(file),
            Err(Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(Unread::new(&path, errno.desc())),
        };
        let version = version(&path, &file)?;
        if version.1 == 0 {
            return Ok(None);
        }
        let pages = SqliteLog::read(|offset, buffer| file.read_exact_at(buffer, offset).is_ok());
        match pages {
            Ok(pages) => Ok(Some(Self { path, file, version, pages })),
            Err(error) => {
                let next = "`rpmdb --initdb` merges it into the database and empties it";
                Err(Unread::new(&path, format_args!("{error}; {next}")))
            }
        }
    }

    /// Whether the log did not change since it was opened.
    fn is_same(&self) -> bool {
        version(&self.path, &self.file).is_ok_and(|version| version == self.version)
    }
}

/// The pages of an open file, and of its log.
struct FilePages {
    file: File,
    log: Option<Log>,
}

impl FilePages {
    /// The log, and where it has a page.
    fn in_log(&self, page: u32) -> Option<(&Log, u64)> {
        let log = self.log.as_ref()?;
        Some((log, log.pages.place(page)?))
    }
}

impl sqlite::Pages for FilePages {
    fn start(&mut self, buffer: &mut [u8]) -> bool {
        let read = match self.in_log(1) {
            Some((log, offset)) => log.file.read_exact_at(buffer, offset),
            None => self.file.read_exact_at(buffer, 0),
        };
        read.is_ok()
    }

    fn page(&mut self, number: u32, buffer: &mut [u8]) -> bool {
        if let Some((log, offset)) = self.in_log(number) {
            return log.pages.page_size() == buffer.len() && log.file.read_exact_at(buffer, offset).is_ok();
        }
        let size = u64::try_from(buffer.len()).unwrap_or(u64::MAX);
        let offset = u64::from(number).checked_sub(1).and_then(|number| number.checked_mul(size));
        offset.is_some_and(|offset| self.file.read_exact_at(buffer, offset).is_ok())
    }
}
