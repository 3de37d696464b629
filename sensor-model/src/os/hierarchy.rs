//! What is mounted over a hierarchy of the OS: an overlay that makes it writable, merged extensions, a file system in memory.
//!
//! In: a mount table, and a hierarchy. Out: what is mounted over it, in the order of the mounts. Each such mount replaces every inode of the
//! hierarchy at once, so it is one difference and not one for each path below. The kernel's mount options and the mount's source tell what
//! made it. They are there from the first moment, while files in `/run` follow later. Root can give a mount any source.

use super::pristine::PristineEtc;
use crate::host::mountinfo;
use sensor_protocol::names;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, path::Path};

/// The hierarchies of the OS, in systemd's word: the directories over which a host can merge or mount another state of them.
pub const HIERARCHIES: [&str; 4] = ["/", "/etc", "/opt", "/usr"];

/// The mount table in which the host sees its own paths. A container has another view of them.
pub const HOST_MOUNTS: &str = "/proc/1/mountinfo";

/// Most extensions of a hierarchy that a text names.
const SHOWN: usize = 32;

names! {
    /// How `ostree admin unlock` made `/usr` writable.
    pub enum Unlocked {
        /// For this boot.
        Development = "development",
        /// Until the next update.
        Hotfix = "hotfix",
        /// Read-only. A process can make it writable in a mount namespace of its own, as `rpm-ostree apply-live` does.
        Transient = "transient",
    }
}

names! {
    /// A class of extensions.
    pub enum ExtensionClass {
        /// Extensions of `/usr` and `/opt` by `systemd-sysext`.
        System = "sysext",
        /// Extensions of `/etc` by `systemd-confext`.
        Configuration = "confext",
    }
}

impl ExtensionClass {
    /// The file in a merged hierarchy that lists the extensions, one a line.
    pub fn list(self) -> &'static str {
        match self {
            Self::System => ".systemd-sysext/extensions",
            Self::Configuration => ".systemd-confext/confexts",
        }
    }

    /// The directories with extensions, in systemd's order: the first that has a name decides.
    pub fn directories(self) -> &'static [&'static str] {
        match self {
            Self::System => &[
                "/etc/extensions",
                "/run/extensions",
                "/var/lib/extensions",
                "/usr/local/lib/extensions",
                "/usr/lib/extensions",
            ],
            Self::Configuration => {
                &["/run/confexts", "/var/lib/confexts", "/usr/local/lib/confexts", "/usr/lib/confexts"]
            }
        }
    }

    /// Its words in messages.
    pub fn noun(self) -> &'static str {
        match self {
            Self::System => "system extensions",
            Self::Configuration => "configuration extensions",
        }
    }

    fn of_source(source: &[u8]) -> Option<Self> {
        Self::ALL.iter().copied().find(|class| class.as_str().as_bytes() == source)
    }
}

/// What is mounted over a hierarchy.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "by", rename_all = "kebab-case")]
pub enum Cover {
    /// The overlay of `ostree admin unlock`, which `rpm-ostree usroverlay` and `bootc usr-overlay` run.
    Unlock {
        /// For how long.
        state: Unlocked,
    },
    /// Files of another commit, which `rpm-ostree apply-live` put into the running system.
    LiveApply,
    /// Extensions that systemd merged.
    Extensions {
        /// Their class.
        class: ExtensionClass,
        /// Their names, sorted as systemd has them: of two extensions with one path, the later one is visible.
        names: Vec<String>,
        /// Whether the merged hierarchy is writable.
        writable: bool,
    },
    /// An overlay whose changes a reboot discards: `root.transient` or `etc.transient` of ostree or bootc, or `bootc usr-overlay` on a
    /// composefs host.
    Transient {
        /// Whether it is writable now.
        writable: bool,
    },
    /// Another overlay.
    Overlay {
        /// Whether it is writable.
        writable: bool,
    },
    /// A file system in memory.
    Memory {
        /// Its type.
        file_system: String,
    },
}

impl Cover {
    /// What it is, in a few words. Names of extensions may hold control characters.
    pub fn summary(&self) -> String {
        let writable = |is: &bool| if *is { "writable" } else { "read-only" };
        match self {
            Self::Unlock { state } => format!("ostree admin unlock ({})", state.as_str()),
            Self::LiveApply => "rpm-ostree apply-live".to_owned(),
            Self::Extensions { class, names, writable } => {
                let more = if *writable { " (writable)" } else { "" };
                format!("{} {}{more}", class.noun(), list(names))
            }
            Self::Transient { writable: is } => format!("transient overlay ({})", writable(is)),
            Self::Overlay { writable: is } => format!("overlay ({})", writable(is)),
            Self::Memory { file_system } => file_system.clone(),
        }
    }

