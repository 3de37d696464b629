//! The order of an apply to one host: plan, consent, notes, apply.
//!
//! In: the configs of an apply, and the operator's answer. Out: how the run ended. It writes nothing before the operator
//! consents, and holds no lock while the operator reads. The engine notices at its start if another apply ended in the
//! meantime.

use super::{
    ResumeLimit,
    consent::{ConsentError, GivenConsent, MissingConsent, ProposedApply},
    host_apply::{ApplyConfigs, HostApply, HostApplyError},
    report::ApplyReport,
    request::Progress,
};
use sensor_model::plan::Plan;

/// The note on a step that only a cluster can take.
pub const NO_DRAIN: &str = "on a single host Holdfast does not drain; move workloads away first";

/// How a run ended.
#[derive(Debug)]
pub enum HostRunEnd {
    /// A dry run has a plan.
    Planned {
        /// The plan.
        plan: Box<Plan>,
        /// Whether every declared path would be written.
        forced: bool,
        /// Whether an earlier apply has to be finished first.
        is_open: bool,
    },
    /// The operator did not consent, and nothing was started.
    Refused,
    /// The apply ended, or there was nothing to do.
    Reported(Box<ApplyReport>),
}

impl HostApply {
    /// Plans without any change of the host.
    ///
    /// # Errors
    /// Bad input, facts of the host that cannot be read, or a store that cannot be read.
    pub fn dry_run(
        &self,
        configs: &ApplyConfigs,
        progress: Progress<'_>,
    ) -> Result<HostRunEnd, HostApplyError> {
        let plan = Box::new(self.plan(configs)?);
        let interrupted = self.interrupted()?;
        if let Some(id) = interrupted {
            progress(&format!(
                "note: apply number {id} was interrupted; Holdfast finishes it or restores the old config first"
            ));
        }
        Ok(HostRunEnd::Planned { plan, forced: configs.forced, is_open: interrupted.is_some() })
    }

