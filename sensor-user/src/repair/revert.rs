//! Repairs by the daemon, under a `revert` policy.
//!
//! In: a drifted thing, and the config. Out: an implementation of [`WriteBack`] for the daemon's loop: it restores what a config
//! declares, and moves what nothing declares, in a directory that a policy closes or where it expects nothing, to the quarantine.

use super::{Restored, Restorer, closed};
use crate::{
    agent::write_back::{Quarantined, WriteBack, WriteBackError, WriteBackRequest, WrittenBack},
    clock::{Clock as _, SystemClock, rfc3339},
    observation::Observer,
    quarantine::{Cause, OwnFiles, Quarantine, QuarantineError},
};
use sensor_model::{
    difference::Difference,
    drift_policy::names_top_directories,
    expectation::{ClosedBy, ExpectationSource, Thing},
};
use std::{
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
};

/// Gives the daemon's loop a [`Restorer`], and a quarantine.
#[derive(Debug)]
pub struct Reverter {
    root: PathBuf,
    /// The state directory, which has the quarantine.
    state: PathBuf,
    /// Paths with files of Holdfast itself.
    own: Vec<PathBuf>,
}

/// Undeclared names that are still there.
#[derive(Debug, thiserror::Error)]
enum LeftError {
    /// Their reasons, and whether names are left that were not tried.
    #[error("{}", texts(errors, *is_more))]
    NotMoved { errors: Vec<QuarantineError>, is_more: bool },
    /// A file of a package may look undeclared.
    #[error(
        "a database of packages could not be read, so files of packages look undeclared, and nothing is moved; the daemon's log has the \
         reason"
    )]
    PackagesUnread,
    /// A file of the image may look undeclared.
    #[error(
        "the booted image has no index, or one that is old or cannot be read, so its files look undeclared, and nothing is moved; the \
         daemon's log has the reason"
    )]
    ImageUnindexed,
    /// A person may have forgotten a part of the rule's path.
    #[error(
        "the rule's path {0:?} is a directory of the root directory, or every directory in one; the host may need the names there, so nothing is \
         moved: name a directory such as /etc/cron.d/, or move the names by hand"
    )]
    TopDirectory(String),
    /// More than one attempt moves.
    #[error("more undeclared names are left; they are moved with the next attempts")]
    More,
}

fn texts(errors: &[QuarantineError], is_more: bool) -> String {
    /// How many reasons are given.
    const NAMED: usize = 8;
    let mut texts: Vec<String> = errors.iter().take(NAMED).map(ToString::to_string).collect();
    if let Some(more) = errors.len().checked_sub(NAMED).filter(|more| *more > 0) {
        texts.push(format!("and {more} more"));
    }
    if is_more {
        texts.push("the next attempt tries further names".to_owned());
    }
    texts.join("; ")
}

impl Reverter {
    /// For the host at `root`. `own` are paths with files of Holdfast itself; the state directory is one of them.
    pub fn new(root: &Path, state: &Path, own: Vec<PathBuf>) -> Self {
        Self { root: root.to_owned(), state: state.to_owned(), own }
    }

    fn quarantine(
        &self,
        wanted: WriteBackRequest<'_>,
        rule: &ClosedBy,
        restorer: &Restorer,
        before: Vec<Difference>,
    ) -> Result<WrittenBack, WriteBackError> {
        if rule.packages_unread {
            return Err(WriteBackError::new(LeftError::PackagesUnread));
        }
        if matches!(wanted.expectation.thing, Thing::ClosedDirectory { .. })
            && names_top_directories(&rule.rule)
        {
            return Err(WriteBackError::new(LeftError::TopDirectory(rule.rule.to_string())));
        }
        if rule.image_unindexed {
            return Err(WriteBackError::new(LeftError::ImageUnindexed));
        }
        let quarantine = Quarantine::open(&self.state).map_err(WriteBackError::new)?;
        let own = self.own.iter().map(PathBuf::as_path).chain([self.state.as_path(), quarantine.path()]);
        let own = OwnFiles::of(own);
        let now = rfc3339(SystemClock.now());
        let cause = Cause { time: &now, actors: wanted.actors, rule };
        let time = closed::TIME;
        let how = closed::Move { quarantine: &quarantine, own: &own, cause, writers: wanted.writers, time };
        let moved = restorer
            .move_undeclared(wanted.config, wanted.expectation, wanted.ids, how)
            .map_err(WriteBackError::new)?;
        let quarantined: Vec<Quarantined> =
            moved.items.into_iter().map(|item| Quarantined { path: item.path, item: item.id }).collect();
        let actions = quarantined
            .iter()
            .map(|moved| format!("undeclared {} moved to the quarantine, item {}", moved.path, moved.item));
        let left = match (moved.errors.is_empty(), moved.is_more) {
            (false, is_more) => Some(LeftError::NotMoved { errors: moved.errors, is_more }),
            (true, true) => Some(LeftError::More),
            (true, false) => None,
        };
        Ok(WrittenBack {
            before,
            actions: actions.collect(),
            quarantined,
            left: left.map(WriteBackError::new),
        })
    }
}

impl WriteBack for Reverter {
    fn write_back<'a>(
        &'a mut self,
        wanted: WriteBackRequest<'a>,
    ) -> Pin<Box<dyn Future<Output = Result<WrittenBack, WriteBackError>> + 'a>> {
        Box::pin(async move {
            let mut restorer = Restorer::new(Arc::clone(wanted.observer), &self.root);
            if let ExpectationSource::ClosedBy(rule) = &wanted.expectation.source {
                let (_, before) = restorer.observe_and_compare(wanted.expectation, wanted.ids).await;
                return self.quarantine(wanted, rule, &restorer, before);
            }
            let result = restorer.restore(wanted.config, wanted.expectation, wanted.ids).await;
            let Restored { before, actions } = result.map_err(WriteBackError::new)?;
            Ok(WrittenBack { before, actions, ..WrittenBack::default() })
        })
    }

    fn recover(&mut self, observer: &Observer) {
        let recovered = Quarantine::open_existing(&self.state)
            .and_then(|quarantine| quarantine.map_or(Ok(()), |quarantine| quarantine.recover(observer)));
        if let Err(error) = recovered {
            tracing::warn!(%error, "Cannot look for interrupted moves of the quarantine; the next move does.");
        }
    }
}
