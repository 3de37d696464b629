//! The targets of an apply, and what has to be done before a step of one.
//!
//! In: a target's number. Out: the target; a note of what is put again; the lock of the shadow file.

use super::state::{Run, RunNotes};
use crate::apply::{
    error::ApplyError,
    password::{self, ShadowLock},
};
use sensor_model::{journal::settle::Settling, node_state::Wait};
use std::path::Path;

impl Run<'_> {
    /// What has to be so before a step of a target: what is put again is noted, and the shadow file is locked.
    pub(super) async fn before_step(
        &mut self,
        number: usize,
        step: Settling,
        ending: &mut dyn RunNotes,
    ) -> Result<(), ApplyError> {
        let comes = matches!(step, Settling::PutIn | Settling::Swap | Settling::Set(_));
        if comes && number >= self.begin.targets.len() {
            ending.put_again(self.target(number))?;
        }
        self.lock_shadow(number, ending).await
    }

    /// On the way back, and after a death, the shadow file is written without having been read before.
    async fn lock_shadow(&mut self, target: usize, ending: &mut dyn RunNotes) -> Result<(), ApplyError> {
        if self.target(target).path == Path::new(password::SHADOW) && self.shadow.is_none() {
            let waits = &mut self.waits;
            let mut told = |what: &str| {
                ending.waits(Wait::Lock, what);
                *waits = None;
            };
            self.shadow = Some(ShadowLock::take(self.observer, &mut told).await?);
        }
        Ok(())
    }
}
