//! The files of the state directory.

use crate::apply::ApplyError;
use crate::{bounded, sys};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use sensor_model::{
    journal::{
        Original, Record,
        codec::{self, Parsed},
    },
    node_state::Standing,
    waiting::{Waiting, WaitingArgument},
};
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest as _, Sha256};
use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, File},
    io,
    os::{fd::OwnedFd, unix::fs::DirBuilderExt as _},
    path::{Path, PathBuf},
};

const JOURNAL: &str = "journal";
/// The journal while its first record is being written.
const NEW_JOURNAL: &str = ".journal.new";
const STATE: &str = "state.json";
pub(super) const CURRENT: &str = "current";
const HISTORY: &str = "history.json";
const WAITING: &str = "waiting.json";

/// Room for the short records that follow the first, so that a full disk cannot keep them out.
pub(crate) const RESERVE: i64 = 64 << 10;

/// The directory `apply` of the state directory.
#[derive(Debug)]
pub struct Store {
    pub(super) path: PathBuf,
}

impl Store {
    /// Opens it; makes what is missing.
    ///
    /// # Errors
    /// A directory that cannot be made.
    pub fn open(state: &Path) -> Result<Self, ApplyError> {
        let store = Self { path: state.join("apply") };
        for directory in ["", "contents", "originals", "generations"] {
            let path = store.path.join(directory);
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&path)
                .map_err(|error| ApplyError::store(&path, "make the directory", &error))?;
        }
        Ok(store)
    }

    /// The same without making anything; `None` when nothing was ever applied.
    ///
    /// # Errors
    /// It cannot be known whether there is one.
    pub fn look(state: &Path) -> Result<Option<Self>, ApplyError> {
        let store = Self { path: state.join("apply") };
        match fs::metadata(store.path.join("generations")) {
            Ok(metadata) => Ok(metadata.is_dir().then_some(store)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ApplyError::store(&store.path, "look for what was applied", &error)),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// One writer at a time, for as long as this lives; `None` when another one is at work.
    ///
    /// # Errors
    /// A lock file that cannot be opened.
    pub fn lock(&self) -> Result<Option<Flock<File>>, ApplyError> {
        let path = self.path.join("lock");
        let file = fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|error| ApplyError::store(&path, "open", &error))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Some(lock)),
            Err((_, Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => Err(ApplyError::failed(&path, "lock", errno)),
        }
    }

    /// Keeps a content; gives its digest.
    pub(crate) fn keep(&self, bytes: &[u8]) -> Result<String, ApplyError> {
        let name = hex::encode(Sha256::digest(bytes));
        let directory = self.path.join("contents");
        if !directory.join(&name).exists() {
            self.replace(&directory, &name, bytes)?;
        }
        Ok(name)
    }

    /// A content that was kept, checked against its name.
    pub(crate) fn content(&self, sha256: &str) -> Result<Vec<u8>, ApplyError> {
        let path = |directory| self.path.join(directory).join(sha256);
        let read = |path: &Path| bounded::read(path, bounded::CONTENT);
        let bytes = read(&path("contents")).or_else(|_| {
            let path = path("originals");
            read(&path).map_err(|error| ApplyError::store(&path, "read", &error))
        })?;
        if hex::encode(Sha256::digest(&bytes)) != sha256 {
            return Err(ApplyError::refused(&path("contents"), "the content that was kept has changed"));
        }
        Ok(bytes)
    }

    /// Forgets contents that only an apply under way needs.
    pub(crate) fn forget_contents(&self) -> Result<(), ApplyError> {
        let directory = self.path.join("contents");
        let handle = sys::directory(&directory).map_err(|e| ApplyError::failed(&directory, "open", e))?;
        let list = handle.try_clone().map_err(|error| ApplyError::store(&directory, "open", &error))?;
        for name in sys::names(list).map_err(|errno| ApplyError::failed(&directory, "read", errno))? {
            sys::remove(&handle, &name, false)
                .map_err(|errno| ApplyError::failed(&directory.join(&name), "remove", errno))?;
        }
        Ok(())
    }

    /// The original of a path.
    pub(crate) fn original(&self, path: &Path) -> Result<Option<Original>, ApplyError> {
        self.json(&self.path.join("originals").join(original_name(path)))
    }

    /// Paths of which an original is kept, in order.
    pub(crate) fn originals(&self) -> Result<Vec<PathBuf>, ApplyError> {
        let directory = self.path.join("originals");
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(ApplyError::store(&directory, "read", &error)),
        };
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| ApplyError::store(&directory, "read", &error))?.path();
            // Contents lie beside them, by their digest.
            if path.extension().is_some_and(|ending| ending == "json") {
                paths.extend(self.json::<Original>(&path)?.map(|original| original.path));
            }
        }
        paths.sort();
        Ok(paths)
    }

    /// Keeps the original of a path, unless one is kept already. The first one is the original, until it is given back.
    pub(crate) fn keep_original(&self, original: &Original) -> Result<(), ApplyError> {
        let (directory, name) = (self.path.join("originals"), original_name(&original.path));
        if directory.join(&name).exists() {
            return Ok(());
        }
        if let Some(sha256) = original.image.content() {
            let bytes = self.content(sha256)?;
            self.replace(&directory, sha256, &bytes)?;
        }
        self.write_json(&directory, &name, original)
    }

    /// Forgets the original of a path that no config declares any more.
    pub(crate) fn forget_original(&self, path: &Path) -> Result<(), ApplyError> {
        let directory = self.path.join("originals");
        let failed = |operation| move |errno| ApplyError::failed(path, operation, errno);
        let handle = sys::directory(&directory).map_err(failed("open the originals"))?;
        match sys::remove(&handle, OsStr::new(&original_name(path)), false) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(failed("forget the original")(errno)),
        }
    }

    /// How the node stands.
    ///
    /// # Errors
    /// A file that cannot be read or is none of ours.
    pub fn standing(&self) -> Result<Option<Standing>, ApplyError> {
        self.json(&self.path.join(STATE))
    }

    /// Says how the node stands.
    pub(crate) fn set_standing(&self, standing: &Standing) -> Result<(), ApplyError> {
        self.write_json(&self.path, STATE, standing)
    }

    /// Where a generation's manifests are.
    pub fn config(&self, id: u64) -> PathBuf {
        self.generation(id).join("config")
    }

    fn generation(&self, id: u64) -> PathBuf {
        self.path.join("generations").join(id.to_string())
    }

    /// Numbers of all generations, the oldest first.
    ///
    /// # Errors
    /// A directory that cannot be read.
    pub fn generations(&self) -> Result<Vec<u64>, ApplyError> {
        let path = self.path.join("generations");
        let entries = fs::read_dir(&path).map_err(|error| ApplyError::store(&path, "read", &error))?;
        let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
        let mut ids: Vec<u64> = entries.filter_map(name).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Keeps the manifests of a new generation, by file name and bytes.
    pub(crate) fn add_generation(&self, id: u64, manifests: &[(String, Vec<u8>)]) -> Result<(), ApplyError> {
        let config = self.config(id);
        for path in [self.generation(id), config.clone()] {
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(ApplyError::store(&path, "make the directory", &error));
                }
                _ => {}
            }
        }
        for (name, bytes) in manifests {
            self.replace(&config, name, bytes)?;
        }
        // The journal that names it must not be there without it.
        for path in [self.generation(id), self.path.join("generations")] {
            let synced = sys::directory(&path).and_then(sys::sync);
            synced.map_err(|errno| ApplyError::failed(&path, "sync the directory", errno))?;
        }
        Ok(())
    }

    /// Says what waits for the next boot once a generation is current. It belongs to the generation, so that it counts from
    /// the very moment on in which that one does, and never where it is given back. Where nothing waits nothing is said.
    pub(crate) fn set_waiting(&self, id: u64, waiting: &Waiting) -> Result<(), ApplyError> {
        if waiting.arguments.is_empty() {
            return Ok(());
        }
        self.write_json(&self.generation(id), WAITING, waiting)
    }

    /// What waits for the next boot in this one while a generation is current.
    ///
    /// # Errors
    /// A file that cannot be read or is none of ours.
    pub fn waiting(&self, id: u64, boot_id: &str) -> Result<Vec<WaitingArgument>, ApplyError> {
        let waiting: Option<Waiting> = self.json(&self.generation(id).join(WAITING))?;
        Ok(waiting.map(|waiting| waiting.in_boot(boot_id).to_vec()).unwrap_or_default())
    }

    /// Makes a generation the current one, at once.
    pub(crate) fn set_current(&self, id: u64) -> Result<(), ApplyError> {
        if matches!(self.current(), Ok(Some((current, _))) if current == id) {
            return Ok(());
        }
        let failed = |operation| move |errno| ApplyError::failed(&self.path.join(CURRENT), operation, errno);
        let directory = sys::directory(&self.path).map_err(failed("open"))?;
        let (name, new) = (OsStr::new(CURRENT), OsStr::new(".current.new"));
        match sys::remove(&directory, new, false) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(failed("remove what is left of it")(errno)),
        }
        let target = format!("generations/{id}/config");
        sys::symlink(OsStr::new(&target), &directory, new).map_err(failed("make the link"))?;
        sys::rename_over(&directory, new, name).map_err(failed("rename"))?;
        sys::sync(&directory).map_err(failed("sync"))
    }

    /// What became of an apply.
    ///
    /// # Errors
    /// A file that is none of ours.
    pub fn history<T: DeserializeOwned>(&self, id: u64) -> Result<Option<T>, ApplyError> {
        self.json(&self.generation(id).join(HISTORY))
    }

    /// Says what became of an apply.
    pub(crate) fn set_history(&self, id: u64, entry: &impl Serialize) -> Result<(), ApplyError> {
        self.write_json(&self.generation(id), HISTORY, entry)
    }

    /// The journal of an apply that is not over; `None` when there is none.
    ///
    /// # Errors
    /// A journal that was changed, or cannot be read.
    pub fn open_journal(&self) -> Result<Option<Parsed>, ApplyError> {
        let path = self.path.join(JOURNAL);
        let bytes = match bounded::read(&path, bounded::OWN) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(ApplyError::store(&path, "read", &error)),
        };
        codec::parse(&bytes).map(Some).map_err(ApplyError::Journal)
    }

    /// Begins a journal: it has its name only with its first record, whole and durable.
    pub(crate) fn begin(&self, record: &Record) -> Result<JournalFile, ApplyError> {
        let path = self.path.join(JOURNAL);
        let failed = |operation| move |errno| ApplyError::failed(&self.path.join(JOURNAL), operation, errno);
        self.forget_new_journal()?;
        let directory = sys::directory(&self.path).map_err(failed("open"))?;
        let (new, name) = (OsStr::new(NEW_JOURNAL), OsStr::new(JOURNAL));
        let file = sys::create(&directory, new).map_err(failed("make"))?;
        let mut journal = JournalFile { path, file, digest: String::new(), length: 0 };
        let begun = journal
            .append(record)
            .map_err(AppendError::into_inner)
            // Behind the first record, however long that is.
            .and_then(|()| journal.reserve().map_err(failed("reserve space")))
            // The journal must not be there without the contents and the config that it names.
            .and_then(|()| sys::sync_all(&directory).map_err(failed("sync the file system")))
            .and_then(|()| sys::rename_free(&directory, new, name).map_err(failed("rename")))
            .and_then(|()| sys::sync(&directory).map_err(failed("sync the directory")));
        if let Err(error) = begun {
            self.forget_new_journal()?;
            self.close()?;
            return Err(error);
        }
        Ok(journal)
    }

    /// Removes what a process left that died before its journal had its name.
    pub(crate) fn forget_new_journal(&self) -> Result<(), ApplyError> {
        let failed =
            |operation| move |errno| ApplyError::failed(&self.path.join(NEW_JOURNAL), operation, errno);
        let directory = sys::directory(&self.path).map_err(failed("open"))?;
        match sys::remove(&directory, OsStr::new(NEW_JOURNAL), false) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(failed("remove")(errno)),
        }
    }

    /// Opens a journal to go on with it, without what is unfinished at its end.
    pub(crate) fn go_on(&self, parsed: &Parsed) -> Result<JournalFile, ApplyError> {
        let path = self.path.join(JOURNAL);
        let file = fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .map_err(|error| ApplyError::store(&path, "open", &error))?;
        let mut journal =
            JournalFile { path, file: file.into(), digest: parsed.digest.clone(), length: parsed.sound };
        if parsed.torn > 0 {
            journal.cut().map_err(|errno| ApplyError::failed(&journal.path, "cut", errno))?;
        }
        Ok(journal)
    }

    /// Makes all of it durable.
    pub(crate) fn sync(&self) -> Result<(), ApplyError> {
        let synced = sys::directory(&self.path).and_then(sys::sync_all);
        synced.map_err(|errno| ApplyError::failed(&self.path, "sync the file system", errno))
    }

    /// Removes the journal.
    pub(crate) fn close(&self) -> Result<(), ApplyError> {
        let failed = |operation| move |errno| ApplyError::failed(&self.path.join(JOURNAL), operation, errno);
        let directory = sys::directory(&self.path).map_err(failed("open"))?;
        match sys::remove(&directory, OsStr::new(JOURNAL), false) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(failed("remove")(errno)),
        }
        sys::sync(&directory).map_err(failed("sync"))
    }

    #[expect(clippy::unused_self, reason = "files of the store are read through the store")]
    fn json<T: DeserializeOwned>(&self, path: &Path) -> Result<Option<T>, ApplyError> {
        match bounded::read(path, bounded::OWN) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|error| ApplyError::refused(path, format!("not what was written: {error}"))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ApplyError::store(path, "read", &error)),
        }
    }

    fn write_json(&self, directory: &Path, name: &str, value: &impl Serialize) -> Result<(), ApplyError> {
        let mut bytes = serde_json::to_vec_pretty(value)
            .map_err(|error| ApplyError::refused(&directory.join(name), error.to_string()))?;
        bytes.push(b'\n');
        self.replace(directory, name, &bytes)
    }

    /// Replaces a file of the store, durably.
    #[expect(clippy::unused_self, reason = "files of the store are replaced through the store")]
    fn replace(&self, directory: &Path, name: &str, bytes: &[u8]) -> Result<(), ApplyError> {
        let path = directory.join(name);
        let failed = |operation| {
            let path = path.clone();
            move |errno| ApplyError::failed(&path, operation, errno)
        };
        let handle = sys::directory(directory).map_err(failed("open the directory"))?;
        let temporary = format!(".{name}.new");
        match sys::remove(&handle, OsStr::new(&temporary), false) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(failed("remove what is left of it")(errno)),
        }
        let file = sys::create(&handle, OsStr::new(&temporary)).map_err(failed("make"))?;
        sys::write(&file, bytes).map_err(failed("write"))?;
        sys::sync(&file).map_err(failed("sync"))?;
        sys::rename_over(&handle, OsStr::new(&temporary), OsStr::new(name)).map_err(failed("rename"))?;
        sys::sync(&handle).map_err(failed("sync the directory"))
    }
}

