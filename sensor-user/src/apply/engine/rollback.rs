//! The comparison after a rollback.
//!
//! In: the old config. Out: the differences that `check` reports, and files whose hard links were separated.

use super::{
    notes::StoreNotes,
    state::{AfterRollback, Engine},
};
use crate::apply::{
    driver::Driver,
    error::ApplyError,
    verify::{ComparedThings, HostComparer},
    waiting,
};
use sensor_model::{
    journal::{ApplyEnd, machine::MachineEnd},
    merge::Rendered,
};

/// The two configs of an apply, or why they cannot be read.
pub(super) struct OldAndNew<'a> {
    /// `None` if the store has no config from before the apply.
    pub(super) old: Result<Option<Rendered>, ApplyError>,
    pub(super) new: Result<&'a Rendered, ApplyError>,
}

impl Engine {
    /// Compares the host with the restored config; reports differences and separated hard links.
    pub(super) async fn compare_after_rollback(
        &self,
        driver: &Driver<'_>,
        end: &MachineEnd,
        old: Result<Option<Rendered>, ApplyError>,
        scope: ComparedThings,
        notes: &StoreNotes<'_>,
    ) -> (AfterRollback, Vec<String>) {
        let mut problems = match end {
            MachineEnd::Closed(ended @ (ApplyEnd::Done | ApplyEnd::RolledBack)) => driver.separated(*ended),
            _ => Vec::new(),
        };
        let mut back = AfterRollback::No;
        if matches!(end, MachineEnd::Closed(ApplyEnd::RolledBack)) {
            let compared = match old {
                Ok(Some(old)) => self.differences(&old, scope).await.map(Some),
                Ok(None) => Ok(None),
                Err(error) => Err(error),
            };
            back = match compared {
                Ok(Some(differences)) if differences.is_empty() => AfterRollback::AsDeclared,
                Ok(Some(differences)) => {
                    problems.extend(differences);
                    AfterRollback::Differs
                }
                Ok(None) => AfterRollback::Uncompared,
                Err(error) => {
                    problems.push(format!("the host could not be compared with the old config: {error}"));
                    AfterRollback::Uncompared
                }
            };
        }
        notes.found(&problems);
        (back, problems)
    }

    async fn differences(&self, old: &Rendered, scope: ComparedThings) -> Result<Vec<String>, ApplyError> {
        let expected = waiting::expected(&self.store, &self.boot_id, old)?;
        let policy = self.policy_or_none();
        let mut comparer =
            HostComparer::new(&self.observer, &self.options.root, old, &policy, expected, scope);
        Ok(comparer.compare().await.problems)
    }
}
