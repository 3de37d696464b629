//! The directory that takes the image.
//!
//! In: verified blobs. Out: an OCI image layout. A blob has its final name only when it is complete and has its digest, and `index.json`
//! comes last. A pull that breaks off leaves the images of before as they were, and what is complete is not asked for again. The same holds if the
//! machine stops: each file is on the disk before it gets its name.

use super::error::PullError;
use oci_client::manifest::OCI_IMAGE_INDEX_MEDIA_TYPE;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

/// The annotation of an image in `index.json` with its name.
const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// The file that marks a layout, and its content.
const MARK: (&str, &str) = ("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#);
const INDEX: &str = "index.json";
/// Longest `index.json`.
const INDEX_LIMIT: u64 = 4 << 20;

/// What a descriptor says of a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BlobDescriptor {
    pub(super) digest: String,
    pub(super) size: u64,
}

impl BlobDescriptor {
    /// The descriptor with these fields.
    ///
    /// # Errors
    /// The digest is no SHA-256, or the size is negative.
    pub(super) fn new(digest: &str, size: i64) -> Result<Self, PullError> {
        let fault = |reason: &str| PullError::Blob { digest: digest.to_owned(), reason: reason.to_owned() };
        let is_hex = |text: &str| {
            text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        if !digest.strip_prefix("sha256:").is_some_and(is_hex) {
            return Err(fault("its digest is no SHA-256"));
        }
        let size = u64::try_from(size).map_err(|_| fault("its size is negative"))?;
        Ok(Self { digest: digest.to_owned(), size })
    }

    fn hex(&self) -> &str {
        self.digest.trim_start_matches("sha256:")
    }

    pub(super) fn fault(&self, reason: String) -> PullError {
        PullError::Blob { digest: self.digest.clone(), reason }
    }
}

/// A layout in a directory.
#[derive(Debug)]
pub(super) struct Layout {
    root: PathBuf,
    /// Has a file or a directory written to the disk.
    sync: fn(&File) -> io::Result<()>,
}

impl Layout {
    /// The layout in a directory, which is made if it does not exist.
    ///
    /// # Errors
    /// The directory has something else in it, or cannot be written.
    pub(super) fn open(root: &Path) -> Result<Self, PullError> {
        fs::create_dir_all(root).map_err(PullError::file("make", root))?;
        let layout = Self { root: root.to_owned(), sync: File::sync_all };
        let mark = root.join(MARK.0);
        if !mark.exists() {
            // A first pull that broke off has left this file.
            let begun = partial_name(MARK.0);
            for entry in fs::read_dir(root).map_err(PullError::file("read", root))? {
                if entry.map_err(PullError::file("read", root))?.file_name() != *begun {
                    return Err(PullError::NotALayout { path: root.to_owned() });
                }
            }
            layout.replace(&mark, MARK.1)?;
        }
        let blobs = layout.blobs();
        fs::create_dir_all(&blobs).map_err(PullError::file("make", &blobs))?;
        // A wrong `index.json` is found before anything is transferred.
        layout.index()?;
        Ok(layout)
    }

    fn blobs(&self) -> PathBuf {
        self.root.join("blobs/sha256")
    }

    /// Whether the layout has the blob. A file that is not what its name says is removed.
    ///
    /// # Errors
    /// The file cannot be read or removed.
    pub(super) fn has(&self, blob: &BlobDescriptor) -> Result<bool, PullError> {
        let path = self.blobs().join(blob.hex());
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(PullError::file("open", path)(error)),
        };
        let (mut hash, mut size, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 16]);
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => {
                    hash.update(&buffer[..count]);
                    size += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(PullError::file("read", path)(error)),
            }
        }
        if size == blob.size && hex::encode(hash.finalize()) == blob.hex() {
            return Ok(true);
        }
        fs::remove_file(&path).map_err(PullError::file("remove", path))?;
        Ok(false)
    }

    /// Begins a blob.
    ///
    /// # Errors
    /// Its file cannot be made.
    pub(super) fn begin(&self, blob: &BlobDescriptor) -> Result<BlobWriter, PullError> {
        let path = self.blobs().join(blob.hex());
        let partial = self.blobs().join(format!(".{}.partial", blob.hex()));
        let file = create(&partial).map_err(PullError::file("make", &partial))?;
        Ok(BlobWriter {
            blob: blob.clone(),
            path,
            partial,
            file,
            hash: Sha256::new(),
            bytes: 0,
            is_done: false,
            sync: self.sync,
        })
    }

    /// Keeps a document.
    ///
    /// # Errors
    /// It is not what the descriptor says, or cannot be written.
    pub(super) fn keep(&self, blob: &BlobDescriptor, content: &[u8]) -> Result<(), PullError> {
        let mut writer = self.begin(blob)?;
        writer.write(content)?;
        writer.finish()
    }

    fn index(&self) -> Result<Vec<Value>, PullError> {
        let path = self.root.join(INDEX);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(PullError::file("open", path)(error)),
        };
        let mut bytes = Vec::new();
        file.take(INDEX_LIMIT + 1).read_to_end(&mut bytes).map_err(PullError::file("read", &path))?;
        let fault = |reason: String| PullError::LayoutIndex { path: path.clone(), reason };
        if bytes.len() as u64 > INDEX_LIMIT {
            return Err(fault("it is larger than 4 MiB".to_owned()));
        }
        let index: Value = serde_json::from_slice(&bytes).map_err(|error| fault(error.to_string()))?;
        let manifests = index["manifests"].as_array();
        manifests.cloned().ok_or_else(|| fault("it has no field `manifests`".to_owned()))
    }

    /// Names a manifest or an index in `index.json`. One that had the name before loses it.
    ///
    /// # Errors
    /// `index.json` cannot be written.
    pub(super) fn name(&self, media_type: &str, blob: &BlobDescriptor, name: &str) -> Result<(), PullError> {
        let mut manifests = self.index()?;
        manifests.retain(|entry| entry["annotations"][REF_NAME] != name);
        manifests.push(json!({
            "mediaType": media_type, "digest": blob.digest, "size": blob.size, "annotations": { REF_NAME: name },
        }));
        let index =
            json!({ "schemaVersion": 2, "mediaType": OCI_IMAGE_INDEX_MEDIA_TYPE, "manifests": manifests });
        // The names of the blobs come before the one that leads to them.
        self.sync_directory(&self.blobs())?;
        self.replace(&self.root.join(INDEX), &index.to_string())
    }

    /// Gives a file of the root directory a new content, whole or not at all.
    fn replace(&self, path: &Path, text: &str) -> Result<(), PullError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let partial = self.root.join(partial_name(&name));
        let written = create(&partial).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            (self.sync)(&file)
        });
        written.map_err(PullError::file("write", &partial))?;
        fs::rename(&partial, path).map_err(PullError::file("write", path))?;
        self.sync_directory(&self.root)
    }

    fn sync_directory(&self, path: &Path) -> Result<(), PullError> {
        File::open(path).and_then(|directory| (self.sync)(&directory)).map_err(PullError::file("sync", path))
    }
}

