//! Temporary names, and their removal after a process was killed.
//!
//! In: a directory. Out: the directory without the temporary names of processes that have ended. Those of a running Holdfast stay.

use super::{error::DiskError, listing::each_name, place::Place};
use crate::observation::Observer;
use std::{
    ffi::{OsStr, OsString},
    fs,
    ops::ControlFlow,
    path::Path,
};

/// How a temporary name begins and ends. Nothing reads a name with this ending in a drop-in directory.
const AFFIXES: (&str, &str) = (".holdfast-", ".new");

/// The name of this program's processes.
const PROGRAM: &str = "holdfast";

/// How many names one call removes from a directory, whose owner may have made millions.
const MOST: usize = 1024;

/// A temporary name of this process.
pub(super) fn temporary_name(number: u64) -> OsString {
    let (start, end) = AFFIXES;
    OsString::from(format!("{start}{}-{number}{end}", std::process::id()))
}

/// Removes the temporary names of ended processes from a directory, and returns their number.
pub(crate) fn remove_leftovers(observer: &Observer, directory: &Path) -> Result<usize, DiskError> {
    let mut paths = Vec::new();
    each_name(observer, directory, |name| {
        if maker(name).is_some_and(|pid| !is_running(pid)) {
            paths.push(directory.join(name));
        }
        let flow = if paths.len() < MOST { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
        Ok::<_, DiskError>(flow)
    })?;
    let mut last = None;
    for path in &paths {
        if let Some(place) = Place::find(observer.root(), path)? {
            place.remove_unfinished(&place.name)?;
            last = Some(place);
        }
    }
    last.map_or(Ok(()), |place| place.sync())?;
    Ok(paths.len())
}

/// The process that made a temporary name; `None` for every other name.
fn maker(name: &OsStr) -> Option<u32> {
    let (start, end) = AFFIXES;
    let (pid, number) = name.to_str()?.strip_prefix(start)?.strip_suffix(end)?.split_once('-')?;
    number.parse::<u64>().ok()?;
    pid.parse().ok()
}

/// Whether a process is this one, or another Holdfast.
fn is_running(pid: u32) -> bool {
    let is_holdfast =
        || fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == PROGRAM);
    pid == std::process::id() || is_holdfast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_of_ended_processes_are_removed_and_all_others_stay() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(format!("d/{name}"));
        fs::create_dir(root.path().join("d")).unwrap();
        let own = temporary_name(7).into_string().unwrap();
        // No process has a number above the kernel's limit, and process 1 is not Holdfast.
        let ended = [".holdfast-4194305-0.new", ".holdfast-1-3.new"];
        let others = [
            own.as_str(),
            ".holdfast-apply-2-1",
            ".holdfast-x-1.new",
            ".holdfast-4194305-0.new.conf",
            "a.new",
        ];
        for name in ended.iter().chain(&others) {
            fs::write(at(name), "").unwrap();
        }
        fs::create_dir(at(".holdfast-4194305-1.new")).unwrap();
        let observer = Observer::new(root.path()).unwrap();
        assert_eq!(remove_leftovers(&observer, Path::new("/d")).unwrap(), 3);
        let left = fs::read_dir(root.path().join("d")).unwrap();
        let left: BTreeSet<String> =
            left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(left, others.map(str::to_owned).into());
        assert_eq!(remove_leftovers(&observer, Path::new("/missing")).unwrap(), 0);
    }
}
