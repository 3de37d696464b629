//! What an image has at one path.

use crate::observation::FileType;

/// What an image has at one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageEntry {
    /// Its type.
    pub file_type: FileType,
    /// Permission bits with setuid, setgid and sticky.
    pub mode: u32,
    /// Owning user id.
    pub uid: u32,
    /// Owning group id.
    pub gid: u32,
    /// Size in bytes; 0 for everything but a regular file.
    pub size: u64,
    /// SHA-256 of a regular file's content.
    pub sha256: Option<[u8; 32]>,
    /// Extended attributes, sorted by name: the name, and the value as [`crate::xattr::describe`] shows it. The value of
    /// `security.selinux` is the label itself.
    pub xattrs: Vec<(String, String)>,
    /// The target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// Major and minor number of a device.
    pub device: Option<(u32, u32)>,
    /// The layer that last changed it, counted from 0.
    pub layer: u16,
    /// No layer names the directory; it exists because a layer names something in it. Its mode and owner are then not known.
    pub implied: bool,
    /// Paths with the same number above 0 are hard links of one inode.
    pub links: u32,
}
