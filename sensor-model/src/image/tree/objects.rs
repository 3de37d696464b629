//! The extended attributes of an encapsulated ostree commit.
//!
//! In: the tree of an image whose base is such a commit. Out: the same tree, with the attributes of the commit's files. Each file is an object
//! below `/sysroot/ostree/repo/objects`, `AB/CD….file`, and each of its paths is a hard link to the object. The attributes are another file there,
//! with `.file-xattrs` at the end of its name, and `AB/CD….file-xattrs-link` is a hard link to it. An object without such a link has none.
//! Source: the format of ostree-ext, `tar/export.rs`.

use super::{ImageTree, InodeNumber, ROOT};
use crate::xattr;
use std::collections::BTreeMap;

/// Where the objects are.
const OBJECTS: [&[u8]; 4] = [b"sysroot", b"ostree", b"repo", b"objects"];
/// How the names of objects with attributes end.
const ATTRIBUTES: &[u8] = b".file-xattrs";
/// How the names of the links to them end.
const LINK: &[u8] = b".file-xattrs-link";
/// Most bytes of an object with attributes. The kernel allows 64 KiB for one value.
const LIMIT: usize = 256 << 10;

/// The content of an object with attributes, while it is read.
#[derive(Debug, Default)]
pub(in crate::image) struct AttributesObject(Vec<u8>);

impl AttributesObject {
    /// Begins one, if a path is that of such an object.
    pub(in crate::image) fn of(path: &[u8]) -> Option<Self> {
        let mut names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
        let is_below = OBJECTS.iter().all(|name| names.next() == Some(*name));
        (is_below && path.ends_with(ATTRIBUTES)).then(Self::default)
    }

    /// Adds bytes. Those beyond the limit are dropped, so that the object has no form.
    pub(in crate::image) fn add(&mut self, bytes: &[u8]) {
        let room = (LIMIT + 1).saturating_sub(self.0.len());
        self.0.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// Attributes that are not known, so that nothing is compared with them.
fn unknown() -> Box<[(String, String)]> {
    [(xattr::CAPABILITY.to_owned(), xattr::UNKNOWN.to_owned())].into()
}

impl ImageTree {
    /// Keeps the content of an object with attributes, which counts as metadata.
    pub(in crate::image) fn keep_attributes(&mut self, inode: InodeNumber, object: AttributesObject) {
        self.metadata += object.0.len() as u64;
        self.attributes.insert(inode.0, object.0.into());
    }

    /// Gives the files of the encapsulated commit their attributes. `parse` reads an object: each name and value, in the form of an entry; `None`
    /// if it has another form. Then the file's attributes are unknown, and so they are beyond the limits of the tree. Gives whether the image has objects with attributes.
    pub fn add_attributes(&mut self, parse: impl Fn(&[u8]) -> Option<Vec<(String, String)>>) -> bool {
        let objects = OBJECTS.iter().try_fold(ROOT, |node, name| self.child(node, name));
        let Some(objects) = objects else { return false };
        let mut links = Vec::new();
        for directory in self.nodes[objects as usize].children.values() {
            let children = &self.nodes[*directory as usize].children;
            for (name, link) in children {
                let Some(object) = name.strip_suffix(LINK) else { continue };
                if let Some(file) = children.get([object, b".file"].concat().as_slice()) {
                    links.push((self.nodes[*file as usize].inode, self.nodes[*link as usize].inode));
                }
            }
        }
        let mut known: BTreeMap<u32, Box<[(String, String)]>> = BTreeMap::new();
        for (file, object) in &links {
            let attributes = known.entry(*object).or_insert_with(|| {
                let bytes = self.attributes.get(object).filter(|bytes| bytes.len() <= LIMIT);
                bytes.and_then(|bytes| parse(bytes)).map_or_else(unknown, Into::into)
            });
            let inode = &mut self.inodes[*file as usize];
            // A layer above the commit may name the object, and give it other attributes.
            if !inode.xattrs.is_empty() {
                continue;
            }
            // Many files may have one object, and each gets its own copy.
            let bytes: usize = attributes.iter().map(|(name, value)| name.len() + value.len()).sum();
            let whole = self.metadata.saturating_add(bytes as u64);
            if bytes > self.limits.xattrs || whole > self.limits.metadata {
                inode.xattrs = unknown();
            } else {
                self.metadata = whole;
                inode.xattrs.clone_from(attributes);
            }
        }
        !links.is_empty()
    }
}
