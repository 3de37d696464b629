//! The preparation of a target's edit.
//!
//! In: a target's number. Out: a note of a path that is written again; the lock of the shadow file.

use super::state::{ApplyNotes, Driver};
use crate::apply::{
    error::ApplyError,
    password::{self, ShadowLock},
};
use sensor_model::{journal::target_edit::TargetEdit, node_state::Wait};
use std::path::Path;

impl Driver<'_> {
    /// Notes a path that is written again, and locks the shadow file.
    pub(super) async fn before_edit(
        &mut self,
        number: usize,
        edit: TargetEdit,
        notes: &mut dyn ApplyNotes,
    ) -> Result<(), ApplyError> {
        let writes = matches!(edit, TargetEdit::PutIn | TargetEdit::Swap | TargetEdit::Set(_));
        if writes && number >= self.begin.targets.len() {
            notes.note_overwritten(self.target(number))?;
        }
        self.lock_shadow(number, notes).await
    }

    /// Locks the shadow file. A rollback and a resumed apply write it without reading it first.
    async fn lock_shadow(&mut self, target: usize, notes: &mut dyn ApplyNotes) -> Result<(), ApplyError> {
        if self.target(target).path == Path::new(password::SHADOW) && self.shadow.is_none() {
            let waits = &mut self.waits;
            let mut note = |what: &str| {
                notes.waits(Wait::Lock, what);
                *waits = None;
            };
            self.shadow = Some(ShadowLock::take(self.observer, &mut note).await?);
        }
        Ok(())
    }
}
