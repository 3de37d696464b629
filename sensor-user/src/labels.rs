//! SELinux labels, as the host's policy gives them.
//!
//! In: a host with SELinux, and paths. Out: the label that `restorecon` would give the object at each path, with links followed. A path
//! has no label if the policy gives none, or its file system keeps none. Without SELinux it reads nothing. It reads the policy at each
//! call, and keeps only the labels and the versions of the policy's files.

mod host_facts;

use crate::{
    bounded,
    desired::LabelVersion,
    observation::Observer,
    sys::{FileVersion, version_of},
};
use nix::fcntl::OFlag;
use rustix::fs::{AtFlags, StatxFlags, statx};
use sensor_model::{
    drift_policy::{DriftPolicy, LabelComparison},
    expectation::{Expectation, Expected},
    host::mountinfo,
    selinux::{FileContexts, ObjectKind, Texts, customizable},
};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The file that names the host's policy.
const CONFIG: &str = "/etc/selinux/config";

/// The policy of a host whose config names none.
const POLICY: &str = "targeted";

/// The files of a policy that it reads, below the policy's `contexts` directory.
const PARTS: [&str; 6] = [
    "files/file_contexts",
    "files/file_contexts.homedirs",
    "files/file_contexts.local",
    "files/file_contexts.subs_dist",
    "files/file_contexts.subs",
    "customizable_types",
];

/// Most bytes of one file of a policy. The largest real ones have half a megabyte.
const LARGEST: u64 = 16 << 20;

/// The mount table: that of the host, or of this process if the host's root has no `/proc`.
const MOUNTS: &str = "/proc/self/mountinfo";

/// A program without a label of its own in any policy.
const PROGRAM: &str = "/usr/bin/holdfast";

/// Flags of a handle for metadata only.
const HANDLE: OFlag = OFlag::O_PATH.union(OFlag::O_CLOEXEC);

/// The version of the host's policy now.
pub(crate) fn version(observer: &Observer) -> LabelVersion {
    if !observer.has_selinux() {
        return LabelVersion::default();
    }
    let files =
        std::iter::once(CONFIG.to_owned()).chain(name(observer).into_iter().flat_map(|name| parts(&name)));
    LabelVersion(files.map(|path| identity(observer, &path)).collect())
}

fn identity(observer: &Observer, path: &str) -> Option<FileVersion> {
    let file = observer.root().open_at(Path::new(path), HANDLE).ok()?;
    let stat = nix::sys::stat::fstat(&file).ok()?;
    Some(version_of(&stat))
}

/// The policy of one host.
#[derive(Debug)]
pub(crate) struct Policy {
    contexts: FileContexts,
    /// Types that the policy calls customizable: `restorecon` leaves them.
    pub(crate) customizable: BTreeSet<String>,
}

impl Policy {
    /// Reads the host's policy; `None` if the host has no SELinux, or a part of the policy cannot be read.
    pub(crate) fn read(observer: &Observer) -> Option<Self> {
        if !observer.has_selinux() {
            return None;
        }
        let policy = name(observer)?;
        // An unreadable part may change the label of any path, so then no part is used.
        let texts: Vec<String> =
            parts(&policy).iter().map(|path| text(observer, path)).collect::<Option<_>>()?;
        let [main, homes, local, dist, own, types] = &texts[..] else { return None };
        let contexts = FileContexts::parse(&Texts {
            policy: main,
            homes,
            local,
            substitutions_of_policy: dist,
            substitutions: own,
        });
        if contexts.unusable() > 0 {
            tracing::warn!(
                lines = contexts.unusable(),
                policy,
                "Lines of file_contexts cannot be used: Holdfast compares no label of the paths that they may match."
            );
        }
        Some(Self { contexts, customizable: customizable(types) })
    }

