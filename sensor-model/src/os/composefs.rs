//! The booted deployment of a host whose root is a composefs image, as bootc makes it without ostree.
//!
//! In: the host's mount table. Out: the deployment's name, which is the fs-verity digest of its root image. bootc keeps the state of a
//! deployment in a directory of that name. And whether the root mount shows the image alone, or has an upper directory over it.

use crate::host::mountinfo;
use std::path::{Path, PathBuf};

/// The directory of the deployments that bootc makes without ostree.
pub const COMPOSEFS_DEPLOYMENTS: &str = "/sysroot/state/deploy";
/// Prefixes of the digest in the source of the root mount. bootc's program in the initial ramdisk sets that source.
const SOURCES: [&str; 2] = ["composefs:", "transient:composefs="];

/// The origin file of the booted deployment; `None` if the root is no composefs image.
pub fn origin_of_root(table: &[u8]) -> Option<PathBuf> {
    let (_, digest) = root_image(table)?;
    // `?` allows files without fs-verity.
    let digest = digest.trim_start_matches('?');
    let is_digest = !digest.is_empty() && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_digest.then(|| Path::new(COMPOSEFS_DEPLOYMENTS).join(digest).join(format!("{digest}.origin")))
}

/// Whether the root mount is a composefs image without an upper directory, so that a process can change nothing in it.
pub fn has_root_image(table: &[u8]) -> bool {
    root_image(table).is_some_and(|(root, _)| root.option("upperdir").is_none())
}

/// The root mount and what follows the prefix in its source, if that is a composefs image.
fn root_image(table: &[u8]) -> Option<(mountinfo::Mount<'_>, &str)> {
    // A later mount at the same point hides an earlier one.
    let root = mountinfo::mounts(table).filter(|mount| mount.point == Path::new("/")).last()?;
    let source = str::from_utf8(root.source?).ok()?;
    let digest = SOURCES.iter().find_map(|start| source.strip_prefix(start))?;
    Some((root, digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(source: &str) -> Option<String> {
        let table = format!(
            "1 1 0:1 / / rw - rootfs none rw\n24 1 0:22 / / ro,relatime shared:1 - overlay {source} ro\n\
             25 24 0:23 / /proc rw - proc composefs:no rw\n"
        );
        origin_of_root(table.as_bytes()).map(|path| path.display().to_string())
    }

    #[test]
    fn the_source_of_the_root_mount_names_the_deployment() {
        let path = Some("/sysroot/state/deploy/0a1b/0a1b.origin".to_owned());
        for source in ["composefs:0a1b", "composefs:?0a1b", "transient:composefs=0a1b"] {
            assert_eq!(origin(source), path, "{source}");
        }
        assert!(has_root_image(b"24 1 0:22 / / ro - overlay composefs:0a1b ro,lowerdir+=/a,datadir+=/b\n"));
        let transient =
            b"24 1 0:22 / / rw - overlay transient:composefs=0a1b rw,lowerdir=/a,upperdir=/b,workdir=/c\n";
        assert!(!has_root_image(transient), "its files can be changed");
        for source in ["overlay", "composefs:", "composefs:../x", "/dev/vda1", "composefs"] {
            assert_eq!(origin(source), None, "{source}");
        }
    }
}
