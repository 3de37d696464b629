//! The deployment of ostree whose tree is mounted.
//!
//! In: the host's mount table. Out: the deployment's directory. If the root is a composefs image, ostree mounts the deployment's own `etc` at
//! `/etc`: at a boot before the root is switched, and for a soft reboot before systemd switches to the next root (`otcore_mount_etc`). So this
//! mount changes with the root. The kernel's command line does not.

use crate::host::mountinfo::{self, unescape};
use std::{
    array,
    ffi::OsString,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

/// The directory of ostree's deployments, with one directory for each OS.
pub const DEPLOYMENTS: &str = "/ostree/deploy";

/// The directory of the deployment whose `etc` is mounted at `/etc`; `None` if something else is, such as the overlay of a transient `/etc`.
pub fn deployment_of_etc(table: &[u8]) -> Option<PathBuf> {
    let found: Vec<_> = mountinfo::mounts(table).filter(|mount| mount.point == Path::new("/etc")).collect();
    // Extensions and other mounts may cover it. The parent of each of these is another mount at `/etc`.
    let lowest = found.iter().find(|mount| !found.iter().any(|below| below.id == mount.parent))?;
    // The path is that in the file system, so the name of a subvolume may come first.
    let mut names = lowest.root.rsplit(|byte| *byte == b'/');
    let names: [Option<&[u8]>; 6] = array::from_fn(|_| names.next());
    let [Some(b"etc"), Some(deployment), Some(b"deploy"), Some(os), Some(b"deploy"), Some(b"ostree")] = names
    else {
        return None;
    };
    let name = |text: &[u8]| OsString::from_vec(unescape(text));
    Some(Path::new(DEPLOYMENTS).join(name(os)).join("deploy").join(name(deployment)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "30 1 0:30 / / ro - overlay composefs ro,lowerdir+=/l,datadir+=/d\n";

    fn found(rest: &str) -> Option<String> {
        let table = format!("{ROOT}{rest}");
        deployment_of_etc(table.as_bytes()).map(|path| path.display().to_string())
    }

    #[test]
    fn the_deployment_whose_etc_ostree_mounted_is_found_below_all_other_mounts_at_etc() {
        let etc = |root: &str| format!("31 30 253:4 {root} /etc rw,relatime shared:2 - xfs /dev/vda4 rw\n");
        let expected = Some("/ostree/deploy/os/deploy/b.0".to_owned());
        for prefix in ["", "/root", "/sysroot"] {
            assert_eq!(
                found(&etc(&format!("{prefix}/ostree/deploy/os/deploy/b.0/etc"))),
                expected,
                "{prefix}"
            );
        }
        let lowest = etc("/ostree/deploy/os/deploy/b.0/etc");
        // Extensions of `/etc`, and a bind mount over them. The table need not have them in this order.
        let covers = "40 31 0:50 / /etc ro - overlay confext ro,lowerdir=/a:/etc\n\
            41 40 253:4 /ostree/deploy/os/deploy/c.0/etc /etc rw - xfs /dev/vda4 rw\n";
        for table in [format!("{lowest}{covers}"), format!("{covers}{lowest}")] {
            assert_eq!(found(&table), expected, "{table}");
        }
        // A container's mounts below `/etc`, and those of the next root.
        let others = "50 30 253:4 /ostree/deploy/os/deploy/c.0/etc /run/nextroot/etc rw - xfs /dev/vda4 rw\n\
            51 31 253:4 /var/lib/x/hosts /etc/hosts rw - xfs /dev/vda4 rw\n";
        assert_eq!(found(&format!("{others}{lowest}")), expected);
        assert_eq!(found(others), None);
    }

    #[test]
    fn another_mount_at_etc_names_no_deployment() {
        for mount in [
            "0:45 / /etc rw - overlay overlay rw,lowerdir=/sysroot.tmp/usr/etc,upperdir=/u,workdir=/w",
            "0:45 / /etc rw - overlay overlay rw,lowerdir=/usr/share/flatcar/etc,upperdir=/u,workdir=/w",
            "0:46 / /etc rw - tmpfs tmpfs rw",
            "253:4 /ostree/deploy/os/deploy/b.0/etc//deleted /etc rw - xfs /dev/vda4 rw",
            "253:4 /ostree/deploy/os/deploy/b.0/usr/etc /etc rw - xfs /dev/vda4 rw",
            "253:4 /deploy/os/deploy/b.0/etc /etc rw - xfs /dev/vda4 rw",
        ] {
            assert_eq!(found(&format!("31 30 {mount}\n")), None, "{mount}");
        }
        assert_eq!(found(""), None);
    }
}
