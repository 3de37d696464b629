//! The booted deployment of a host whose root is a composefs image, as bootc makes it without ostree.
//!
//! In: the host's mount table and kernel arguments. Out: the deployment's name, which is the fs-verity digest of its root image; whether the
//! root mount shows the image alone, without an upper directory over it; and whether the kernel proves each file of the image. bootc keeps the
//! state of a deployment in a directory of that name.

use super::arguments;
use crate::host::mountinfo;
use std::path::{Path, PathBuf};

/// The directory of the deployments that bootc makes without ostree.
pub const COMPOSEFS_DEPLOYMENTS: &str = "/sysroot/state/deploy";
/// Prefixes of the digest in the source of the root mount. bootc's program in the initial ramdisk sets that source.
const SOURCES: [&str; 2] = ["composefs:", "transient:composefs="];
/// Bytes of a fs-verity digest: SHA-256 or SHA-512.
const DIGEST_BYTES: [usize; 2] = [32, 64];

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

/// A root mount whose files the kernel proves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedRoot {
    /// The number of the mount.
    pub mount: u64,
    /// The fs-verity digest of the image.
    pub digest: Vec<u8>,
}

/// The root mount, if the kernel proves each of its files by the digest of the image; else `None`. In: the mount table, and the line of kernel
/// arguments.
///
/// The image has the fs-verity digest of each file that it keeps elsewhere. With `verity=require` the overlay opens no file without a digest or
/// with another one (Documentation/filesystems/overlayfs.rst, "fs-verity support"). The image itself is read-only as long as it is mounted.
/// Root may have the next boot mount another image under the same digest, since bootc also accepts a name that leads to an image. So the
/// digest identifies the image in one boot only.
pub fn sealed_root(table: &[u8], arguments: &str) -> Option<SealedRoot> {
    let (root, name) = root_image(table)?;
    let is_fixed = root.option("upperdir").is_none() && root.option("verity") == Some(b"require");
    let is_overlay = root.file_system == Some(b"overlay");
    if !is_fixed || !is_overlay || !is_named(&arguments::split(arguments), name) {
        return None;
    }
    let digest = hex::decode(name).ok().filter(|digest| DIGEST_BYTES.contains(&digest.len()))?;
    let mount = str::from_utf8(root.id).ok()?.parse().ok()?;
    Some(SealedRoot { mount, digest })
}

/// Whether the kernel's arguments name the image with this digest. bootc's program in the initial RAM disk mounts the first image that exists, of
/// those that the arguments name. If one of them allows files without fs-verity (`?`), none counts.
fn is_named(words: &[String], digest: &str) -> bool {
    let mut is_found = false;
    for word in words {
        let (value, has_format) =
            match (word.strip_prefix("composefs="), word.strip_prefix("composefs.digest=")) {
                (Some(value), _) => (value, false),
                (None, Some(value)) => (value, true),
                (None, None) => continue,
            };
        if value.starts_with('?') {
            return false;
        }
        let named = if has_format { without_format(value) } else { Some(value) };
        is_found |= named == Some(digest);
    }
    is_found
}

/// The digest behind the format in a value of `composefs.digest=`: `v1-sha512-12:DIGEST`. The first versions had no format. `None` if the format is
/// another one.
fn without_format(value: &str) -> Option<&str> {
    let Some((format, digest)) = value.split_once(':') else { return Some(value) };
    let bytes = match format {
        "v1-sha256-12" | "v2-sha256-12" => 32,
        "v1-sha512-12" | "v2-sha512-12" => 64,
        _ => return None,
    };
    (digest.len() == 2 * bytes).then_some(digest)
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

    #[test]
    fn only_a_root_that_requires_the_digest_of_the_booted_image_is_sealed() {
        let digest = "0a".repeat(32);
        let table = |source: &str, options: &str| format!("24 1 0:22 / / ro - overlay {source} {options}\n");
        let sealed =
            |table: &str, arguments: &str| sealed_root(table.as_bytes(), &format!("ro {arguments} quiet\n"));
        let source = format!("composefs:{digest}");
        let usual = table(&source, "ro,lowerdir+=/a,datadir+=/b,verity=require");
        let booted = format!("composefs={digest}");
        assert_eq!(sealed(&usual, &booted), Some(SealedRoot { mount: 24, digest: vec![0x0a; 32] }));

        for argument in [
            format!("composefs.digest={digest}"),
            format!("composefs.digest=v1-sha256-12:{digest}"),
            format!("composefs.digest=v1-sha256-12:{} {booted}", "0b".repeat(32)),
        ] {
            assert!(sealed(&usual, &argument).is_some(), "{argument}");
        }
        for argument in [
            format!("composefs.digest=?v1-sha256-12:{digest}"),
            format!("composefs.digest=v1-sha512-12:{digest}"),
            format!("composefs.digest=v3-sha256-12:{digest}"),
            format!("composefs.digest=v1-sha256-12:{}", "0b".repeat(32)),
            format!("{booted} composefs.digest=?{}", "0b".repeat(32)),
        ] {
            assert_eq!(sealed(&usual, &argument), None, "{argument}");
        }
        assert_eq!(sealed(&usual, ""), None, "nothing says that the host booted this image");
        assert_eq!(sealed(&usual, &format!("composefs={}", "0b".repeat(32))), None, "it booted another");
        assert_eq!(
            sealed(&usual, &format!("composefs=?{digest}")),
            None,
            "it accepts files without a digest"
        );
        let insecure = table(&format!("composefs:?{digest}"), "ro,lowerdir+=/a,datadir+=/b,verity=require");
        assert_eq!(sealed(&insecure, &format!("composefs=?{digest}")), None);
        for options in [
            "ro,lowerdir+=/a,datadir+=/b",
            "ro,lowerdir+=/a,datadir+=/b,verity=on",
            "rw,lowerdir+=/a,upperdir=/c,workdir=/d,verity=require",
        ] {
            assert_eq!(sealed(&table(&source, options), &booted), None, "{options}");
        }
        let other = usual.replace("overlay", "fuse.overlay");
        assert_eq!(sealed(&other, &booted), None, "a server answers for its files");
        let covered = format!("{usual}25 24 0:23 / / ro - overlay other ro\n");
        assert_eq!(sealed(&covered, &booted), None, "another root hides it");
        let short = usual.replace(&digest, "0a0a");
        assert_eq!(sealed(&short, "composefs=0a0a"), None, "no digest");
    }
}
