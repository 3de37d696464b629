//! The replacement of a whole file of Holdfast's own.
//!
//! In: a directory, a name and bytes. Out: the old file or the new one, whole and synced, also if the process is killed.

use super::{CallError, create, directory as opened, remove, rename_over, sync, write};
use nix::errno::Errno;
use std::{ffi::OsStr, path::Path};

/// Replaces a file, durably. One process at a time may do so.
///
/// # Errors
/// The kernel refused an operation; the error names it and the file.
pub(crate) fn replace(directory: &Path, name: &str, bytes: &[u8]) -> Result<(), CallError> {
    let path = directory.join(name);
    let failed = |operation| {
        let path = path.clone();
        move |errno| CallError::new(&path, operation, errno)
    };
    let handle = opened(directory).map_err(failed("open the directory"))?;
    let temporary = format!(".{name}.new");
    match remove(&handle, OsStr::new(&temporary), false) {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(errno) => return Err(failed("remove the temporary file")(errno)),
    }
    let file = create(&handle, OsStr::new(&temporary)).map_err(failed("make"))?;
    write(&file, bytes).map_err(failed("write"))?;
    sync(&file).map_err(failed("sync"))?;
    rename_over(&handle, OsStr::new(&temporary), OsStr::new(name)).map_err(failed("rename"))?;
    sync(&handle).map_err(failed("sync the directory"))
}
