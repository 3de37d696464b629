//! The comparison after a rollback.
//!
//! In: the old config. Out: the same differences as those of `check`, and hard links that came apart.

use super::{
    host::{AfterRollback, Engine},
    notes::StoreNotes,
};
use crate::apply::{
    run::Run,
    verify::{Verifier, What},
    waiting,
};
use sensor_model::{
    journal::{ApplyEnd, machine::MachineEnd},
    merge::Rendered,
};

/// The two configs of an apply, or why there is none.
pub(super) struct Configs<'a> {
    /// `None` where the store has none.
    pub(super) old: Result<Option<Rendered>, String>,
    pub(super) new: Result<&'a Rendered, String>,
}

impl Engine {
    /// Compares the host with the config that was restored; reports differences and hard links that came apart.
    pub(super) async fn compare(
        &self,
        run: &Run<'_>,
        end: &MachineEnd,
        old: Result<Option<Rendered>, String>,
        what: What,
        ending: &StoreNotes<'_>,
    ) -> (AfterRollback, Vec<String>) {
        let mut problems = match end {
            MachineEnd::Closed(ended @ (ApplyEnd::Done | ApplyEnd::RolledBack)) => run.apart(*ended),
            _ => Vec::new(),
        };
        let mut back = AfterRollback::No;
        if matches!(end, MachineEnd::Closed(ApplyEnd::RolledBack)) {
            let compared = match old {
                Ok(Some(old)) => self.differences(&old, what).await.map(Some),
                Ok(None) => Ok(None),
                Err(reason) => Err(reason),
            };
            back = match compared {
                Ok(Some(differences)) if differences.is_empty() => AfterRollback::AsDeclared,
                Ok(Some(differences)) => {
                    problems.extend(differences);
                    AfterRollback::Differs
                }
                Ok(None) => AfterRollback::Uncompared,
                Err(reason) => {
                    problems.push(format!("the host could not be compared with the old config: {reason}"));
                    AfterRollback::Uncompared
                }
            };
        }
        ending.found(&problems);
        (back, problems)
    }

    async fn differences(&self, old: &Rendered, what: What) -> Result<Vec<String>, String> {
        let expected =
            waiting::expected(&self.store, &self.boot_id, old).map_err(|error| error.to_string())?;
        let policy = self.policy_or_none();
        let mut verifier = Verifier::new(&self.observer, &self.options.root, old, &policy, expected, what);
        Ok(verifier.verify().await.problems)
    }
}
