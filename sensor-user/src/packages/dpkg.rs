//! dpkg's lists of files, and its sums.
//!
//! In: `/var/lib/dpkg/info/*.list`: one absolute path a line, of a file or a directory; `*.md5sums`, `status`, `diversions`; dpkg's configuration.
//! Out: the paths below certain directories, what each package has at its paths, or a digest of the packages.

use super::{collector::Collector, unread::Unread, version::identity};
use crate::{bounded, observation::Observer, sys};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use sensor_model::dpkg::{Diversions, DpkgPackage, PathFilters, packages, sums};
use sensor_model::image::{ImageEntry, Known};
use sensor_model::observation::FileType;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Where the lists are.
const INFO: &str = "/var/lib/dpkg/info";
/// Largest list that is read. The largest package of Debian 13 has one of 6 MB.
const LIST: u64 = 64 << 20;
/// The file that dpkg replaces at the end of each change.
const STATUS: &str = "/var/lib/dpkg/status";
/// Where files of packages go whose path another package has.
const DIVERSIONS: &str = "/var/lib/dpkg/diversions";

/// dpkg's configuration: the files of this directory first.
const CONFIGURATION: [&str; 2] = ["/etc/dpkg/dpkg.cfg.d", "/etc/dpkg/dpkg.cfg"];

/// The paths of files one of which is another one after each change of a package or a diversion.
pub(super) fn paths() -> impl Iterator<Item = &'static Path> {
    [STATUS, DIVERSIONS].into_iter().map(Path::new)
}

/// Whether a path is that of `status`, which [`state`] reads.
pub(super) fn is_status(path: &Path) -> bool {
    path == Path::new(STATUS)
}

/// Adds what packages put below these directories. Nothing on a host without dpkg.
pub(super) fn packaged(
    observer: &Observer,
    is_wanted: &dyn Fn(&Path) -> bool,
    found: &mut BTreeSet<PathBuf>,
) -> Result<(), Unread> {
    let lists = lists(observer)?;
    let (diversions, mut unread) = match diversions(observer) {
        Ok(diversions) => (diversions, Ok(())),
        Err(error) => (Diversions::default(), Err(error)),
    };
    for list in lists {
        match read(observer, &list) {
            Ok(bytes) => {
                let package = package_of(&list);
                let lines = bytes.split(|byte| *byte == b'\n');
                let paths = lines.map(|line| Path::new(OsStr::from_bytes(diversions.place(line, &package))));
                found.extend(paths.filter(|path| is_wanted(path)).map(Path::to_owned));
            }
            Err(error) => unread = Err(Unread::new(&list, error)),
        }
    }
    unread
}

/// Gives the collector what each package has at its paths. `false` on a host without dpkg.
pub(super) fn collect(observer: &Observer, collector: &mut Collector) -> Result<bool, Unread> {
    let status = Path::new(STATUS);
    let Some(text) = read_if_any(observer, status)? else { return Ok(false) };
    let (diversions, filters) = (diversions(observer)?, filters(observer)?);
    for DpkgPackage { package, lists, conffiles } in packages(&text) {
        let file = |ending: &str| {
            for name in &lists {
                let path = Path::new(INFO).join(format!("{name}.{ending}"));
                if let Some(bytes) = read_if_any(observer, &path)? {
                    return Ok(bytes);
                }
            }
            Ok(Vec::new())
        };
        let (list, listed_sums) = (file("list")?, file("md5sums")?);
        let sums: HashMap<Vec<u8>, [u8; 16]> = sums(&listed_sums).collect();
        let conffiles: HashMap<Vec<u8>, [u8; 16]> = conffiles.into_iter().collect();
        let name = package.name.clone();
        let number = collector.package(package, status)?;
        for path in list.split(|byte| *byte == b'\n').filter(|path| path.starts_with(b"/")) {
            let (config, sum) = (conffiles.get(path), sums.get(path));
            let entry = entry(number, config.or(sum).copied(), config.is_some());
            let entry = ImageEntry { may_be_missing: filters.exclude(path), ..entry };
            collector.add(diversions.place(path, &name), entry);
        }
    }
    Ok(true)
}