    /// Plans and applies. `consent` answers whether the apply may start; it is called only if `given` is not enough.
    ///
    /// # Errors
    /// Bad input, no answer, and why the apply did not start. Later failures are in the report.
    pub async fn run(
        &self,
        configs: ApplyConfigs,
        given: GivenConsent,
        consent: impl FnOnce(&ProposedApply<'_>) -> Result<bool, ConsentError>,
        progress: Progress<'_>,
    ) -> Result<HostRunEnd, HostApplyError> {
        let plan = self.plan(&configs)?;
        if configs.are_unchanged(&plan) {
            let found = self.confirm(&configs).await?;
            return Ok(HostRunEnd::Reported(Box::new(ApplyReport::unchanged(found, plan, self.state()))));
        }
        let reboots = plan.reboot && self.acts();
        // The engine refuses a plan that is not reconcilable, with all its reasons.
        if plan.reconcilable
            && let Some(missing) = MissingConsent::of(given, reboots)
            && !consent(&ProposedApply { plan: &plan, forced: configs.forced, reboots, missing })?
        {
            return Ok(HostRunEnd::Refused);
        }
        if plan.drain {
            progress(&format!("note: the plan has a drain; {NO_DRAIN}"));
        }
        if !self.acts()
            && let Some(left) = left_out(&plan)
        {
            progress(&left);
        }
        let applied = self.apply(configs, plan.clone(), progress).await?;
        Ok(HostRunEnd::Reported(Box::new(ApplyReport::of(applied, Some(plan), self.state()))))
    }

    /// Finishes an interrupted apply or restores the old config, with a reboot if that needs one and the limit allows it.
    ///
    /// # Errors
    /// The interrupted apply cannot be continued, or another process has the lock of the store.
    pub async fn resume(
        &self,
        limit: ResumeLimit,
        progress: Progress<'_>,
    ) -> Result<ApplyReport, HostApplyError> {
        Ok(match self.finish(limit, progress).await? {
            None => ApplyReport::nothing_to_resume(self.state()),
            Some(applied) => ApplyReport::of(applied, None, self.state()),
        })
    }
}

/// The note on what an apply without acts leaves to one with acts.
fn left_out(plan: &Plan) -> Option<String> {
    let left: Vec<String> = plan
        .left_without_acts()
        .map(|change| format!("{} {} {}", change.operation.as_str(), change.kind.as_str(), change.name))
        .collect();
    (!left.is_empty()).then(|| {
        format!("--no-acts does not change the OS; an apply without --no-acts does this: {}", left.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        apply::{ApplyError, ApplyResult, HostApplyOptions, Interrupts, NewConfig},
        desired::Unknown,
    };
    use std::{
        fs,
        path::{Path, PathBuf},
    };
    use tempfile::TempDir;

    const GIVEN: GivenConsent = GivenConsent { yes: true, reboot: true };

    /// A host to which nothing was applied yet.
    struct Case(TempDir);

    impl Case {
        fn new() -> Self {
            let case = Self(tempfile::tempdir().unwrap());
            fs::create_dir_all(case.at("etc")).unwrap();
            fs::write(case.at("etc/passwd"), "root:x:0:0\n").unwrap();
            fs::write(case.at("etc/group"), "root:x:0\n").unwrap();
            case
        }

        fn at(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn is_written(&self) -> bool {
            self.at("etc/file").exists()
        }

        /// Runs an apply of a config with a file and `more` in its spec; gives its end and its notes.
        fn run(
            &self,
            more: &str,
            dry_run: bool,
            given: GivenConsent,
            consent: impl FnOnce(&ProposedApply<'_>) -> Result<bool, ConsentError>,
        ) -> (Result<HostRunEnd, HostApplyError>, Vec<String>) {
            let config = self.at("config.yaml");
            let text = format!(
                "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\n\
                 metadata: {{name: 99-test, labels: {{machineconfiguration.openshift.io/role: worker}}}}\n\
                 spec:\n  {more}\n  config:\n    ignition: {{version: 3.4.0}}\n    storage:\n      files:\n      \
                 - {{path: /etc/file, mode: 420, contents: {{source: 'data:,declared'}}}}\n"
            );
            fs::write(&config, text).unwrap();
            let options = HostApplyOptions::of_test(self.0.path(), self.at("state"));
            let host = HostApply::open(options, Interrupts::default()).unwrap();
            let wanted =
                NewConfig { new: &[config], current: &[], unknown: Unknown::Refuse, allow_empty: false };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let mut notes = Vec::new();
            let mut progress = |line: &str| notes.push(line.to_owned());
            let ended = runtime.block_on(async {
                let configs = host.configs(wanted, dry_run, &mut progress).await?;
                if dry_run {
                    return host.dry_run(&configs, &mut progress);
                }
                host.run(configs, given, consent, &mut progress).await
            });
            (ended, notes)
        }
    }

    fn not_asked(_: &ProposedApply<'_>) -> Result<bool, ConsentError> {
        panic!("the operator was asked")
    }

    fn result(ended: Result<HostRunEnd, HostApplyError>) -> ApplyResult {
        match ended.unwrap() {
            HostRunEnd::Reported(report) => report.result,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn without_consent_nothing_is_written() {
        let case = Case::new();
        let (ended, _) = case.run("", false, GivenConsent::default(), |proposed| {
            assert_eq!(proposed.plan.changes.len(), 1);
            // An apply without acts does not reboot, so the reboot of the plan needs no consent.
            assert!(proposed.plan.reboot && !proposed.reboots);
            assert_eq!(proposed.missing.to_string(), "`--yes` (or HOLDFAST_YES=1)");
            Ok(false)
        });
        assert!(matches!(ended, Ok(HostRunEnd::Refused)), "{ended:?}");
        let (ended, _) = case.run("", false, GivenConsent::default(), |proposed| {
            Err(ConsentError::NoTerminal(proposed.missing))
        });
        assert!(ended.unwrap_err().is_input());
        assert!(!case.is_written());
    }

    #[test]
    fn an_apply_with_consent_writes_and_the_next_one_has_nothing_to_ask() {
        let case = Case::new();
        let (ended, _) = case.run("", false, GivenConsent::default(), |_| Ok(true));
        assert_eq!((result(ended), case.is_written()), (ApplyResult::Done, true));
        let (ended, _) = case.run("", false, GivenConsent::default(), not_asked);
        assert_eq!(result(ended), ApplyResult::Unchanged);
    }

    #[test]
    fn given_consent_is_not_asked_for() {
        let case = Case::new();
        let (ended, _) = case.run("", false, GIVEN, not_asked);
        assert_eq!((result(ended), case.is_written()), (ApplyResult::Done, true));
    }

    #[test]
    fn a_dry_run_asks_nothing_and_writes_nothing() {
        let case = Case::new();
        let (ended, _) = case.run("", true, GivenConsent::default(), not_asked);
        assert!(matches!(ended, Ok(HostRunEnd::Planned { is_open: false, .. })), "{ended:?}");
        assert!(!case.is_written() && !Path::new(&case.at("state")).exists());
    }

    #[test]
    fn a_config_that_is_not_reconcilable_is_refused_without_a_question() {
        let case = Case::new();
        let (ended, _) = case.run("fips: true", false, GivenConsent::default(), not_asked);
        let error = ended.unwrap_err();
        assert!(matches!(error, HostApplyError::Apply(ApplyError::Unreconcilable(_))), "{error}");
        assert!(!case.is_written());
    }

    #[test]
    fn an_apply_without_acts_names_the_changes_of_the_os_that_it_leaves_out() {
        let (_, notes) = Case::new().run("kernelArguments: [quiet]", false, GIVEN, not_asked);
        let left = "--no-acts does not change the OS; an apply without --no-acts does this: add kernel-argument quiet";
        assert!(notes.iter().any(|note| note == left), "{notes:?}");
        let (_, notes) = Case::new().run("", false, GIVEN, not_asked);
        assert!(!notes.iter().any(|note| note.starts_with("--no-acts")), "{notes:?}");
    }
}