    /// The labels for existing or future objects at these paths of the host, in their order.
    pub(crate) fn labels(&self, observer: &Observer, of: &[(&Path, ObjectKind)]) -> Vec<Option<&str>> {
        let mounts = LabelledMounts::read(observer);
        let mut directories: HashMap<&Path, Option<Landing>> = HashMap::new();
        let (mut places, mut asked) = (Vec::new(), Vec::new());
        for (place, (path, kind)) in of.iter().enumerate() {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
            let landing = directories.entry(parent).or_insert_with(|| mounts.landing(observer, parent));
            let Some(landing) = landing else { continue };
            // Another file system may be mounted on the directory.
            let own = if *kind == ObjectKind::Directory { mounts.keeps_at(observer, path) } else { None };
            if own.unwrap_or(landing.keeps) {
                places.push(place);
                asked.push((landing.real.join(name), *kind));
            }
        }
        let asked: Vec<(&Path, ObjectKind)> =
            asked.iter().map(|(path, kind)| (path.as_path(), *kind)).collect();
        let mut labels = vec![None; of.len()];
        for (place, label) in places.into_iter().zip(self.contexts.labels(&asked)) {
            labels[place] = label;
        }
        labels
    }
}

/// The label of a host's programs; `None` without SELinux.
pub(crate) fn of_programs(observer: &Observer) -> Option<String> {
    let policy = Policy::read(observer)?;
    let label = policy.labels(observer, &[(Path::new(PROGRAM), ObjectKind::File)]).pop()?;
    label.map(str::to_owned)
}

/// Sets the label of each expectation to the one of the host's policy for its path. There is none if the policy has none, or the drift
/// policy ignores labels there. It gives the customizable types, which match any expected type.
pub(crate) fn expect(
    expectations: &mut [Expectation],
    drift: &DriftPolicy,
    observer: &Observer,
) -> BTreeSet<String> {
    for expectation in &mut *expectations {
        expectation.label = None;
    }
    let Some(policy) = Policy::read(observer) else { return BTreeSet::new() };
    label(&policy, expectations, drift, observer);
    policy.customizable
}

/// Sets the labels of expectations that come one after the other. The policy is read once.
pub(crate) struct Labels<'a> {
    policy: Option<Policy>,
    drift: &'a DriftPolicy,
    observer: &'a Observer,
}

impl<'a> Labels<'a> {
    /// Reads the host's SELinux policy, if it has one.
    pub(crate) fn read(drift: &'a DriftPolicy, observer: &'a Observer) -> Self {
        Self { policy: Policy::read(observer), drift, observer }
    }

    /// Sets the label of an expectation.
    pub(crate) fn set(&self, expectation: &mut Expectation) {
        if let Some(policy) = &self.policy {
            label(policy, std::slice::from_mut(expectation), self.drift, self.observer);
        }
    }
}

fn label(policy: &Policy, expectations: &mut [Expectation], drift: &DriftPolicy, observer: &Observer) {
    let wanted: Vec<(usize, Arc<Path>, ObjectKind)> = expectations
        .iter()
        .enumerate()
        .filter(|(_, one)| drift.decide_about(one, None).labels == LabelComparison::Compare)
        .filter_map(|(place, one)| Some((place, one.thing.path(), kind(&one.expected)?)))
        .collect();
    let asked: Vec<(&Path, ObjectKind)> = wanted.iter().map(|(_, path, kind)| (&**path, *kind)).collect();
    // Thousands of files share a few labels.
    let mut texts: HashMap<&str, Arc<str>> = HashMap::new();
    for ((place, ..), label) in wanted.iter().zip(policy.labels(observer, &asked)) {
        expectations[*place].label =
            label.map(|label| Arc::clone(texts.entry(label).or_insert_with(|| label.into())));
    }
}

/// The kind of the expected object; `None` for a thing that is no object, and for a hard link, which has its target's label.
fn kind(expected: &Expected) -> Option<ObjectKind> {
    match expected {
        Expected::File(_) | Expected::AuthorizedKeys(_) => Some(ObjectKind::File),
        Expected::Directory(_) => Some(ObjectKind::Directory),
        Expected::Link(link) if !link.hard => Some(ObjectKind::Link),
        _ => None,
    }
}

