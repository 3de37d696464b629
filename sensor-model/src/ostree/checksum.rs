//! The checksum of a file or a symbolic link in a repository.

use super::{Checksum, variant::close};
use sha2::{Digest as _, Sha256};
use std::{ffi::OsString, os::unix::ffi::OsStringExt as _};

/// An extended attribute.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Xattr {
    /// Its name.
    pub name: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}

/// The attributes in the order in which ostree hashes them: that of their names.
pub fn sorted_xattrs(attributes: Vec<(OsString, Vec<u8>)>) -> Vec<Xattr> {
    let named = attributes.into_iter().map(|(name, value)| Xattr { name: name.into_vec(), value });
    let mut xattrs: Vec<Xattr> = named.collect();
    xattrs.sort();
    xattrs
}

/// What ostree hashes of a file before its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHeader<'a> {
    /// Owning user id.
    pub uid: u32,
    /// Owning group id.
    pub gid: u32,
    /// Type and permission bits.
    pub mode: u32,
    /// The target of a symbolic link; empty for a file.
    pub target: &'a [u8],
    /// All extended attributes, sorted by name.
    pub xattrs: &'a [Xattr],
}

impl FileHeader<'_> {
    /// Begins the checksum. The caller adds the content of a file; a symbolic link has none.
    pub fn begin(&self) -> Sha256 {
        let header = self.bytes();
        let mut digest = Sha256::new();
        // The header follows its length, at the next multiple of eight bytes.
        digest.update(u32::try_from(header.len()).unwrap_or(u32::MAX).to_be_bytes());
        digest.update([0; 4]);
        digest.update(&header);
        digest
    }

    /// The checksum of a symbolic link.
    pub fn of_link(&self) -> Checksum {
        self.begin().finalize().into()
    }

    /// `(uuuusa(ayay))`: user, group, mode, device number, target, attributes. Numbers are big-endian.
    fn bytes(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for number in [self.uid, self.gid, self.mode, 0] {
            body.extend_from_slice(&number.to_be_bytes());
        }
        body.extend_from_slice(self.target);
        body.push(0);
        let target = body.len();
        let mut attributes = Vec::new();
        let mut attribute_ends = Vec::new();
        for xattr in self.xattrs {
            let mut element = xattr.name.clone();
            element.push(0);
            let name = element.len();
            element.extend_from_slice(&xattr.value);
            close(&mut element, &[name]);
            attributes.extend_from_slice(&element);
            attribute_ends.push(attributes.len());
        }
        close(&mut attributes, &attribute_ends);
        body.extend_from_slice(&attributes);
        close(&mut body, &[target]);
        body
    }
}
