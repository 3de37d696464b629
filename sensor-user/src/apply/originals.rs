//! What a path goes back to when no config declares it any more.
//!
//! In: a path, the host and the store. Out: an image. What a package shipped can be had only where rpm or dpkg left it on the
//! disk; their databases hold no contents.

use super::{ApplyError, targets::Planner};
use sensor_model::journal::Image;
use std::path::Path;

/// Endings under which rpm and dpkg leave what a package ships for a path where something else is.
const PUT_ASIDE: [&str; 2] = [".rpmnew", ".dpkg-dist"];

impl Planner<'_> {
    /// What a path goes back to when nothing declares it any more: what the OS ships, else what was there before, else
    /// what a package brought meanwhile.
    pub(super) fn original(&self, path: &Path) -> Result<Image, ApplyError> {
        if let Ok(below) = path.strip_prefix("/etc") {
            let shipped = self.image(&Path::new("/usr/etc").join(below))?;
            if shipped != Image::Absent {
                return Ok(shipped);
            }
        }
        if let Some(original) = self.store.original(path)?
            && original.image != Image::Absent
        {
            return Ok(original.image);
        }
        // A package that was installed or upgraded since put its own file aside, where ours was in its place.
        for ending in PUT_ASIDE {
            let mut aside = path.as_os_str().to_owned();
            aside.push(ending);
            if let image @ Image::File(_) = self.image(Path::new(&aside))? {
                return Ok(image);
            }
        }
        Ok(Image::Absent)
    }
}
