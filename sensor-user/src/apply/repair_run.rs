//! A repair of a host, from its request to its report.
//!
//! In: the options that name configs, the things to repair, and the operator's answer. Out: the report. From before the configs are
//! read until the last write, no apply starts. So the repair writes the config that is current, and what the operator was asked.

use super::{
    error::ApplyError,
    repair_report::RepairReport,
    repairs::{Differing, Unexpected, keep_applies_away, repair, select},
    waiting::waits_or_none,
};
use crate::{
    desired::NamedSources,
    inspection::{DeclaredHost, DeclaredHostError, ThingsToRestoreError},
    observation::Observer,
};
use sensor_model::expectation::{Expectation, ExpectationSource};
use std::{io, path::PathBuf};

/// The things that a repair compares.
#[derive(Debug, Clone, Copy)]
pub enum RepairScope<'a> {
    /// Everything that a config or a policy declares.
    All,
    /// What the booted image ships below `/etc`, at paths that no config declares.
    ImageEtc,
    /// The things at these paths.
    Paths(&'a [PathBuf]),
}

/// Why the operator has no answer.
#[derive(Debug, thiserror::Error)]
pub enum QuestionError {
    /// There is no operator, and the options do not answer the question.
    #[error("there is no terminal to ask on; add `--yes` to repair")]
    NoTerminal,
    /// The terminal cannot be read or written.
    #[error(transparent)]
    Terminal(#[from] io::Error),
}

/// Why a repair has no report.
#[derive(Debug, thiserror::Error)]
pub enum RepairRunError {
    /// An apply is under way or was interrupted.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The declared state cannot be read.
    #[error(transparent)]
    Host(#[from] DeclaredHostError),
    /// Nothing declares a path.
    #[error(transparent)]
    Things(#[from] ThingsToRestoreError),
    /// The operator has no answer.
    #[error(transparent)]
    Question(#[from] QuestionError),
    /// The running daemon expects another state.
    #[error(transparent)]
    Unexpected(#[from] Unexpected),
}

impl RepairRunError {
    /// Whether the mistake is in the options or in a file that they name.
    pub fn is_input(&self) -> bool {
        match self {
            Self::Host(error) => error.is_input(),
            Self::Things(error) => error.is_input(),
            Self::Question(error) => matches!(error, QuestionError::NoTerminal),
            Self::Apply(_) | Self::Unexpected(_) => false,
        }
    }
}

/// Compares things of a host and restores those that differ. `consent` answers whether these may be written; it is called only if
/// something differs. `None` if they may not.
///
/// # Errors
/// Bad input, an apply under way, and a question without an answer. What cannot be restored is in the report.
pub async fn repair_host(
    sources: NamedSources,
    scope: RepairScope<'_>,
    consent: impl FnOnce(&[Differing]) -> Result<bool, QuestionError>,
) -> Result<Option<RepairReport>, RepairRunError> {
    let state = sources.state();
    let _lock = keep_applies_away(&state)?;
    let host = DeclaredHost::load(sources, waits_or_none, Observer::new)?;
    let things = match scope {
        RepairScope::All => {
            // A host may change what an image ships. So its state comes back only if it is asked for.
            let declared = |one: &&Expectation| !matches!(one.source, ExpectationSource::ImageLayer(_));
            host.desired().expectations.iter().filter(declared).cloned().collect()
        }
        RepairScope::ImageEtc => host.image_etc(&state)?,
        RepairScope::Paths(paths) => host.things_to_restore(paths, &state)?,
    };
    let mut restorer = host.restorer();
    let selection = select(&mut restorer, things, &host.desired().ids).await;
    if !selection.differing.is_empty() && !consent(&selection.differing)? {
        return Ok(None);
    }
    let repaired = repair(&mut restorer, &state, &host.whole, &selection).await?;
    Ok(Some(RepairReport::from(repaired)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;
    use sensor_model::verdict::VerdictKind;
    use std::{fs, path::Path};
    use tempfile::TempDir;

    const CONFIG: &str = r"
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata: {name: 99-test, labels: {machineconfiguration.openshift.io/role: worker}}
spec:
  config:
    ignition: {version: 3.4.0}
    storage:
      files:
      - {path: /etc/file, mode: 420, contents: {source: 'data:,declared'}}
      - {path: /etc/other, mode: 420, contents: {source: 'data:,declared'}}
";

    /// A host whose two files have drifted.
    struct Case(TempDir);

    impl Case {
        fn new() -> Self {
            let case = Self(tempfile::tempdir().unwrap());
            fs::create_dir_all(case.at("etc")).unwrap();
            for (path, text) in [
                ("config.yaml", CONFIG),
                ("etc/passwd", "root:x:0:0\n"),
                ("etc/group", "root:x:0\n"),
                ("etc/file", "drift"),
                ("etc/other", "drift"),
            ] {
                fs::write(case.at(path), text).unwrap();
            }
            case
        }

        fn at(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn read(&self, path: &str) -> String {
            fs::read_to_string(self.at(path)).unwrap()
        }

        fn store(&self) -> Store {
            Store::open(&self.at("state")).unwrap()
        }

        fn repair(
            &self,
            config: &str,
            scope: RepairScope<'_>,
            consent: impl FnOnce(&[Differing]) -> Result<bool, QuestionError>,
        ) -> Result<Option<RepairReport>, RepairRunError> {
            let sources = NamedSources {
                root: self.0.path().to_owned(),
                state: Some(self.at("state")),
                configs: vec![self.at(config)],
                policies: Vec::new(),
                allow_unknown: false,
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(repair_host(sources, scope, consent))
        }
    }

    fn not_asked(_: &[Differing]) -> Result<bool, QuestionError> {
        panic!("the operator was asked")
    }

    #[test]
    fn without_consent_nothing_is_written() {
        let case = Case::new();
        let report = case.repair("config.yaml", RepairScope::All, |_| Ok(false)).unwrap();
        assert!(report.is_none());
        let error = case.repair("config.yaml", RepairScope::All, |_| Err(QuestionError::NoTerminal));
        assert!(error.unwrap_err().is_input());
        assert_eq!((case.read("etc/file"), case.read("etc/other")), ("drift".to_owned(), "drift".to_owned()));
    }

    #[test]
    fn only_what_the_operator_was_asked_about_is_restored() {
        let case = Case::new();
        let paths = [PathBuf::from("/etc/file")];
        let mut asked = Vec::new();
        let report = case.repair("config.yaml", RepairScope::Paths(&paths), |differing| {
            asked.extend(differing.iter().map(|thing| thing.expectation.thing.path()));
            Ok(true)
        });
        let report = report.unwrap().unwrap();
        assert_eq!((report.verdict, report.repaired.len()), (VerdictKind::Compliant, 1));
        assert_eq!(asked.iter().map(|path| &**path).collect::<Vec<_>>(), [Path::new("/etc/file")]);
        assert_eq!(
            (case.read("etc/file"), case.read("etc/other")),
            ("declared".to_owned(), "drift".to_owned())
        );
    }

    #[test]
    fn the_operator_is_not_asked_if_nothing_differs() {
        let case = Case::new();
        case.repair("config.yaml", RepairScope::All, |_| Ok(true)).unwrap().unwrap();
        let report = case.repair("config.yaml", RepairScope::All, not_asked).unwrap().unwrap();
        assert_eq!((report.verdict, report.repaired.len()), (VerdictKind::Compliant, 0));
    }

    #[test]
    fn no_apply_starts_between_the_question_and_the_end_of_the_repair() {
        let case = Case::new();
        let store = case.store();
        let mut locked = false;
        let report = case.repair("config.yaml", RepairScope::All, |_| {
            locked = store.lock().unwrap().is_none();
            Ok(true)
        });
        assert!(locked && report.unwrap().is_some());
        assert!(store.lock().unwrap().is_some());
    }

    #[test]
    fn during_an_apply_a_repair_reads_no_config_and_asks_nothing() {
        let case = Case::new();
        let _apply = case.store().lock().unwrap().unwrap();
        let error = case.repair("missing.yaml", RepairScope::All, not_asked).unwrap_err();
        assert!(matches!(error, RepairRunError::Apply(ApplyError::Locked(_))), "{error}");
        assert!(!error.is_input());
    }
}