    /// The sentence for people.
    pub fn text(&self, hierarchy: &Path) -> String {
        let path = hierarchy.display();
        match self {
            Self::Unlock { state: Unlocked::Development } => {
                format!(
                    "{path} is writable until the next boot: an overlay by `ostree admin unlock` is mounted over it (development)"
                )
            }
            Self::Unlock { state: Unlocked::Hotfix } => {
                format!(
                    "{path} is writable until the next update: an overlay by `ostree admin unlock --hotfix` is mounted over it (hotfix)"
                )
            }
            Self::Unlock { state: Unlocked::Transient } => format!(
                "a read-only overlay by `ostree admin unlock --transient` is mounted over {path}, and root can write to it in a mount namespace \
                 of its own (transient)"
            ),
            Self::LiveApply => {
                format!(
                    "rpm-ostree applied another commit to the running {path} (`rpm-ostree apply-live`), until the next boot"
                )
            }
            Self::Extensions { class, names, writable } => {
                let more = if *writable { ", writable" } else { "" };
                format!("{} are merged over {path}{more}: {}", class.noun(), list(names))
            }
            Self::Transient { writable: true } => {
                format!(
                    "{path} is writable and transient: an overlay is mounted over it, and a reboot discards its changes"
                )
            }
            Self::Transient { writable: false } => {
                format!("a read-only overlay is mounted over {path}, and a reboot discards it")
            }
            Self::Overlay { writable: true } => {
                format!("{path} is writable by an overlay that is mounted over it")
            }
            Self::Overlay { writable: false } => format!("an overlay is mounted over {path}"),
            Self::Memory { file_system } => {
                format!("a file system in memory ({file_system}) is mounted over {path}")
            }
        }
    }
}

/// The names in words. Of many names it has the first ones, the number of the others, and a digest of all, so that other names give other words.
pub(crate) fn list(names: &[String]) -> String {
    if names.is_empty() {
        return "without names".to_owned();
    }
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("\"{name}\"")).collect();
    let shown = shown.join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => {
            let digest = hex::encode(Sha256::digest(names.join("\n")));
            format!("{shown} and {more} more (sha256 of all names: {})", &digest[..16])
        }
    }
}

/// What is mounted over a hierarchy by a mount table, the lowest first. Extensions have no names yet: [`names`] reads them from the list in
/// the merged hierarchy.
pub fn covers(table: &[u8], hierarchy: &Path) -> Vec<Cover> {
    mounts_at(table, hierarchy).filter_map(|mount| cover(&mount, hierarchy)).collect()
}

/// Whether the topmost mount at a hierarchy is one that [`covers`] gives. Another mount hides what is below it.
pub fn is_cover_on_top(table: &[u8], hierarchy: &Path) -> bool {
    mounts_at(table, hierarchy).last().is_some_and(|mount| cover(&mount, hierarchy).is_some())
}

/// The mounts at a hierarchy, without the overlay that is `/etc` on hosts of Flatcar. Only the lowest mount can be that one.
fn mounts_at<'a>(table: &'a [u8], hierarchy: &'a Path) -> impl Iterator<Item = mountinfo::Mount<'a>> {
    let mounts = mountinfo::mounts(table).filter(move |mount| mount.point == hierarchy);
    mounts
        .enumerate()
        .filter(|(place, mount)| *place > 0 || !is_etc_of_flatcar(mount))
        .map(|(_, mount)| mount)
}

/// Whether a mount is the overlay that Flatcar's initramfs makes of the shipped and the present `/etc` of one root.
fn is_etc_of_flatcar(mount: &mountinfo::Mount<'_>) -> bool {
    let directory = |option| mount.option(option).map(|path| Path::new(OsStr::from_bytes(path)));
    let (Some(lower), Some(upper)) = (directory("lowerdir"), directory("upperdir")) else { return false };
    let shipped = PristineEtc::Flatcar.directory();
    let is_of_one_root =
        || upper.parent().is_some_and(|root| lower.strip_prefix(root).ok() == shipped.strip_prefix("/").ok());
    mount.file_system == Some(b"overlay")
        && mount.point == Path::new("/etc")
        && upper.ends_with("etc")
        && is_of_one_root()
}

