//! The cache: downloaded and derived things that outlive `cargo clean`, each with a stamp.
//!
//! In: a name and a recipe. Out: a complete folder, with a stamp that names its source. A folder without a stamp is an
//! interrupted attempt, and the cache makes it again. The recipe fills a temporary folder, which gets the final name only at
//! the end.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The file in each cached folder that names what it was made from.
const STAMP: &str = "holdfast-stamp.json";

/// What a cached folder was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CacheStamp {
    /// Version or fingerprint of the source.
    pub(crate) version: String,
    /// SHA-256, in hexadecimal, of each file that the folder was unpacked from, by file name.
    pub(crate) sha256: std::collections::BTreeMap<String, String>,
}

impl CacheStamp {
    /// A stamp with no source files.
    pub(crate) fn of_version(version: &str) -> Self {
        Self { version: version.to_owned(), sha256: std::collections::BTreeMap::new() }
    }

    /// Notes the hash of a file that the folder is made from.
    pub(crate) fn add_file(&mut self, path: &Path) -> Result<()> {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        self.sha256.insert(name, sha256_file(path)?);
        Ok(())
    }
}

/// The open cache. Only one process uses it at a time: the value holds the lock.
#[derive(Debug)]
pub(crate) struct Cache {
    root: PathBuf,
    _lock: File,
}

impl Cache {
    /// Opens the cache folder. Waits for another `cargo xtask` that fills it.
    pub(crate) fn open() -> Result<Self> {
        let root = match std::env::var_os("HOLDFAST_CACHE") {
            Some(path) => std::path::absolute(PathBuf::from(path))?,
            None => std::env::home_dir()
                .context("no home directory: set HOLDFAST_CACHE to a folder for downloads")?
                .join(".cache/holdfast"),
        };
        fs::create_dir_all(&root).with_context(|| format!("cannot create the cache {}", root.display()))?;
        let path = root.join(".lock");
        let lock = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        if lock.try_lock().is_err() {
            crate::run::say("cache", "waiting for another `cargo xtask` to finish its set-up");
            lock.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        }
        Ok(Self { root, _lock: lock })
    }

    /// The path of a thing in the cache.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The stamp of a completely made folder, if there is one.
    pub(crate) fn stamp(&self, name: &str) -> Option<CacheStamp> {
        let text = fs::read(self.path(name).join(STAMP)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Makes a folder again: `recipe` fills a temporary folder and gives the stamp. The folder then replaces the old one.
    pub(crate) fn make(
        &self,
        name: &str,
        recipe: impl FnOnce(&Path) -> Result<CacheStamp>,
    ) -> Result<PathBuf> {
        let done = self.path(name);
        let temporary = self.path(&format!("tmp/{}", name.replace('/', "_")));
        remove_tree(&temporary)?;
        fs::create_dir_all(&temporary)?;
        let stamp = recipe(&temporary)?;
        fs::write(temporary.join(STAMP), serde_json::to_vec_pretty(&stamp)?)?;
        remove_tree(&done)?;
        if let Some(parent) = done.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::rename(&temporary, &done).with_context(|| format!("cannot put {} in place", done.display()))?;
        Ok(done)
    }
}

/// Removes a folder and what it holds, if it exists.
pub(crate) fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// SHA-256 of a file's content, in hexadecimal.
pub(crate) fn sha256_file(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 16];
    loop {
        let n = file.read(&mut block)?;
        if n == 0 {
            return Ok(hex::encode(hash.finalize()));
        }
        hash.update(&block[..n]);
    }
}
