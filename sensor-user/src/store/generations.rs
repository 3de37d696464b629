//! Which generation is current.
//!
//! In: the link `current`. Out: the generation's number and the directory of its manifests. Where that cannot be known it is an
//! error: a host is never compared with another config in silence.

use super::files::{CURRENT, Store};
use crate::apply::ApplyError;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

impl Store {
    /// The generation that is current by a state directory; `None` when nothing was ever applied.
    ///
    /// # Errors
    /// It cannot be known which one is.
    pub fn current_in(state: &Path) -> Result<Option<(u64, PathBuf)>, ApplyError> {
        Self::look(state)?.map_or(Ok(None), |store| store.current())
    }

    /// The generation that is current, and the directory of its manifests; `None` when none was ever applied.
    ///
    /// # Errors
    /// The link to it cannot be read, or is none of ours.
    pub fn current(&self) -> Result<Option<(u64, PathBuf)>, ApplyError> {
        let path = self.path.join(CURRENT);
        let target = match fs::read_link(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            target => target.map_err(|error| ApplyError::store(&path, "read the link", &error))?,
        };
        let id = target.iter().nth(1).and_then(|id| id.to_str()?.parse().ok());
        let id = id.ok_or_else(|| ApplyError::refused(&path, "is no link to generations/NUMBER/config"))?;
        Ok(Some((id, self.config(id))))
    }
}