/// The names in the list of a merged hierarchy. All of them: what a left-out extension has would be taken for the image's.
pub fn names(list: &str) -> Vec<String> {
    list.lines().filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// What a mount at a hierarchy is; `None` for the file system of the hierarchy itself, also if it is a disk of its own, or a bind mount.
fn cover(mount: &mountinfo::Mount<'_>, hierarchy: &Path) -> Option<Cover> {
    let file_system = mount.file_system?;
    let is_root = hierarchy == Path::new("/");
    if matches!(file_system, b"tmpfs" | b"ramfs") {
        let file_system = String::from_utf8_lossy(file_system).into_owned();
        // The root of an initramfs, of a network boot, or of a container.
        return (!is_root).then_some(Cover::Memory { file_system });
    }
    if file_system != b"overlay" {
        return None;
    }
    let upper = mount.option("upperdir");
    let source = mount.source.unwrap_or_default();
    let is_mounted_writable = mount.options.split(|byte| *byte == b',').next() == Some(b"rw");
    let writable = upper.is_some() && is_mounted_writable;
    if let Some(class) = ExtensionClass::of_source(source) {
        return Some(Cover::Extensions { class, names: Vec::new(), writable });
    }
    let is_transient = source.starts_with(b"transient")
        || upper.is_some_and(|upper| TRANSIENT.iter().any(|mark| contains(upper, mark)));
    if is_transient {
        return Some(Cover::Transient { writable });
    }
    if is_root {
        // The root of a live system, of a container, or of composefs, which is an overlay without an upper directory.
        return None;
    }
    let upper = upper.unwrap_or_default();
    if contains(upper, HOTFIX) {
        return Some(Cover::Unlock { state: Unlocked::Hotfix });
    }
    let is_unlocked =
        mount.option("lowerdir") == Some(b"usr") || DEVELOPMENT.iter().any(|mark| contains(upper, mark));
    if is_unlocked {
        let state = if is_mounted_writable { Unlocked::Development } else { Unlocked::Transient };
        return Some(Cover::Unlock { state });
    }
    Some(Cover::Overlay { writable })
}

/// Parts of the upper directories of ostree's transient root and `/etc` (`otcore-prepare-root.c`).
const TRANSIENT: [&[u8]; 2] = [b"/run/ostree/.private/root/", b"/run/ostree/transient-etc"];
/// The upper directory of `ostree admin unlock --hotfix` (`ostree-sysroot.c`).
const HOTFIX: &[u8] = b".usr-ovl-upper";
/// Parts of the upper directories of `ostree admin unlock`, of new and old versions.
const DEVELOPMENT: [&[u8]; 2] = [b"usr-transient", b"ostree-unlock-ovl"];

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(hierarchy: &str, mounts: &str) -> Vec<Cover> {
        covers(mounts.as_bytes(), Path::new(hierarchy))
    }

    #[test]
    fn the_overlays_of_ostree_are_told_apart_by_their_options() {
        let deployed = "30 1 8:1 /ostree/deploy/os/deploy/a.0/usr /usr ro - ext4 /dev/sda1 rw\n";
        let on = |options: &str, upper: &str| {
            over(
                "/usr",
                &format!(
                    "{deployed}31 30 0:50 / /usr {options},relatime - overlay overlay {options},lowerdir=usr,upperdir={upper},workdir=w\n"
                ),
            )
        };
        assert_eq!(over("/usr", deployed), []);
        let unlocked = |state| [Cover::Unlock { state }];
        assert_eq!(on("rw", "/proc/self/fd/7/upper"), unlocked(Unlocked::Development));
        assert_eq!(on("ro", "/proc/self/fd/7/upper"), unlocked(Unlocked::Transient));
        assert_eq!(on("rw", ".usr-ovl-upper"), unlocked(Unlocked::Hotfix));
        let old = "31 30 0:50 / /usr rw - overlay overlay rw,lowerdir=/usr,upperdir=/var/tmp/ostree-unlock-ovl.X/upper,workdir=w\n";
        assert_eq!(over("/usr", old), unlocked(Unlocked::Development));
    }

    #[test]
    fn extensions_have_their_class_and_may_be_writable() {
        let merged = "31 30 0:50 / /usr ro,nodev - overlay sysext ro,lowerdir=/run/a:/usr\n\
            32 30 0:51 / /etc rw - overlay confext rw,lowerdir=/run/b:/etc,upperdir=/var/lib/extension-data/etc.local,workdir=w\n";
        let extensions = |class, writable| [Cover::Extensions { class, names: Vec::new(), writable }];
        assert_eq!(over("/usr", merged), extensions(ExtensionClass::System, false));
        assert_eq!(over("/etc", merged), extensions(ExtensionClass::Configuration, true));
        assert_eq!(over("/opt", merged), []);
        assert_eq!(names("a\nb c\n\n"), ["a", "b c"]);
    }

    #[test]
    fn no_number_of_extensions_leaves_one_out_and_a_text_stays_short() {
        let first: Vec<String> = (0..300).map(|number| number.to_string()).collect();
        let merged = |last: &str| names(&format!("{}\n{last}", first.join("\n")));
        assert_eq!(merged("z").len(), 301);
        assert_eq!(merged("z").last().map(String::as_str), Some("z"), "the one that is visible everywhere");
        let words = list(&merged("z"));
        assert!(words.contains("\"31\" and 269 more") && words.len() < 400, "{words}");
        assert_ne!(words, list(&merged("y")), "other extensions");
    }

    #[test]
    fn a_transient_root_is_reported_and_the_root_of_composefs_or_of_a_container_is_not() {
        let root = |source: &str, options: &str| {
            over("/", &format!("1 0 0:40 / / rw - overlay {source} rw,lowerdir=/l{options}\n"))
        };
        let writable = [Cover::Transient { writable: true }];
        assert_eq!(root("composefs", ",upperdir=/run/ostree/.private/root/upper,workdir=w"), writable);
        assert_eq!(root("transient:composefs=ab", ",upperdir=/u,workdir=w"), writable);
        assert_eq!(root("composefs:ab", "::/data"), []);
        assert_eq!(root("overlay", ",upperdir=/var/lib/containers/u,workdir=w"), []);
        assert_eq!(over("/", "1 0 0:2 / / rw - tmpfs rootfs rw\n"), []);
    }

    #[test]
    fn the_overlay_that_is_etc_on_flatcar_is_no_difference_and_one_like_it_on_top_is() {
        let on = |lower: &str, upper: &str, point: &str| {
            format!(
                "40 26 0:34 / {point} rw,noatime shared:3 - overlay overlay rw,lowerdir={lower},upperdir={upper},workdir=/sysroot/.etc-work,redirect_dir=on\n"
            )
        };
        let flatcar = on("/sysroot/usr/share/flatcar/etc", "/sysroot/etc", "/etc");
        assert_eq!(over("/etc", &flatcar), []);
        assert!(!is_cover_on_top(flatcar.as_bytes(), Path::new("/etc")));
        let other = [Cover::Overlay { writable: true }];
        assert_eq!(over("/etc", &format!("{flatcar}{flatcar}")), other);
        for (lower, upper, point) in [
            ("/sysroot/usr/share/flatcar/etc", "/tmp/etc", "/etc"),
            ("/tmp/x:/sysroot/usr/share/flatcar/etc", "/sysroot/etc", "/etc"),
            ("/sysroot/usr/share/flatcar/etc", "/sysroot/etc", "/usr"),
            ("/sysroot/usr/share/flatcar", "/sysroot/etc", "/etc"),
        ] {
            assert_eq!(over(point, &on(lower, upper, point)), other, "{lower} {upper}");
        }
    }

    #[test]
    fn a_bind_mount_over_an_overlay_hides_it() {
        let merged = "31 20 0:50 / /usr ro - overlay sysext ro,lowerdir=/run/a/usr:/usr\n";
        assert!(is_cover_on_top(merged.as_bytes(), Path::new("/usr")));
        let bound = format!("{merged}32 31 8:1 /evil /usr rw - ext4 /dev/sda1 rw\n");
        assert!(!is_cover_on_top(bound.as_bytes(), Path::new("/usr")));
        assert_eq!(over("/usr", &bound).len(), 1, "it is still listed");
    }

    #[test]
    fn any_other_overlay_and_a_file_system_in_memory_are_reported_in_the_order_of_the_mounts() {
        let table = "31 30 0:50 / /etc rw - tmpfs tmpfs rw\n\
            32 31 0:51 / /etc rw - overlay o rw,lowerdir=/etc,upperdir=/tmp/u,workdir=/tmp/w\n\
            33 31 0:52 / /etc/x rw - overlay o rw\n34 1 8:2 / /usr ro - ext4 /dev/sda2 ro\n";
        let memory = Cover::Memory { file_system: "tmpfs".to_owned() };
        assert_eq!(over("/etc", table), [memory, Cover::Overlay { writable: true }]);
        assert_eq!(over("/usr", table), []);
        let transient = "31 30 0:50 / /etc rw - overlay overlay rw,lowerdir=/sysroot/usr/etc,upperdir=/run/ostree/transient-etc.Y/upper,workdir=w\n";
        assert_eq!(over("/etc", transient), [Cover::Transient { writable: true }]);
    }

    #[test]
    fn each_text_names_the_hierarchy_and_what_made_it() {
        let text = |cover: Cover| cover.text(Path::new("/usr"));
        assert_eq!(
            text(Cover::Unlock { state: Unlocked::Development }),
            "/usr is writable until the next boot: an overlay by `ostree admin unlock` is mounted over it (development)"
        );
        let names = vec!["a".to_owned(), "b".to_owned()];
        let extensions = Cover::Extensions { class: ExtensionClass::System, names, writable: false };
        assert_eq!(extensions.summary(), "system extensions \"a\", \"b\"");
        assert_eq!(text(extensions), "system extensions are merged over /usr: \"a\", \"b\"");
    }
}