/// What dpkg knows of a path.
fn entry(package: u16, md5: Option<[u8; 16]>, config: bool) -> ImageEntry {
    ImageEntry {
        md5,
        layer: package,
        known: if md5.is_some() { Known::Content } else { Known::Existence },
        config,
        ..ImageEntry::of_root(FileType::Regular, 0)
    }
}

/// What `status` says about the packages, and the version of the directory of their lists: another text means other packages. A mark of a package
/// (`apt-mark hold`) writes `status` anew, and changes neither. `None` on a host without dpkg.
pub(super) fn state(observer: &Observer) -> Result<Option<String>, Unread> {
    let Some(text) = read_if_any(observer, Path::new(STATUS))? else { return Ok(None) };
    let mut digest = Sha256::new();
    for DpkgPackage { package, conffiles, .. } in packages(&text) {
        digest.update(package.text());
        digest.update([0]);
        for (path, sum) in conffiles {
            digest.update(path);
            digest.update([0]);
            digest.update(sum);
        }
    }
    let lists = identity(observer, Path::new(INFO));
    Ok(Some(format!("packages sha256:{}, lists {lists:?}", hex::encode(digest.finalize()))))
}

/// The rules for paths that dpkg does not unpack. None on most hosts.
fn filters(observer: &Observer) -> Result<PathFilters, Unread> {
    let [directory, file] = CONFIGURATION.map(Path::new);
    // dpkg reads files with such names alone.
    let is_read = |name: &OsStr| {
        name.as_bytes().iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte))
    };
    let mut names = names(observer, directory, is_read)?;
    names.push(file.to_owned());
    let mut filters = PathFilters::default();
    for path in names {
        filters.add(&read_if_any(observer, &path)?.unwrap_or_default());
    }
    Ok(filters)
}

/// The paths of all lists. None on a host without dpkg.
fn lists(observer: &Observer) -> Result<Vec<PathBuf>, Unread> {
    names(observer, Path::new(INFO), |name| name.as_bytes().ends_with(b".list"))
}

/// The paths of the wanted names in a directory, in their order. None without the directory.
fn names(
    observer: &Observer,
    directory: &Path,
    is_wanted: impl Fn(&OsStr) -> bool,
) -> Result<Vec<PathBuf>, Unread> {
    let mut names: Vec<OsString> = Vec::new();
    let listed = observer.root().open_at(directory, sys::DIRECTORY).and_then(|opened| {
        sys::each_name(opened, |name| {
            if is_wanted(name) {
                names.push(name.to_owned());
            }
            ControlFlow::Continue(())
        })
    });
    match listed {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(errno) => return Err(Unread::new(directory, errno.desc())),
    }
    names.sort();
    Ok(names.into_iter().map(|name| directory.join(name)).collect())
}

/// The package of a list, whose name is `PACKAGE.list` or `PACKAGE:ARCHITECTURE.list`.
fn package_of(list: &Path) -> String {
    let name = list.file_stem().unwrap_or_default().to_string_lossy();
    name.split(':').next().unwrap_or_default().to_owned()
}

/// Where packages' files go that are diverted. None on most hosts.
fn diversions(observer: &Observer) -> Result<Diversions, Unread> {
    Ok(Diversions::of(&read_if_any(observer, Path::new(DIVERSIONS))?.unwrap_or_default()))
}

fn read_if_any(observer: &Observer, path: &Path) -> Result<Option<Vec<u8>>, Unread> {
    match read(observer, path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Unread::new(path, error)),
    }
}

fn read(observer: &Observer, list: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    Ok(bounded::read_open(observer.root().open_at(list, flags)?, LIST)?)
}
