//! The root directory that layers make together.
//!
//! In: the entries of each layer, in their order. Out: one entry for each path. Links on the way to an entry are followed as in a
//! root directory of its own. A whiteout removes what lower layers made, and never what its own layer made, in whatever order
//! the layer has them.

mod entries;
mod objects;
mod way;

use super::{
    error::{EntryFault, LayerError, lossy},
    limits::ImageLimits,
};
use crate::observation::FileType;
pub(super) use objects::AttributesObject;
use std::collections::{BTreeMap, VecDeque};
use way::{ResolveError, clean};

/// Most links on the way to one entry.
const MOST_LINKS: usize = 255;
/// The beginning of the name of a whiteout.
const WHITEOUT: &[u8] = b".wh.";
/// The whiteout that empties its directory.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// The root directory.
const ROOT: u32 = 0;

/// What an entry of a layer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EntryKind {
    File,
    Directory,
    Symlink(Vec<u8>),
    HardLink(Vec<u8>),
    Device(FileType, u32, u32),
    Fifo,
}

/// One entry of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LayerEntry {
    pub(super) path: Vec<u8>,
    pub(super) kind: EntryKind,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) xattrs: Vec<(String, String)>,
}

/// The number of an inode, by which its content is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InodeNumber(u32);

/// A name. Hard links have one inode.
#[derive(Debug)]
struct Node {
    parent: u32,
    inode: u32,
    /// The layer that last changed it.
    layer: u16,
    /// The newest layer that has it or something below it, counted from 1.
    touched: u16,
    /// The newest layer that removed from it and below it what only lower layers have, counted from 1. What it got since is of that layer.
    emptied: u16,
    /// Bytes of its path.
    path: u16,
    children: BTreeMap<Box<[u8]>, u32>,
}

#[derive(Debug)]
struct Inode {
    file_type: FileType,
    mode: u32,
    uid: u32,
    gid: u32,
    size: u64,
    sha256: Option<[u8; 32]>,
    xattrs: Box<[(String, String)]>,
    target: Option<Box<[u8]>>,
    device: Option<(u32, u32)>,
    implied: bool,
}

/// The root directory that layers make together.
#[derive(Debug)]
pub struct ImageTree {
    limits: ImageLimits,
    nodes: Vec<Node>,
    inodes: Vec<Inode>,
    metadata: u64,
    /// Names in the targets of the links that were followed.
    link_names: u64,
    /// Bytes of all layers and of the holes of their sparse files.
    bytes: u64,
    /// Bytes of holes that the sizes of their layers do not allow.
    holes: u64,
    /// Layers that began.
    layers: u16,
    /// Contents of objects with extended attributes, by the numbers of their inodes.
    attributes: BTreeMap<u32, Box<[u8]>>,
}

impl ImageTree {
    /// An empty root directory.
    pub fn new(limits: ImageLimits) -> Self {
        Self {
            limits,
            nodes: vec![Node::new(ROOT, 0, 0, 0)],
            inodes: vec![implied()],
            metadata: 0,
            link_names: 0,
            bytes: 0,
            holes: 0,
            layers: 0,
            attributes: BTreeMap::new(),
        }
    }

    /// Begins the next layer.
    pub(super) fn begin_layer(&mut self) {
        self.layers = self.layers.saturating_add(1);
    }

    /// The limits.
    pub(super) fn limits(&self) -> &ImageLimits {
        &self.limits
    }

    /// Counts bytes of a layer, or of the holes of a sparse file.
    pub(super) fn count_bytes(&mut self, bytes: u64) -> Result<(), LayerError> {
        self.bytes = self.bytes.saturating_add(bytes);
        let limit = self.limits.bytes;
        if self.bytes > limit { Err(LayerError::Limit { what: "uncompressed bytes", limit }) } else { Ok(()) }
    }

    /// Counts the holes of a sparse file, of which so many bytes are free.
    pub(super) fn count_holes(&mut self, bytes: u64, free: &mut u64, path: &[u8]) -> Result<(), LayerError> {
        self.count_bytes(bytes)?;
        self.holes = self.holes.saturating_add(bytes.saturating_sub(*free));
        *free = free.saturating_sub(bytes);
        let ImageLimits { holes: limit, ratio, .. } = self.limits;
        if self.holes > limit {
            return Err(LayerError::Holes { path: lossy(path), limit, ratio });
        }
        Ok(())
    }