fn original_name(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    format!("{}.json", hex::encode(Sha256::digest(path.as_os_str().as_bytes())))
}

/// A journal that is being written.
#[derive(Debug)]
pub(crate) struct JournalFile {
    path: PathBuf,
    file: OwnedFd,
    digest: String,
    /// Bytes of whole records.
    length: usize,
}

/// A record was not written.
#[derive(Debug)]
pub(crate) enum AppendError {
    /// And nothing of it is left.
    Clean(ApplyError),
    /// And the journal's end is unknown.
    Broken(ApplyError),
}

impl AppendError {
    fn into_inner(self) -> ApplyError {
        match self {
            Self::Clean(error) | Self::Broken(error) => error,
        }
    }
}

impl JournalFile {
    /// Adds a record, durably.
    pub(crate) fn append(&mut self, record: &Record) -> Result<(), AppendError> {
        let (line, digest) = codec::line(&self.digest, record)
            .map_err(|error| AppendError::Clean(ApplyError::Journal(error)))?;
        let written = sys::write(&self.file, line.as_bytes()).and_then(|()| sys::sync(&self.file));
        if let Err(errno) = written {
            let error = ApplyError::failed(&self.path, "write a record", errno);
            // A disk that turned read-only takes no cut either, and nothing has come to it that needs one.
            let clean = self.is_as_it_was() || self.cut().is_ok();
            return Err(if clean { AppendError::Clean(error) } else { AppendError::Broken(error) });
        }
        self.digest = digest;
        self.length += line.len();
        Ok(())
    }

    /// Whether nothing was written behind the last whole record.
    fn is_as_it_was(&self) -> bool {
        let size = nix::sys::stat::fstat(&self.file).map(|stat| usize::try_from(stat.st_size));
        size == Ok(Ok(self.length))
    }

    fn cut(&mut self) -> Result<(), Errno> {
        let length = i64::try_from(self.length).map_err(|_| Errno::EFBIG)?;
        sys::truncate(&self.file, length)?;
        nix::unistd::lseek(&self.file, length, nix::unistd::Whence::SeekSet)?;
        sys::sync(&self.file)?;
        // What was reserved is cut off, too. Where it cannot be had again, the records may still find room.
        let _ = self.reserve();
        Ok(())
    }

    /// Keeps room for the records to come.
    fn reserve(&self) -> Result<(), Errno> {
        let length = i64::try_from(self.length).map_err(|_| Errno::EFBIG)?;
        sys::reserve(&self.file, length, RESERVE)
    }
}
