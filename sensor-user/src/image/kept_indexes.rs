//! The host's indexes, kept open for look-ups of single paths.
//!
//! In: an observer, the state directory, and a path. Out: whether an index has the path. Opening an index reads all of it, because its digest is
//! verified then. So the indexes stay open until the directory of indexes changes, or what they have to be of.

use super::{
    EXTENSIONS, chosen::applying, deployment::booted_commit, error::ImageError, images::Images,
    index::ImageIndex, merged_extensions,
};
use crate::{
    observation::Observer,
    packages,
    sys::{FileVersion, version_of},
};
use nix::sys::stat::lstat;
use std::{
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// After this time without an answer, indexes that could not be read are opened again. The error may be one of the moment, such as a lack of
/// memory, and users without rights cause look-ups, each of which would read the indexes.
const RETRY: Duration = Duration::from_secs(10);

/// The indexes of a host, opened at the first look-up.
#[derive(Debug, Default)]
pub(crate) struct KeptIndexes(Option<Kept>);

#[derive(Debug)]
struct Kept {
    of: HostState,
    indexes: Opened,
}

#[derive(Debug)]
enum Opened {
    /// They describe the host.
    Whole(Vec<ImageIndex>),
    /// One is missing or old.
    NotWhole,
    /// One could not be read at this time. Look-ups get no answer for a while.
    Failed(Instant),
}

/// What decides which indexes apply to a host.
#[derive(Debug, PartialEq, Eq)]
struct HostState {
    directory: PathBuf,
    /// A new index gets its name by a rename, which changes the directory.
    version: Option<FileVersion>,
    commit: Option<String>,
    packages: String,
    extensions: String,
}

impl KeptIndexes {
    /// Whether the host's image, packages or baseline have something at a path; `None` if an index is missing or old, or could not be read shortly
    /// before.
    ///
    /// # Errors
    /// An index cannot be read.
    pub(crate) fn has(
        &mut self,
        observer: &Observer,
        state: &Path,
        path: &Path,
    ) -> Result<Option<bool>, ImageError> {
        let images = Images::of(state);
        // Before the indexes are opened: a later change is seen by the next look-up.
        let of = HostState::now(&images, observer);
        if let Some(Kept { indexes: Opened::Failed(at), .. }) = self.0.as_ref().filter(|kept| kept.of == of)
            && at.elapsed() < RETRY
        {
            return Ok(None);
        }
        let indexes = match self.0.take() {
            Some(Kept { of: before, indexes: Opened::Whole(indexes) }) if before == of => Ok(Some(indexes)),
            Some(Kept { of: before, indexes: Opened::NotWhole }) if before == of => Ok(None),
            _ => applying(&images, observer).map(|chosen| {
                let is_whole = chosen.is_whole(observer);
                is_whole.then_some(chosen.indexes)
            }),
        };
        let looked_up = indexes.and_then(|indexes| {
            let Some(indexes) = indexes else { return Ok((None, Opened::NotWhole)) };
            let has = any_has(&indexes, path)?;
            Ok((Some(has), Opened::Whole(indexes)))
        });
        let (has, indexes) = match looked_up {
            Ok((has, indexes)) => (Ok(has), indexes),
            Err(error) => (Err(error), Opened::Failed(Instant::now())),
        };
        self.0 = Some(Kept { of, indexes });
        has
    }
}

/// Whether an index has a path.
fn any_has(indexes: &[ImageIndex], path: &Path) -> Result<bool, ImageError> {
    for index in indexes {
        if index.find(path.as_os_str().as_bytes())?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

impl HostState {
    fn now(images: &Images, observer: &Observer) -> Self {
        let has_extensions = images.has(EXTENSIONS);
        Self {
            directory: images.path().to_owned(),
            version: lstat(images.path()).ok().map(|stat| version_of(&stat)),
            commit: booted_commit(observer),
            packages: packages::versions(observer),
            extensions: if has_extensions { merged_extensions::state(observer) } else { String::new() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{index_baseline, index_packages, take_baseline};
    use std::{fs, os::unix::fs::FileExt as _};

    fn index(observer: &Observer, state: &Path) {
        let baseline = take_baseline(observer, &["/opt".into()], &mut |_| {}).unwrap();
        let text = serde_json::to_vec(&baseline).unwrap();
        index_baseline(Path::new("baseline.json"), &text, &Images::of(state)).unwrap();
    }

    #[test]
    fn an_index_is_read_once_for_any_number_of_paths_and_a_new_one_is_used_at_once() {
        let place = tempfile::tempdir().unwrap();
        let (root, state) = (place.path().join("root"), place.path().join("state"));
        fs::create_dir_all(root.join("opt")).unwrap();
        fs::write(root.join("opt/a"), "a").unwrap();
        let observer = Observer::new(&root).unwrap();
        let mut kept = KeptIndexes::default();
        assert_eq!(kept.has(&observer, &state, Path::new("/opt/a")).unwrap(), None, "no index");
        index(&observer, &state);
        assert_eq!(kept.has(&observer, &state, Path::new("/opt/a")).unwrap(), Some(true));
        // A reader of the whole file would find its digest wrong.
        let path = state.join("images/baseline.index");
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[0; 32], fs::metadata(&path).unwrap().len() - 32).unwrap();
        for number in 0..1000 {
            let path = PathBuf::from(format!("/opt/{number}"));
            assert_eq!(kept.has(&observer, &state, &path).unwrap(), Some(false), "{number}");
        }
        let mut damaged = KeptIndexes::default();
        for _ in 0..2 {
            assert!(damaged.has(&observer, &state, Path::new("/opt/a")).is_err());
            for _ in 0..3 {
                assert_eq!(damaged.has(&observer, &state, Path::new("/opt/a")).unwrap(), None);
            }
            let Some(Kept { indexes: Opened::Failed(at), .. }) = &mut damaged.0 else {
                panic!("it can be read")
            };
            *at = at.checked_sub(RETRY).unwrap();
        }
        fs::write(root.join("opt/b"), "b").unwrap();
        index(&observer, &state);
        for kept in [&mut kept, &mut damaged] {
            assert_eq!(kept.has(&observer, &state, Path::new("/opt/b")).unwrap(), Some(true));
        }
    }

    #[test]
    fn an_index_of_packages_that_changed_gives_no_answer() {
        let place = tempfile::tempdir().unwrap();
        let (root, state) = (place.path().join("root"), place.path().join("state"));
        let dpkg = root.join("var/lib/dpkg");
        fs::create_dir_all(dpkg.join("info")).unwrap();
        let status = "Package: a\nStatus: install ok installed\nVersion: 1\nArchitecture: all\n";
        fs::write(dpkg.join("status"), status).unwrap();
        fs::write(dpkg.join("info/a.list"), "/.\n/opt\n/opt/a\n").unwrap();
        let observer = Observer::new(&root).unwrap();
        index_packages(&observer, &Images::of(&state), &mut |_, _| {}).unwrap();
        let mut kept = KeptIndexes::default();
        assert_eq!(kept.has(&observer, &state, Path::new("/opt/a")).unwrap(), Some(true));
        assert_eq!(kept.has(&observer, &state, Path::new("/opt/b")).unwrap(), Some(false));
        fs::write(dpkg.join("status"), status.replace("Version: 1", "Version: 2")).unwrap();
        assert_eq!(kept.has(&observer, &state, Path::new("/opt/b")).unwrap(), None);
    }
}
