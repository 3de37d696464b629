//! An ostree repository with one commit, written object by object.

use sensor_model::ostree::{Checksum, FileHeader};
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

/// When the commits were made, in seconds since 1970.
const SECONDS: u64 = 1_764_000_000;

/// A repository in the root directory of a host.
pub(crate) struct Repository {
    path: PathBuf,
}

/// Directories with their files, each with its object.
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

/// A dictionary from texts to values, all of which are texts.
fn dictionary(texts: &[(&str, &str)]) -> Vec<u8> {
    let (mut body, mut ends) = (Vec::new(), Vec::new());
    for (key, value) in texts {
        body.resize(body.len().next_multiple_of(8), 0);
        let mut pair = format!("{key}\0").into_bytes();
        let end = pair.len();
        pair.resize(pair.len().next_multiple_of(8), 0);
        // The type follows the value and a zero.
        pair.extend_from_slice(format!("{value}\0\0s").as_bytes());
        body.extend(container(pair, &[end]));
        ends.push(body.len());
    }
    container(body, &ends)
}

/// An object with extended attributes, which are sorted by name.
pub(crate) fn attributes_object(xattrs: &[(&str, &[u8])]) -> Vec<u8> {
    let elements: Vec<Vec<u8>> = xattrs
        .iter()
        .map(|(name, value)| {
            let name = format!("{name}\0").into_bytes();
            container([&name[..], value].concat(), &[name.len()])
        })
        .collect();
    array(&elements)
}

/// The owner and mode of root's directories, with these extended attributes.
fn meta(xattrs: &[Vec<u8>]) -> Vec<u8> {
    [&[0; 8][..], &0o040_755_u32.to_be_bytes(), &array(xattrs)].concat()
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
        self.commit_with(subject, &[], files)
    }

    /// The same, with texts in the commit's metadata.
    pub(crate) fn commit_with(
        &self,
        subject: &str,
        texts: &[(&str, &str)],
        files: &[(&str, &str, u32)],
    ) -> String {
        let mut root = self.root(files);
        root.files.insert("bin".to_owned(), self.link("usr/bin"));
        self.put_commit(subject, SECONDS, texts, &root, &meta(&[]))
    }

    /// Makes a commit without files that is newer than the others by this many seconds.
    pub(crate) fn commit_later(&self, seconds: i64) -> String {
        let time = SECONDS.checked_add_signed(seconds).unwrap();
        self.put_commit("another time", time, &[], &Tree::default(), &meta(&[]))
    }

    /// Commits the files of a layer of an image, and makes its ref. The directories have another label than those of [`Repository::commit`].
    pub(crate) fn layer(&self, digest: &str, files: &[(&str, &str, u32)]) -> PathBuf {
        let name = b"security.selinux\0";
        let label = container([&name[..], b"other:label\0"].concat(), &[name.len()]);
        let commit = self.put_commit("", SECONDS, &[], &self.root(files), &meta(&[label]));
        self.name_layer(digest, &commit)
    }

    /// The same for a layer that has files of the base without their paths.
    pub(crate) fn layer_of_objects(&self, digest: &str, files: &[Checksum]) -> PathBuf {
        let files = files.iter().map(|file| (hex::encode(file), *file)).collect();
        let root = Tree { files, ..Tree::default() };
        let commit = self.put_commit("", SECONDS, &[], &root, &meta(&[]));
        self.name_layer(digest, &commit)
    }

    /// Makes the ref of a layer; gives its path.
    fn name_layer(&self, digest: &str, commit: &str) -> PathBuf {
        let refs = self.path.join("refs/heads/ostree/container/blob");
        fs::create_dir_all(&refs).unwrap();
        let path = refs.join(digest.replace(':', "_3A_"));
        fs::write(&path, format!("{commit}\n")).unwrap();
        path
    }

    fn root(&self, files: &[(&str, &str, u32)]) -> Tree {
        let mut root = Tree::default();
        for (path, content, mode) in files {
            let (directories, name) = path.rsplit_once('/').unwrap();
            let mut tree = &mut root;
            for directory in directories.split('/') {
                tree = tree.directories.entry(directory.to_owned()).or_default();
            }
            tree.files.insert(name.to_owned(), self.file(content, *mode));
        }
        root
    }

    fn put_commit(
        &self,
        subject: &str,
        seconds: u64,
        texts: &[(&str, &str)],
        root: &Tree,
        meta: &[u8],
    ) -> String {
        let meta = self.put("dirmeta", meta);
        let tree = self.tree(root, meta);
        let mut body = dictionary(texts);
        let texts_end = body.len();
        body.extend_from_slice(format!("{subject}\0").as_bytes());
        let subject_end = body.len();
        body.push(0);
        let body_end = body.len();
        body.resize(body.len().next_multiple_of(8), 0);
        body.extend_from_slice(&seconds.to_be_bytes());
        body.extend_from_slice(&tree);
        let tree_end = body.len();
        body.extend_from_slice(&meta);
        let ends = [tree_end, body_end, subject_end, texts_end, texts_end, texts_end];
        hex::encode(self.put("commit", &container(body, &ends)))
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