/// The directory that a path leads to.
#[derive(Debug)]
struct Landing {
    /// The path with links followed in its existing part.
    real: PathBuf,
    /// Whether its file system keeps labels.
    keeps: bool,
}

/// The numbers of the mounts whose file systems keep labels.
#[derive(Debug)]
struct LabelledMounts(HashSet<u64>);

impl LabelledMounts {
    fn read(observer: &Observer) -> Self {
        let of_host = observer.root().open_at(Path::new(MOUNTS), OFlag::O_RDONLY | OFlag::O_CLOEXEC);
        let of_host = of_host.ok().and_then(|file| read(file).ok());
        let table =
            of_host.or_else(|| bounded::read(Path::new(MOUNTS), bounded::TABLE).ok()).unwrap_or_default();
        // A mount with one label for all objects has the option `context` instead.
        let labelled = mountinfo::mounts(&table).filter(|mount| mount.has_option("seclabel"));
        Self(labelled.filter_map(|mount| std::str::from_utf8(mount.id).ok()?.parse().ok()).collect())
    }

    /// The place of an existing or future directory: missing ones will be created in the nearest existing one above. `None` if the path
    /// has a link that is not followed.
    fn landing(&self, observer: &Observer, directory: &Path) -> Option<Landing> {
        for above in directory.ancestors() {
            match observer.root().walk(above).end {
                Ok((handle, real)) => {
                    let missing = directory.strip_prefix(above).ok()?;
                    let real = if missing.as_os_str().is_empty() { real } else { real.join(missing) };
                    return Some(Landing { real, keeps: self.keeps(&handle) });
                }
                Err(nix::errno::Errno::ENOENT | nix::errno::Errno::ENOTDIR) => {}
                Err(_) => return None,
            }
        }
        None
    }

    /// Whether the file system of an existing object keeps labels; `None` if the object does not exist.
    fn keeps_at(&self, observer: &Observer, path: &Path) -> Option<bool> {
        let handle = observer.root().open_at(path, HANDLE | OFlag::O_NOFOLLOW).ok()?;
        Some(self.keeps(&handle))
    }

    fn keeps(&self, handle: &OwnedFd) -> bool {
        let stat = statx(handle, "", AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT, StatxFlags::MNT_ID);
        stat.is_ok_and(|stat| self.0.contains(&stat.stx_mnt_id))
    }
}

/// The name of the host's policy; `None` if the config cannot be read.
fn name(observer: &Observer) -> Option<String> {
    let config = text(observer, CONFIG)?;
    let named = config.lines().find_map(|line| line.trim().strip_prefix("SELINUXTYPE="));
    let named = named.map(str::trim).filter(|name| !name.is_empty() && !name.contains('/'));
    Some(named.unwrap_or(POLICY).to_owned())
}

fn parts(policy: &str) -> [String; 6] {
    PARTS.map(|part| format!("/etc/selinux/{policy}/contexts/{part}"))
}

/// The text of a file of the host. It is empty if the file does not exist, as most optional files of a policy. `None` if the file
/// cannot be read.
fn text(observer: &Observer, path: &str) -> Option<String> {
    let read = match observer.root().open_at(Path::new(path), OFlag::O_RDONLY | OFlag::O_NONBLOCK) {
        Ok(file) => read(file),
        Err(nix::errno::Errno::ENOENT) => Ok(Vec::new()),
        Err(errno) => Err(errno.into()),
    };
    match read {
        Ok(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) => {
            tracing::warn!(path, %error, "Cannot read a file of the SELinux policy: Holdfast neither compares nor sets labels.");
            None
        }
    }
}

fn read(file: OwnedFd) -> io::Result<Vec<u8>> {
    Ok(bounded::read_open(file, LARGEST)?)
}

#[cfg(test)]
#[path = "labels_tests.rs"]
mod tests;