    /// Bytes of all layers so far, with the holes of sparse files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds an entry. For a regular file it gives the number by which the content is set.
    pub(super) fn add(&mut self, entry: &LayerEntry) -> Result<Option<InodeNumber>, LayerError> {
        let names = clean(&entry.path);
        let fault = |fault| LayerError::entry(&entry.path, fault);
        if entry.path.len() > self.limits.path {
            return Err(fault(EntryFault::PathTooLong { length: entry.path.len(), limit: self.limits.path }));
        }
        if let Some(name) = names.iter().find(|name| name.len() > self.limits.name) {
            return Err(fault(EntryFault::NameTooLong { length: name.len(), limit: self.limits.name }));
        }
        let Some((name, above)) = names.split_last() else {
            return self.set_root(entry).map(|()| None);
        };
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            let done = self.whiteout(above, name, hidden).map(|()| None);
            return done.map_err(|error| error.at(&entry.path));
        }
        let parent = self.directory(above, true).map_err(|error| error.at(&entry.path))?.unwrap_or(ROOT);
        self.put(parent, name, entry)
    }

    /// Sets size and digest of a file's content.
    pub(super) fn set_content(&mut self, inode: InodeNumber, size: u64, sha256: [u8; 32]) {
        if let Some(inode) = self.inodes.get_mut(inode.0 as usize) {
            (inode.size, inode.sha256) = (size, Some(sha256));
        }
    }

    /// The root directory itself: its entry changes mode and owner.
    fn set_root(&mut self, entry: &LayerEntry) -> Result<(), LayerError> {
        if entry.kind != EntryKind::Directory {
            return Err(LayerError::entry(&entry.path, EntryFault::Root));
        }
        self.count(b"", entry)?;
        self.set_directory(ROOT, entry);
        Ok(())
    }

    fn put(
        &mut self,
        parent: u32,
        name: &[u8],
        entry: &LayerEntry,
    ) -> Result<Option<InodeNumber>, LayerError> {
        let fault = |fault| LayerError::entry(&entry.path, fault);
        let old = self.child(parent, name);
        if let (Some(old), EntryKind::Directory) = (old, &entry.kind)
            && self.inode_of(old).file_type == FileType::Directory
        {
            self.count(b"", entry)?;
            self.set_directory(old, entry);
            self.touch(old);
            return Ok(None);
        }
        if old.is_some() {
            self.nodes[parent as usize].children.remove(name);
        }
        self.count(name, entry)?;
        let inode = if let EntryKind::HardLink(target) = &entry.kind {
            let inode = self.link_target(target).map_err(|error| error.at(&entry.path))?;
            self.set_metadata(inode, entry);
            inode
        } else {
            let inode = Self::new_inode(entry);
            self.inodes.push(inode);
            last(self.inodes.len())
        };
        let node = self.attach(parent, name, inode).map_err(fault)?;
        self.touch(node);
        Ok((entry.kind == EntryKind::File).then_some(InodeNumber(inode)))
    }

    /// Counts an entry against the limits.
    fn count(&mut self, name: &[u8], entry: &LayerEntry) -> Result<(), LayerError> {
        let target = match &entry.kind {
            EntryKind::Symlink(target) | EntryKind::HardLink(target) => target.len(),
            _ => 0,
        };
        let xattrs: usize = entry.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        if xattrs > self.limits.xattrs {
            return Err(LayerError::entry(&entry.path, EntryFault::Xattrs(self.limits.xattrs)));
        }
        self.metadata += (name.len() + target + xattrs) as u64;
        if self.metadata > self.limits.metadata {
            return Err(LayerError::Limit {
                what: "bytes of names, targets and extended attributes",
                limit: self.limits.metadata,
            });
        }
        self.check_entries()
    }

    fn check_entries(&self) -> Result<(), LayerError> {
        let limit = self.limits.entries;
        if self.nodes.len() >= limit as usize || self.inodes.len() >= limit as usize {
            return Err(LayerError::Limit { what: "entries", limit: limit.into() });
        }
        Ok(())
    }

    fn new_inode(entry: &LayerEntry) -> Inode {
        let (file_type, target, device) = match &entry.kind {
            EntryKind::File | EntryKind::HardLink(_) => (FileType::Regular, None, None),
            EntryKind::Directory => (FileType::Directory, None, None),
            EntryKind::Symlink(target) => (FileType::Symlink, Some(target.as_slice().into()), None),
            EntryKind::Device(file_type, major, minor) => (*file_type, None, Some((*major, *minor))),
            EntryKind::Fifo => (FileType::Fifo, None, None),
        };
        Inode {
            file_type,
            mode: if file_type == FileType::Symlink { 0o777 } else { entry.mode },
            uid: entry.uid,
            gid: entry.gid,
            size: 0,
            sha256: None,
            xattrs: entry.xattrs.clone().into(),
            target,
            device,
            implied: false,
        }
    }

    /// Gives an existing directory the metadata of an entry. The layer is blamed only if it changes any.
    fn set_directory(&mut self, node: u32, entry: &LayerEntry) {
        let changed = self.set_metadata(self.nodes[node as usize].inode, entry);
        if changed {
            self.nodes[node as usize].layer = self.layers.saturating_sub(1);
        }
    }

    fn set_metadata(&mut self, inode: u32, entry: &LayerEntry) -> bool {
        let inode = &mut self.inodes[inode as usize];
        let mode = if inode.file_type == FileType::Symlink { inode.mode } else { entry.mode };
        let before = (inode.mode, inode.uid, inode.gid, inode.implied);
        let changed = before != (mode, entry.uid, entry.gid, false) || *inode.xattrs != *entry.xattrs;
        (inode.mode, inode.uid, inode.gid, inode.implied) = (mode, entry.uid, entry.gid, false);
        inode.xattrs = entry.xattrs.clone().into();
        changed
    }

    /// The inode of a hard link's target. The last name is not followed.
    fn link_target(&mut self, target: &[u8]) -> Result<u32, ResolveError> {
        let names = clean(target);
        let missing = || ResolveError::Fault(EntryFault::MissingTarget(lossy(target)));
        let Some((name, above)) = names.split_last() else {
            return Err(ResolveError::Fault(EntryFault::LinkToDirectory(lossy(target))));
        };
        let parent = self.directory(above, false)?.ok_or_else(missing)?;
        let node = self.child(parent, name).ok_or_else(missing)?;
        if self.inode_of(node).file_type == FileType::Directory {
            return Err(ResolveError::Fault(EntryFault::LinkToDirectory(lossy(target))));
        }
        Ok(self.nodes[node as usize].inode)
    }

    fn whiteout(&mut self, above: &[&[u8]], name: &[u8], hidden: &[u8]) -> Result<(), ResolveError> {
        if name != OPAQUE && matches!(hidden, b"" | b"." | b"..") {
            return Err(ResolveError::Fault(EntryFault::Whiteout));
        }
        let parent = match self.directory(above, false) {
            Ok(Some(parent)) => parent,
            // There is nothing to remove.
            Ok(None) | Err(ResolveError::Fault(EntryFault::NotADirectory(_))) => return Ok(()),
            Err(error) => return Err(error),
        };
        if name == OPAQUE {
            self.remove_lower_children(parent);
        } else if let Some(node) = self.child(parent, hidden) {
            if self.is_of_this_layer(node) {
                self.remove_lower_children(node);
            } else {
                self.nodes[parent as usize].children.remove(hidden);
            }
        }
        Ok(())
    }

    /// Removes below a directory everything that only lower layers have. A layer may ask for it again and again, so it looks at each directory
    /// once in a layer.
    fn remove_lower_children(&mut self, directory: u32) {
        let mut pending = vec![directory];
        while let Some(node) = pending.pop() {
            if std::mem::replace(&mut self.nodes[node as usize].emptied, self.layers) == self.layers {
                continue;
            }
            let children = std::mem::take(&mut self.nodes[node as usize].children);
            let kept: BTreeMap<_, _> =
                children.into_iter().filter(|(_, child)| self.is_of_this_layer(*child)).collect();
            pending.extend(kept.values());
            self.nodes[node as usize].children = kept;
        }
    }

    fn is_of_this_layer(&self, node: u32) -> bool {
        self.nodes[node as usize].touched == self.layers
    }

    /// Notes that this layer has a node, and with it all directories above.
    fn touch(&mut self, mut node: u32) {
        while self.nodes[node as usize].touched != self.layers {
            self.nodes[node as usize].touched = self.layers;
            node = self.nodes[node as usize].parent;
        }
    }

    /// The directory at the end of `names`, through links inside the root. `None` if it is missing and is not to be made.
    fn directory(&mut self, names: &[&[u8]], make: bool) -> Result<Option<u32>, ResolveError> {
        let mut node = ROOT;
        let mut pending: VecDeque<Vec<u8>> = VecDeque::new();
        let mut rest = names.iter();
        let mut links = 0;
        loop {
            let owned = pending.pop_front();
            let name: &[u8] = match &owned {
                Some(name) => name,
                None => match rest.next() {
                    Some(name) => name,
                    None => return Ok(Some(node)),
                },
            };
            if name == b".." {
                node = self.nodes[node as usize].parent;
                continue;
            }
            let Some(child) = self.child(node, name) else {
                if !make {
                    return Ok(None);
                }
                self.metadata += name.len() as u64;
                self.check_entries().map_err(ResolveError::Limit)?;
                if name.len() > self.limits.name {
                    let fault = EntryFault::NameTooLong { length: name.len(), limit: self.limits.name };
                    return Err(ResolveError::Fault(fault));
                }
                self.inodes.push(implied());
                let inode = last(self.inodes.len());
                node = self.attach(node, name, inode).map_err(ResolveError::Fault)?;
                continue;
            };
            let inode = self.inode_of(child);
            match (&inode.target, inode.file_type) {
                (_, FileType::Directory) => node = child,
                (Some(target), _) => {
                    links += 1;
                    if links > MOST_LINKS {
                        return Err(ResolveError::Fault(EntryFault::TooManyLinks(MOST_LINKS)));
                    }
                    if target.starts_with(b"/") {
                        node = ROOT;
                    }
                    let parts = target.split(|byte| *byte == b'/');
                    let parts: Vec<Vec<u8>> =
                        parts.filter(|name| !matches!(*name, b"" | b".")).map(<[u8]>::to_vec).collect();
                    self.link_names += parts.len() as u64;
                    if self.link_names > self.limits.link_names {
                        return Err(ResolveError::Limit(LayerError::Limit {
                            what: "names in the targets of links on the ways to entries",
                            limit: self.limits.link_names,
                        }));
                    }
                    for part in parts.into_iter().rev() {
                        pending.push_front(part);
                    }
                }
                _ => return Err(ResolveError::Fault(EntryFault::NotADirectory(lossy(name)))),
            }
        }
    }

    /// Adds a name to a directory.
    fn attach(&mut self, parent: u32, name: &[u8], inode: u32) -> Result<u32, EntryFault> {
        let length = usize::from(self.nodes[parent as usize].path) + 1 + name.len();
        let path = u16::try_from(length).ok().filter(|_| length <= self.limits.path);
        let path = path.ok_or(EntryFault::PathTooLong { length, limit: self.limits.path })?;
        self.nodes.push(Node::new(parent, inode, self.layers.saturating_sub(1), path));
        let node = last(self.nodes.len());
        self.nodes[parent as usize].children.insert(name.into(), node);
        Ok(node)
    }

    fn child(&self, node: u32, name: &[u8]) -> Option<u32> {
        self.nodes[node as usize].children.get(name).copied()
    }

    fn inode_of(&self, node: u32) -> &Inode {
        &self.inodes[self.nodes[node as usize].inode as usize]
    }

    /// Whether a layer put something at a path. Links are not followed.
    pub fn contains(&self, path: &[u8]) -> bool {
        let mut node = ROOT;
        clean(path).into_iter().all(|name| self.child(node, name).inspect(|child| node = *child).is_some())
    }
}

impl Node {
    fn new(parent: u32, inode: u32, layer: u16, path: u16) -> Self {
        Self { parent, inode, layer, touched: 0, emptied: 0, path, children: BTreeMap::new() }
    }
}

/// A directory that no layer names.
fn implied() -> Inode {
    Inode {
        file_type: FileType::Directory,
        mode: 0o755,
        uid: 0,
        gid: 0,
        size: 0,
        sha256: None,
        xattrs: Box::default(),
        target: None,
        device: None,
        implied: true,
    }
}

/// The number of the last of so many. The limit of entries is far below 2^32.
fn last(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX).saturating_sub(1)
}