/// The name of a file of the root directory while it is written.
fn partial_name(name: &str) -> String {
    format!(".{name}.partial")
}

/// A new file in the place of what is there. The directory may be of another user, who put a link there: the link is removed, and not followed.
fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// A blob that is being written. Without [`BlobWriter::finish`] nothing of it is left.
#[derive(Debug)]
pub(super) struct BlobWriter {
    blob: BlobDescriptor,
    path: PathBuf,
    partial: PathBuf,
    file: File,
    hash: Sha256,
    bytes: u64,
    is_done: bool,
    sync: fn(&File) -> io::Result<()>,
}

impl BlobWriter {
    /// The bytes so far.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// The blob is longer than its descriptor says, or the disk takes no more.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), PullError> {
        let left = self.blob.size - self.bytes;
        if bytes.len() as u64 > left {
            return Err(self
                .blob
                .fault(format!("it is longer than the {} bytes of its descriptor", self.blob.size)));
        }
        self.file.write_all(bytes).map_err(PullError::file("write", &self.partial))?;
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Begins anew: the registry sends the blob from its first byte.
    ///
    /// # Errors
    /// The file cannot be emptied.
    pub(super) fn restart(&mut self) -> Result<(), PullError> {
        self.file = create(&self.partial).map_err(PullError::file("make", &self.partial))?;
        self.hash = Sha256::new();
        self.bytes = 0;
        Ok(())
    }

    /// Gives the blob its name.
    ///
    /// # Errors
    /// It is not what its descriptor says, or it cannot be renamed.
    pub(super) fn finish(mut self) -> Result<(), PullError> {
        if self.bytes != self.blob.size {
            let reason = format!("it has {} bytes, and its descriptor says {}", self.bytes, self.blob.size);
            return Err(self.blob.fault(reason));
        }
        let found = hex::encode(std::mem::take(&mut self.hash).finalize());
        if found != self.blob.hex() {
            return Err(self.blob.fault(format!("its content has the digest sha256:{found}")));
        }
        (self.sync)(&self.file).map_err(PullError::file("write", &self.partial))?;
        fs::rename(&self.partial, &self.path).map_err(PullError::file("rename", &self.partial))?;
        self.is_done = true;
        Ok(())
    }
}

impl Drop for BlobWriter {
    fn drop(&mut self) {
        if !self.is_done {
            // What is left would be written over by the next pull.
            let _ = fs::remove_file(&self.partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(content: &[u8]) -> BlobDescriptor {
        let digest = format!("sha256:{}", hex::encode(Sha256::digest(content)));
        BlobDescriptor::new(&digest, i64::try_from(content.len()).unwrap()).unwrap()
    }

    #[test]
    fn no_file_has_its_name_before_it_is_on_the_disk_and_a_name_that_is_not_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let mut layout = Layout::open(folder.path()).unwrap();
        layout.keep(&blob(b"a"), b"a").unwrap();
        layout.name("m", &blob(b"a"), "name").unwrap();
        let index = || fs::read_to_string(folder.path().join(INDEX)).unwrap();
        let before = index();

        layout.sync = |file| if file.metadata()?.is_file() { Err(io::Error::other("full")) } else { Ok(()) };
        assert!(layout.keep(&blob(b"b"), b"b").is_err());
        assert!(!layout.blobs().join(blob(b"b").hex()).exists());
        let error = layout.name("m", &blob(b"a"), "other").unwrap_err().to_string();
        assert!(error.contains(".index.json.partial"), "{error}");
        assert_eq!(index(), before);

        layout.sync = |file| if file.metadata()?.is_dir() { Err(io::Error::other("full")) } else { Ok(()) };
        assert!(layout.name("m", &blob(b"a"), "other").is_err());
        assert_eq!(index(), before, "the names of the blobs may be lost");
        assert!(Layout::open(folder.path()).is_ok());
    }

    #[test]
    fn a_pull_begins_in_an_empty_directory_and_in_that_of_one_that_broke_off_at_its_first_file() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(".oci-layout.partial"), "{").unwrap();
        Layout::open(folder.path()).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join(MARK.0)).unwrap(), MARK.1);
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join(".oci-layout.partial"), "{").unwrap();
        fs::write(other.path().join("other"), "").unwrap();
        assert!(matches!(Layout::open(other.path()), Err(PullError::NotALayout { .. })));
    }
}
