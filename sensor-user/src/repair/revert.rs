//! Repairs by the daemon, under a `revert` policy.
//!
//! In: a drifted thing, and the config. Out: an implementation of [`WriteBack`] for the daemon's loop.

use super::{Restored, Restorer};
use crate::agent::write_back::{WriteBack, WriteBackError, WriteBackRequest, WrittenBack};
use std::{
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
};

/// Gives the daemon's loop a [`Restorer`].
#[derive(Debug)]
pub struct Reverter {
    root: PathBuf,
}

impl Reverter {
    /// For the host at `root`.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }
}

impl WriteBack for Reverter {
    fn write_back<'a>(
        &'a mut self,
        wanted: WriteBackRequest<'a>,
    ) -> Pin<Box<dyn Future<Output = Result<WrittenBack, WriteBackError>> + 'a>> {
        Box::pin(async move {
            let mut restorer = Restorer::new(Arc::clone(wanted.observer), &self.root);
            let result = restorer.restore(wanted.config, wanted.expectation, wanted.ids).await;
            let Restored { before, actions } = result.map_err(WriteBackError::new)?;
            Ok(WrittenBack { before, actions })
        })
    }
}
