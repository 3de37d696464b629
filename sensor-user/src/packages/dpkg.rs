//! dpkg's lists of files, and its sums.
//!
//! In: `/var/lib/dpkg/info/*.list`: one absolute path a line, of a file or a directory; `*.md5sums`, `status`, `diversions`. Out: the
//! paths below certain directories, or what each package has at its paths.

use super::{collector::Collector, unread::Unread};
use crate::{bounded, observation::Observer, sys};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use sensor_model::dpkg::{Diversions, DpkgPackage, packages, sums};
use sensor_model::image::{ImageEntry, Known};
use sensor_model::observation::FileType;
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

/// The paths of files one of which is another one after each change of a package or a diversion.
pub(super) fn paths() -> impl Iterator<Item = &'static Path> {
    [STATUS, DIVERSIONS].into_iter().map(Path::new)
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
    let diversions = diversions(observer)?;
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
            collector.add(diversions.place(path, &name), entry);
        }
    }
    Ok(true)
}

/// What dpkg knows of a path.
fn entry(package: u16, md5: Option<[u8; 16]>, config: bool) -> ImageEntry {
    ImageEntry {
        file_type: FileType::Regular,
        mode: 0,
        uid: 0,
        gid: 0,
        size: 0,
        sha256: None,
        md5,
        ostree: None,
        xattrs: Vec::new(),
        target: None,
        device: None,
        layer: package,
        known: if md5.is_some() { Known::Content } else { Known::Existence },
        config,
        may_be_missing: false,
        links: 0,
    }
}

/// The paths of all lists. None on a host without dpkg.
fn lists(observer: &Observer) -> Result<Vec<PathBuf>, Unread> {
    let mut names: Vec<OsString> = Vec::new();
    let listed = observer.root().open_at(Path::new(INFO), sys::DIRECTORY).and_then(|directory| {
        sys::each_name(directory, |name| {
            if name.as_bytes().ends_with(b".list") {
                names.push(name.to_owned());
            }
            ControlFlow::Continue(())
        })
    });
    match listed {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(errno) => return Err(Unread::new(Path::new(INFO), errno.desc())),
    }
    names.sort();
    Ok(names.into_iter().map(|name| Path::new(INFO).join(name)).collect())
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
