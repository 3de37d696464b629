//! rpm's database.
//!
//! In: `rpmdb.sqlite`, which rpm has had since Fedora 33 and RHEL 9. Out: the paths of packages below certain directories, or what
//! each package has at its paths. No program runs. The older formats are recognised and not read.

use super::{collector::Collector, unread::Unread};
use crate::observation::Observer;
use nix::{errno::Errno, fcntl::OFlag, sys::stat::fstat};
use sensor_model::rpm::{self, Format, TABLE, header, sqlite};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::File,
    os::unix::{ffi::OsStrExt as _, fs::FileExt as _},
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

/// The database's write-ahead log. It has packages that rpm has not merged yet.
const LOG: &str = "-wal";

/// The paths of the databases, for their versions.
pub(super) fn paths() -> impl Iterator<Item = &'static Path> {
    DATABASES.iter().map(|(path, _)| Path::new(*path))
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
pub(super) fn collect(observer: &Observer, collector: &mut Collector<'_>) -> Result<bool, Unread> {
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
    let stat = fstat(&file).map_err(|errno| failed(&errno.desc()))?;
    if stat.st_mode & nix::libc::S_IFMT != nix::libc::S_IFREG {
        return Err(failed(&"it is not a file"));
    }
    let mut log = path.as_os_str().to_owned();
    log.push(LOG);
    let log = observer.root().open_at(Path::new(&log), OFlag::O_PATH).and_then(fstat);
    if log.is_ok_and(|log| log.st_size > 0) {
        tracing::info!(
            database = %path.display(),
            "rpm is at work, or was interrupted: its newest packages are in a log that Holdfast does not read."
        );
    }
    let mut damaged = None;
    let mut pages = FilePages(file.into());
    let read = sqlite::each_blob(&mut pages, TABLE, |blob| {
        if let Err(error) = take(blob) {
            damaged = Some(error);
        }
    });
    read.map_err(|error| failed(&error))?;
    damaged.map_or(Ok(true), |error| Err(failed(&error)))
}

/// The pages of an open file.
struct FilePages(File);

impl sqlite::Pages for FilePages {
    fn start(&mut self, buffer: &mut [u8]) -> bool {
        self.0.read_exact_at(buffer, 0).is_ok()
    }

    fn page(&mut self, number: u32, buffer: &mut [u8]) -> bool {
        let size = u64::try_from(buffer.len()).unwrap_or(u64::MAX);
        let offset = u64::from(number).checked_sub(1).and_then(|number| number.checked_mul(size));
        offset.is_some_and(|offset| self.0.read_exact_at(buffer, offset).is_ok())
    }
}
