//! The entries of a tree.
//!
//! In: the tree that all layers made. Out: one entry for each path.

use super::{ImageTree, ROOT};
use crate::image::entry::{ImageEntry, Known};
use std::collections::BTreeMap;

impl ImageTree {
    /// Calls `take` for each path, a directory before what is in it, names in the order of their bytes. The root is `/`.
    ///
    /// # Errors
    /// Those of `take`, which end the walk.
    pub fn each<E>(&self, mut take: impl FnMut(&[u8], &ImageEntry) -> Result<(), E>) -> Result<u64, E> {
        let links = self.link_groups();
        let mut count = 0;
        let mut path = Vec::new();
        let mut stack = vec![(ROOT, 0, &b""[..])];
        while let Some((node, above, name)) = stack.pop() {
            path.truncate(above);
            if node != ROOT {
                path.push(b'/');
                path.extend_from_slice(name);
            }
            let entry = self.entry(node, &links);
            let shown: &[u8] = if path.is_empty() { b"/" } else { &path };
            take(shown, &entry)?;
            count += 1;
            let here = path.len();
            let children = self.nodes[node as usize].children.iter().rev();
            stack.extend(children.map(|(name, child)| (*child, here, &**name)));
        }
        Ok(count)
    }

    /// For each inode with several names the number of its group, by the number of the inode.
    fn link_groups(&self) -> BTreeMap<u32, u32> {
        let mut names: Vec<u8> = vec![0; self.inodes.len()];
        let mut pending = vec![ROOT];
        while let Some(node) = pending.pop() {
            let node = &self.nodes[node as usize];
            let count = &mut names[node.inode as usize];
            *count = count.saturating_add(1);
            pending.extend(node.children.values());
        }
        let several = (0_u32..).zip(names).filter(|(_, count)| *count > 1).map(|(inode, _)| inode);
        several.zip(1..).collect()
    }

    fn entry(&self, node: u32, links: &BTreeMap<u32, u32>) -> ImageEntry {
        let node = &self.nodes[node as usize];
        let inode = &self.inodes[node.inode as usize];
        ImageEntry {
            file_type: inode.file_type,
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            size: inode.size,
            sha256: inode.sha256,
            xattrs: inode.xattrs.to_vec(),
            target: inode.target.as_deref().map(<[u8]>::to_vec),
            device: inode.device,
            layer: node.layer,
            known: if inode.implied { Known::Content } else { Known::All },
            config: false,
            may_be_missing: false,
            md5: None,
            ostree: None,
            links: links.get(&node.inode).copied().unwrap_or(0),
        }
    }
}
