//! An ostree repository with one commit, written object by object.

use sensor_model::ostree::{Checksum, FileHeader};
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

/// A repository in the root directory of a host.
pub(crate) struct Repository {
    path: PathBuf,
}

#[derive(Default)]
struct Tree {
    files: BTreeMap<String, Checksum>,
    directories: BTreeMap<String, Tree>,
}

/// A container: its body, and the ends of its children.
fn container(mut body: Vec<u8>, ends: &[usize]) -> Vec<u8> {
    let width = if body.len() + ends.len() < 0x100 { 1 } else { 2 };
    for end in ends {
        body.extend_from_slice(&end.to_le_bytes()[..width]);
    }
    body
}

fn array(elements: &[Vec<u8>]) -> Vec<u8> {
    let mut end = 0;
    let ends: Vec<usize> = elements
        .iter()
        .map(|element| {
            end += element.len();
            end
        })
        .collect();
    container(elements.concat(), &ends)
}

impl Repository {
    /// An empty repository of a host.
    pub(crate) fn new(root: &Path) -> Self {
        let path = root.join("ostree/repo");
        fs::create_dir_all(path.join("objects")).unwrap();
        fs::write(path.join("config"), "[core]\nrepo_version=1\nmode=bare\n").unwrap();
        Self { path }
    }

    /// The file of an object.
    pub(crate) fn object(&self, kind: &str, checksum: Checksum) -> PathBuf {
        let name = hex::encode(checksum);
        self.path.join("objects").join(&name[..2]).join(format!("{}.{kind}", &name[2..]))
    }

    fn put(&self, kind: &str, bytes: &[u8]) -> Checksum {
        let checksum = Sha256::digest(bytes).into();
        let path = self.object(kind, checksum);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
        checksum
    }

    /// The object of a file of root's.
    pub(crate) fn file(&self, content: &str, mode: u32) -> Checksum {
        let header = FileHeader { uid: 0, gid: 0, mode: 0o100_000 | mode, target: b"", xattrs: &[] };
        let mut digest = header.begin();
        digest.update(content);
        let checksum = digest.finalize().into();
        let path = self.object("file", checksum);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        checksum
    }

    /// The object of a symbolic link of root's.
    fn link(&self, target: &str) -> Checksum {
        let header = FileHeader { uid: 0, gid: 0, mode: 0o120_777, target: target.as_bytes(), xattrs: &[] };
        let checksum = header.of_link();
        let path = self.object("file", checksum);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        symlink(target, &path).unwrap();
        checksum
    }

    /// Commits files: path, content, mode; and a link from `/bin` to `usr/bin`. Gives the commit's checksum.
    pub(crate) fn commit(&self, subject: &str, files: &[(&str, &str, u32)]) -> String {
        let mut root = Tree::default();
        root.files.insert("bin".to_owned(), self.link("usr/bin"));
        for (path, content, mode) in files {
            let (directories, name) = path.rsplit_once('/').unwrap();
            let mut tree = &mut root;
            for directory in directories.split('/') {
                tree = tree.directories.entry(directory.to_owned()).or_default();
            }
            tree.files.insert(name.to_owned(), self.file(content, *mode));
        }
        let meta = self.put("dirmeta", &[&[0; 8][..], &0o040_755_u32.to_be_bytes()].concat());
        let tree = self.tree(&root, meta);
        let mut body = format!("{subject}\0").into_bytes();
        let subject_end = body.len();
        body.push(0);
        let body_end = body.len();
        body.resize(body.len().next_multiple_of(8), 0);
        body.extend_from_slice(&1_764_000_000_u64.to_be_bytes());
        body.extend_from_slice(&tree);
        let tree_end = body.len();
        body.extend_from_slice(&meta);
        hex::encode(self.put("commit", &container(body, &[tree_end, body_end, subject_end, 0, 0, 0])))
    }

    fn tree(&self, tree: &Tree, meta: Checksum) -> Checksum {
        let files: Vec<Vec<u8>> = tree
            .files
            .iter()
            .map(|(name, file)| {
                let named = format!("{name}\0").into_bytes();
                let end = named.len();
                container([&named[..], file].concat(), &[end])
            })
            .collect();
        let directories: Vec<Vec<u8>> = tree
            .directories
            .iter()
            .map(|(name, below)| {
                let named = format!("{name}\0").into_bytes();
                let end = named.len();
                container([&named[..], &self.tree(below, meta), &meta].concat(), &[end + 32, end])
            })
            .collect();
        let (files, directories) = (array(&files), array(&directories));
        let end = files.len();
        self.put("dirtree", &container([files, directories].concat(), &[end]))
    }
}
