//! Temporary names, and their removal after a process was killed.
//!
//! In: a directory. Out: the directory without the temporary names of processes that have ended. Those of a running Holdfast stay.

use super::{error::DiskError, listing::each_name, place::Place};
use crate::{observation::Observer, sys::temporary::maker};
use nix::errno::Errno;
use std::{
    fs, io,
    ops::ControlFlow,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// The name of this program's processes.
const PROGRAM: &str = "holdfast";

/// How many names one call removes from a directory, whose owner may have made millions.
const MOST: usize = 1024;

/// No Holdfast keeps a temporary name for so long.
const LONGEST: Duration = Duration::from_mins(10);

/// Whether the process that made a temporary name runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MakingProcess {
    Running,
    Ended,
    /// Another program has its number, or `/proc` does not show it.
    Unknown,
}

/// Removes the temporary names of ended processes from a directory. Returns the number of removed names, and the first error.
pub(crate) fn remove_leftovers(observer: &Observer, directory: &Path) -> (usize, Result<(), DiskError>) {
    remove_at(observer, directory, SystemTime::now())
}

fn remove_at(observer: &Observer, directory: &Path, now: SystemTime) -> (usize, Result<(), DiskError>) {
    let mut result = Ok(());
    let mut places = Vec::new();
    let listed = each_name(observer, directory, |name| {
        match unfinished(observer, &directory.join(name), now) {
            Ok(place) => places.extend(place),
            Err(error) => keep_first(&mut result, Err(error)),
        }
        let flow = if places.len() < MOST { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
        Ok::<_, DiskError>(flow)
    });
    keep_first(&mut result, listed);
    let mut count = 0;
    for place in &places {
        match place.remove_unfinished(&place.name) {
            Ok(()) => count += 1,
            Err(error) => keep_first(&mut result, Err(error)),
        }
    }
    if let Some(place) = places.last() {
        keep_first(&mut result, place.sync());
    }
    (count, result)
}

fn keep_first(result: &mut Result<(), DiskError>, next: Result<(), DiskError>) {
    if result.is_ok() {
        *result = next;
    }
}

/// The place of a path, if it is the temporary name of an ended process.
fn unfinished(observer: &Observer, path: &Path, now: SystemTime) -> Result<Option<Place>, DiskError> {
    let Some(pid) = path.file_name().and_then(maker) else { return Ok(None) };
    let state = state(pid);
    if state == MakingProcess::Running {
        return Ok(None);
    }
    let Some(place) = Place::find(observer.root(), path)? else { return Ok(None) };
    let Some(stat) = place.stat()? else { return Ok(None) };
    let changed = UNIX_EPOCH + Duration::from_secs(u64::try_from(stat.st_ctime).unwrap_or(0));
    // A time in the future is no proof of age.
    let is_old = now.duration_since(changed).is_ok_and(|age| age > LONGEST);
    Ok((state == MakingProcess::Ended || is_old).then_some(place))
}

/// Whether a process is this one, or another Holdfast.
fn state(pid: u32) -> MakingProcess {
    if pid == std::process::id() {
        return MakingProcess::Running;
    }
    // Without a mounted `/proc` all processes are missing.
    let has_proc = fs::exists("/proc/self").unwrap_or(false);
    state_by_comm(fs::read_to_string(format!("/proc/{pid}/comm")), has_proc)
}

fn state_by_comm(comm: io::Result<String>, has_proc: bool) -> MakingProcess {
    match comm {
        Ok(name) if name.trim() == PROGRAM => MakingProcess::Running,
        Err(error)
            if has_proc
                && matches!(
                    error.raw_os_error().map(Errno::from_raw),
                    Some(Errno::ENOENT | Errno::ESRCH)
                ) =>
        {
            MakingProcess::Ended
        }
        _ => MakingProcess::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::temporary::name_of;
    use std::collections::BTreeSet;
    use tempfile::TempDir;

    /// A root with a directory `d` that has files of these names.
    fn with_names(names: &[&str]) -> (TempDir, Observer) {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("d")).unwrap();
        for name in names {
            fs::write(root.path().join("d").join(name), "").unwrap();
        }
        let observer = Observer::new(root.path()).unwrap();
        (root, observer)
    }

    fn names(root: &TempDir) -> BTreeSet<String> {
        let left = fs::read_dir(root.path().join("d")).unwrap();
        left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn removed(observer: &Observer, path: &str) -> usize {
        let (count, result) = remove_leftovers(observer, Path::new(path));
        result.unwrap();
        count
    }

    // No process has a number above the kernel's limit.
    const ENDED: &str = ".holdfast-4194305-0.new";

    #[test]
    fn names_of_ended_processes_are_removed_and_all_others_stay() {
        let own = name_of(std::process::id(), 7).into_string().unwrap();
        let others = [
            own.as_str(),
            ".holdfast-apply-2-1",
            ".holdfast-x-1.new",
            ".holdfast-4194305-0.new.conf",
            ".holdfast-+4194305-0.new",
            ".holdfast-4194305-+1.new",
            ".holdfast-04194305-0.new",
            ".holdfast-4194305-007.new",
            ".holdfast-0-1.new",
            "a.new",
        ];
        let (root, observer) = with_names(&[&others[..], &[ENDED]].concat());
        fs::create_dir(root.path().join("d/.holdfast-4194305-1.new")).unwrap();
        assert_eq!(removed(&observer, "/d"), 2);
        assert_eq!(names(&root), others.map(str::to_owned).into());
        assert_eq!(removed(&observer, "/missing"), 0);
    }

    #[test]
    fn a_name_whose_process_is_unknown_is_removed_only_ten_minutes_later() {
        // Process 1 is not Holdfast.
        let name = ".holdfast-1-3.new";
        let (root, observer) = with_names(&[name]);
        let at = |now| remove_at(&observer, Path::new("/d"), now);
        let now = SystemTime::now();
        for now in [now, now - LONGEST * 2, now + LONGEST - Duration::from_secs(5)] {
            let (count, result) = at(now);
            result.unwrap();
            assert_eq!((count, names(&root).len()), (0, 1), "{now:?}");
        }
        let (count, result) = at(now + LONGEST + Duration::from_secs(5));
        result.unwrap();
        assert_eq!((count, names(&root).len()), (1, 0));
    }

    #[test]
    fn only_a_missing_process_is_known_to_have_ended() {
        let failed = |errno: Errno| Err(io::Error::from(errno));
        for (comm, expected) in [
            (Ok("holdfast\n".to_owned()), MakingProcess::Running),
            (Ok("other\n".to_owned()), MakingProcess::Unknown),
            (failed(Errno::ENOENT), MakingProcess::Ended),
            (failed(Errno::ESRCH), MakingProcess::Ended),
            (failed(Errno::EACCES), MakingProcess::Unknown),
            (failed(Errno::EMFILE), MakingProcess::Unknown),
        ] {
            let what = format!("{comm:?}");
            assert_eq!(state_by_comm(comm, true), expected, "{what}");
        }
        assert_eq!(state_by_comm(failed(Errno::ENOENT), false), MakingProcess::Unknown, "no /proc");
        assert_eq!(state(std::process::id()), MakingProcess::Running);
        assert_eq!(state(4_194_305), MakingProcess::Ended);
    }

    #[test]
    fn a_name_that_cannot_be_removed_keeps_no_other_one() {
        let (root, observer) = with_names(&[ENDED, ".holdfast-4194305-2.new"]);
        for number in [1, 3] {
            fs::create_dir_all(root.path().join(format!("d/.holdfast-4194305-{number}.new/full"))).unwrap();
        }
        let (count, result) = remove_leftovers(&observer, Path::new("/d"));
        assert_eq!((count, names(&root).len()), (2, 2));
        let error = result.unwrap_err().to_string();
        assert!(error.contains("remove an unfinished object"), "{error}");
    }
}
