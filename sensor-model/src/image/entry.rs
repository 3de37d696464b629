//! What an image, or a package, has at one path.

use crate::observation::FileType;
use sensor_protocol::names;

names! {
    /// How much the source of an entry says about its path. Only that is compared.
    pub enum Known {
        /// Type, content, mode, owner, and attributes as far as the image has them.
        All = "all",
        /// Type, and content of a file or target of a link: a directory that no layer names, or a file of a package of dpkg that did not have the
        /// package's MD5 when the index was made.
        Content = "type and content",
        /// That the path exists: a name in a package's list that has no checksum there.
        Existence = "existence",
        /// That the path may exist: a package owns the name, and creates nothing there.
        Name = "name",
    }
}

impl Known {
    /// Whether mode and owner are known.
    pub fn has_metadata(self) -> bool {
        self == Self::All
    }

    /// Whether the type is known.
    pub fn has_type(self) -> bool {
        matches!(self, Self::All | Self::Content)
    }
}

impl ImageEntry {
    /// An empty object of root's, of which all is known. `mode` may have the bits of a type.
    pub const fn of_root(file_type: FileType, mode: u32) -> Self {
        Self {
            file_type,
            mode: mode & 0o7777,
            uid: 0,
            gid: 0,
            size: 0,
            sha256: None,
            md5: None,
            ostree: None,
            xattrs: Vec::new(),
            target: None,
            device: None,
            layer: 0,
            known: Known::All,
            config: false,
            may_be_missing: false,
            links: 0,
        }
    }

    /// Whether it is a regular file, as far as the source knows the type.
    pub fn is_file(&self) -> bool {
        self.known.has_type() && self.file_type == FileType::Regular
    }
}

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
    /// MD5 of a regular file's content, where a package has no better digest. With a SHA-256 beside it, size, SHA-256, mode, owner and capabilities
    /// are those of the file that had the MD5 when the index was made. Without a SHA-256 the size is not known.
    pub md5: Option<[u8; 16]>,
    /// Checksum of the object that an ostree commit has there, if the repository's object is damaged. It covers type, owner, mode, attributes,
    /// target and content, so nothing else of the path is known.
    pub ostree: Option<[u8; 32]>,
    /// Extended attributes, sorted by name: the name, and the value as [`crate::xattr::describe`] shows it. The value of
    /// `security.selinux` is the label itself.
    pub xattrs: Vec<(String, String)>,
    /// The target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// Major and minor number of a device.
    pub device: Option<(u32, u32)>,
    /// The layer that last changed it, or the package that owns it, counted from 0.
    pub layer: u16,
    /// How much of this is known.
    pub known: Known,
    /// A configuration file of a package, which the package expects an admin to change.
    pub config: bool,
    /// The package accepts that the path is missing. What is there is compared.
    pub may_be_missing: bool,
    /// Paths with the same number above 0 are hard links of one inode.
    pub links: u32,
}
