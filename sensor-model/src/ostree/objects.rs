//! Commits, and the directories that they lead to.

use super::{
    Checksum, Xattr,
    variant::{elements, ends, text, texts},
};
use std::collections::BTreeMap;

/// Most bytes of an object that is not a file. A directory with 100,000 files has 6 MiB.
pub const OBJECT_LIMIT: u64 = 16 << 20;

/// Why an object is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// Its bytes have not the form of such an object.
    #[error("it does not have the form of its kind")]
    Form,
    /// A directory has a name that no directory can have, or has it twice.
    #[error("it has a name that is empty, has a slash, leads elsewhere, or is not in order")]
    Name,
}

/// A commit: the root directory of a tree, at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// One line about it.
    pub subject: String,
    /// When it was made, in seconds since 1970.
    pub seconds: u64,
    /// The names in the root directory.
    pub tree: Checksum,
    /// Owner and mode of the root directory.
    pub meta: Checksum,
    /// The texts of its metadata, by their keys. `None` if the metadata has not its form.
    pub texts: Option<BTreeMap<String, String>>,
}

/// The names in a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DirectoryTree {
    /// Files and symbolic links, by name.
    pub files: Vec<TreeFile>,
    /// Directories, by name.
    pub directories: Vec<SubDirectory>,
}

/// A file in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeFile {
    /// Its name.
    pub name: String,
    /// Its object.
    pub file: Checksum,
}

/// A directory in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubDirectory {
    /// Its name.
    pub name: String,
    /// The names in it.
    pub tree: Checksum,
    /// Its owner and mode.
    pub meta: Checksum,
}

/// Owner, mode and attributes of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryMeta {
    /// Owning user id.
    pub uid: u32,
    /// Owning group id.
    pub gid: u32,
    /// Type and permission bits.
    pub mode: u32,
    /// Extended attributes, sorted by name.
    pub xattrs: Vec<Xattr>,
}

impl Commit {
    /// Reads a commit.
    ///
    /// # Errors
    /// [`ObjectError::Form`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ObjectError> {
        Self::read(bytes).ok_or(ObjectError::Form)
    }

    /// `(a{sv}aya(say)sstayay)`: metadata, parent, related objects, subject, body, time, the two checksums.
    fn read(bytes: &[u8]) -> Option<Self> {
        let ([metadata, _, related, subject, body, tree], last) = ends::<6>(bytes)?;
        let texts = texts(bytes.get(..metadata)?);
        // The time is aligned to its size.
        let time = body.checked_next_multiple_of(8)?;
        let seconds = bytes.get(time..)?.first_chunk::<8>()?;
        Some(Self {
            subject: text(bytes.get(related..subject)?)?.to_owned(),
            seconds: u64::from_be_bytes(*seconds),
            tree: bytes.get(time + 8..tree)?.try_into().ok()?,
            meta: bytes.get(tree..last)?.try_into().ok()?,
            texts: texts.map(|texts| {
                texts.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
            }),
        })
    }
}

impl DirectoryTree {
    /// Reads the names of a directory: `(a(say)a(sayay))`.
    ///
    /// # Errors
    /// Bytes that are none, and names that a directory cannot have.
    pub fn parse(bytes: &[u8]) -> Result<Self, ObjectError> {
        let found = Self::read(bytes).ok_or(ObjectError::Form)?;
        let files: Vec<&str> = found.files.iter().map(|file| file.name.as_str()).collect();
        let directories: Vec<&str> = found.directories.iter().map(|sub| sub.name.as_str()).collect();
        let is_name = |name: &&str| !matches!(*name, "" | "." | "..") && !name.contains('/');
        let has_names = files.iter().chain(&directories).all(is_name);
        let in_order = |names: &[&str]| names.is_sorted_by(|one, other| one < other);
        let is_twice = |name: &&str| directories.binary_search(name).is_ok();
        if !has_names || !in_order(&files) || !in_order(&directories) || files.iter().any(is_twice) {
            return Err(ObjectError::Name);
        }
        Ok(found)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let ([files], last) = ends::<1>(bytes)?;
        let mut found = Self::default();
        for element in elements(bytes.get(..files)?)? {
            let ([name], end) = ends::<1>(element)?;
            let file = element.get(name..end)?.try_into().ok()?;
            found.files.push(TreeFile { name: text(element.get(..name)?)?.to_owned(), file });
        }
        for element in elements(bytes.get(files..last)?)? {
            let ([name, tree], end) = ends::<2>(element)?;
            found.directories.push(SubDirectory {
                name: text(element.get(..name)?)?.to_owned(),
                tree: element.get(name..tree)?.try_into().ok()?,
                meta: element.get(tree..end)?.try_into().ok()?,
            });
        }
        Some(found)
    }
}

impl DirectoryMeta {
    /// Reads the metadata of a directory: `(uuua(ayay))`.
    ///
    /// # Errors
    /// [`ObjectError::Form`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ObjectError> {
        Self::read(bytes).ok_or(ObjectError::Form)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (numbers, rest) = bytes.split_first_chunk::<12>()?;
        let number = |at: usize| Some(u32::from_be_bytes(*numbers.get(at..)?.first_chunk::<4>()?));
        let xattrs = parse_xattrs(rest)?;
        Some(Self { uid: number(0)?, gid: number(4)?, mode: number(8)?, xattrs })
    }
}

/// Reads extended attributes, `a(ayay)`, as a directory and an object of them have them; `None` if they have another form.
pub fn parse_xattrs(bytes: &[u8]) -> Option<Vec<Xattr>> {
    let mut xattrs = Vec::new();
    for element in elements(bytes)? {
        let ([name], end) = ends::<1>(element)?;
        let (zero, bytes) = element.get(..name)?.split_last()?;
        if *zero != 0 {
            return None;
        }
        xattrs.push(Xattr { name: bytes.to_vec(), value: element.get(name..end)?.to_vec() });
    }
    Some(xattrs)
}
