//! Repairs that a command asks for.
//!
//! In: the host, its desired state, and the things to repair. Out: the restored things, and for each other one the reason. During a
//! repair no apply starts. The daemon is notified before the first write, so that its deny rules let this process pass.

use super::ApplyError;
use crate::{
    agent::writer_protocol::{self, WriterAnnouncement, WriterConnection},
    desired::DesiredWithConfig,
    repair::{RepairError, RepairRefusal, Restored, Restorer, linked_file, order},
    store::Store,
};
use nix::fcntl::Flock;
use sensor_model::{
    compare::Ids,
    difference::Difference,
    drift_policy::DriftAction,
    expectation::{Expectation, ExpectationSource, Expected, SYSTEMD_DIRECTORY, Thing},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A thing that differs from its expectation.
#[derive(Debug)]
pub struct Differing {
    /// What it should be.
    pub expectation: Expectation,
    /// How it differs.
    pub differences: Vec<Difference>,
}

/// The things of a repair.
#[derive(Debug, Default)]
pub struct RepairSelection {
    /// Those that differ, in the order in which they have to be restored.
    pub differing: Vec<Differing>,
}

/// The result of a repair.
#[derive(Debug, Default)]
pub struct Repaired<'a> {
    /// Things that match their expectation now, and how they were restored.
    pub restored: Vec<(&'a Expectation, Restored)>,
    /// Things that do not, by their paths, and why.
    pub refused: Vec<(String, RepairError)>,
}

/// The running daemon expects another state, and would report the result of the repair as drift.
#[derive(Debug, thiserror::Error)]
#[error(
    "the running daemon expects another state of these paths, because it runs with another config or policy; nothing was \
     written. Without --config and --policy the repair uses those that are in force"
)]
pub struct Unexpected;

/// Keeps applies from starting while the lock lives; `None` on a host without a store of applies.
///
/// # Errors
/// An apply is under way, or was interrupted and has to be finished first.
pub fn keep_applies_away(state: &Path) -> Result<Option<Flock<File>>, ApplyError> {
    let Some(store) = Store::open_existing(state)? else { return Ok(None) };
    let Some(lock) = store.lock()? else {
        return Err(ApplyError::Locked(store.path().join("lock")));
    };
    match store.open_journal()? {
        Some(journal) => Err(ApplyError::Interrupted(journal.begin.id)),
        None => Ok(Some(lock)),
    }
}

/// Compares things with their expectations.
pub async fn select(restorer: &mut Restorer, mut things: Vec<Expectation>, ids: &Ids) -> RepairSelection {
    things.sort_by_key(order);
    things.dedup_by(|later, earlier| later.thing == earlier.thing);
    let mut differing = Vec::new();
    for expectation in things {
        let (_, differences) = restorer.observe_and_compare(&expectation, ids).await;
        if !differences.is_empty() {
            differing.push(Differing { expectation, differences });
        }
    }
    RepairSelection { differing }
}

/// One thing that a repair restores.
#[derive(Debug)]
struct ThingRepair<'a> {
    expectation: &'a Expectation,
    path: Arc<Path>,
    /// The file of which it is another name.
    file: Option<PathBuf>,
    /// It differs. The other repairs are other names of files that may get a new inode.
    differs: bool,
}

impl<'a> ThingRepair<'a> {
    fn new(expectation: &'a Expectation, differs: bool) -> Self {
        let path = expectation.thing.path();
        let file = match &expectation.expected {
            Expected::Link(link) => linked_file(&path, link),
            _ => None,
        };
        Self { expectation, path, file, differs }
    }

    /// Whether its restore may give the path a new inode. A unit or a directory at the same path gets none.
    fn may_get_inode(&self) -> bool {
        matches!(
            self.expectation.expected,
            Expected::File(_) | Expected::AuthorizedKeys(_) | Expected::Link(_)
        )
    }

    fn is_name_of(&self, paths: &BTreeSet<Arc<Path>>) -> bool {
        self.file.as_ref().is_some_and(|file| paths.contains(file.as_path()))
    }
}

/// The things that differ, and the declared other names of these files, and of these names again. A repair may give a file a new
/// inode, and then it has to make its other names anew. A name that differs was not selected, so it stays. Nothing is lost with one
/// that matches. Each name comes after its file, and before units.
async fn in_order<'a>(
    restorer: &mut Restorer,
    whole: &'a DesiredWithConfig,
    differing: &'a [Differing],
) -> Vec<ThingRepair<'a>> {
    let mut repairs: Vec<ThingRepair<'a>> =
        differing.iter().map(|thing| ThingRepair::new(&thing.expectation, true)).collect();
    let mut paths: BTreeSet<Arc<Path>> = repairs
        .iter()
        .filter(|repair| repair.may_get_inode())
        .map(|repair| Arc::clone(&repair.path))
        .collect();
    let known: BTreeSet<&Thing> = differing.iter().map(|thing| &thing.expectation.thing).collect();
    let names = whole.desired.expectations.iter().map(|expectation| ThingRepair::new(expectation, false));
    let mut names: Vec<ThingRepair<'a>> =
        names.filter(|name| name.file.is_some() && !known.contains(&name.expectation.thing)).collect();
    loop {
        let (found, others): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| name.is_name_of(&paths));
        if found.is_empty() {
            break;
        }
        names = others;
        for name in found {
            let (_, differences) = restorer.observe_and_compare(name.expectation, &whole.desired.ids).await;
            if differences.is_empty() {
                paths.insert(Arc::clone(&name.path));
                repairs.push(name);
            }
        }
    }
    let files: BTreeMap<Arc<Path>, PathBuf> =
        repairs.iter().filter_map(|repair| Some((Arc::clone(&repair.path), repair.file.clone()?))).collect();
    repairs.sort_by_cached_key(|repair| {
        let (rank, path) = order(repair.expectation);
        let mut file = repair.file.as_deref();
        let mut names = 0;
        // A config may declare names of each other.
        while let Some(next) = file.filter(|_| names <= files.len()) {
            names += 1;
            file = files.get(next).map(PathBuf::as_path);
        }
        (rank, names, path)
    });
    repairs
}

/// Notifies a running daemon of the things that this process is about to restore. The daemon accepts this process as Holdfast while
/// the connection lives. `None` without a daemon.
///
/// # Errors
/// The running daemon expects another state.
pub(super) async fn announce<'a>(
    state: &Path,
    things: impl Iterator<Item = &'a Expectation>,
) -> Result<Option<WriterConnection>, Unexpected> {
    let repair = things.map(writer_protocol::digest).collect();
    let announcement = WriterAnnouncement { repair, ..WriterAnnouncement::default() };
    let daemon = WriterConnection::announce(state, &announcement, &mut |line| tracing::info!(line)).await;
    if daemon.as_ref().is_some_and(|daemon| daemon.unexpected) { Err(Unexpected) } else { Ok(daemon) }
}

/// Restores the things that differ, and makes the other names of files anew that got a new inode. Removes the temporary names that
/// an earlier, killed repair left beside these things.
///
/// # Errors
/// The running daemon expects another state. Things that cannot be restored are in the result.
pub async fn repair<'a>(
    restorer: &mut Restorer,
    state: &Path,
    whole: &'a DesiredWithConfig,
    selection: &'a RepairSelection,
) -> Result<Repaired<'a>, Unexpected> {
    let mut done = Repaired::default();
    if selection.differing.is_empty() {
        return Ok(done);
    }
    let policy = &whole.desired.policy;
    let differing = selection.differing.iter().map(|thing| &thing.expectation);
    // The daemon does not watch what the policy ignores, nor what only the image has at a path without a rule. Other names are not
    // announced: they match their expectation, and so they cannot be a reason to refuse the repair.
    let expected: HashSet<&Thing> = whole.desired.expectations.iter().map(|one| &one.thing).collect();
    let watched = differing.clone().filter(|expectation| {
        let is_of_image = matches!(expectation.source, ExpectationSource::ImageLayer(_));
        let is_watched = !is_of_image || expected.contains(&expectation.thing);
        is_watched && policy.decide_about(expectation, None).action != DriftAction::Ignore
    });
    let _daemon = announce(state, watched).await?;
    let repairs = in_order(restorer, whole, &selection.differing).await;
    restorer.remove_leftovers(differing);
    let mut units = false;
    // Files that were not restored, and their other names.
    let mut failed = BTreeSet::new();
    for repair in repairs {
        let (expectation, ids) = (repair.expectation, &whole.desired.ids);
        let is_of_failed = repair.is_name_of(&failed);
        let result = if !is_of_failed {
            restorer.restore(&whole.rendered, expectation, ids).await
        } else if restorer.observe_and_compare(expectation, ids).await.1.is_empty() {
            Ok(Restored::default())
        } else {
            // The object of this name may be the last good copy.
            Err(RepairError::Refused {
                path: repair.path.to_path_buf(),
                reason: RepairRefusal::FileNotRestored,
            })
        };
        if repair.may_get_inode() && (is_of_failed || result.is_err()) {
            failed.insert(Arc::clone(&repair.path));
        }
        match result {
            // The file kept its inode, so this other name needed no repair.
            Ok(written) if written.before.is_empty() && !repair.differs => {}
            Ok(written) => {
                units |= !matches!(expectation.thing, Thing::Unit { .. })
                    && repair.path.starts_with(SYSTEMD_DIRECTORY);
                done.restored.push((expectation, written));
            }
            Err(error) => done.refused.push((repair.path.to_string_lossy().into_owned(), error)),
        }
    }
    if units && let Err(error) = restorer.reload_units().await {
        done.refused.push((SYSTEMD_DIRECTORY.to_owned(), error));
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{desired::Desired, observation::Observer};
    use sensor_model::{
        drift_policy::DriftPolicy, expectations::expectations, machine_config::parse, merge::merge,
    };
    use std::fs;
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
      - {path: /etc/no-owner, mode: 420, user: {name: missing}, contents: {source: 'data:,declared'}}
      links:
      - {path: /etc/again, target: /etc/name, hard: true}
      - {path: /etc/name, target: /etc/file, hard: true}
      - {path: /etc/no-owner-name, target: /etc/no-owner, hard: true}
      - {path: /etc/systemd/system/a.service, target: /etc/file, hard: true}
    systemd:
      units:
      - {name: a.service, enabled: false}
";

    struct Case {
        root: TempDir,
        restorer: Restorer,
        whole: DesiredWithConfig,
        runtime: tokio::runtime::Runtime,
    }

    impl Case {
        /// A host whose files and names are as declared, apart from the missing owner.
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir_all(root.path().join("etc/systemd/system")).unwrap();
            fs::write(root.path().join("etc/passwd"), "root:x:0:0\n").unwrap();
            fs::write(root.path().join("etc/group"), "root:x:0\n").unwrap();
            let rendered = merge(parse("test.yaml", CONFIG.as_bytes()).unwrap().machine_configs).unwrap();
            let desired = Desired {
                expectations: expectations(&rendered).unwrap(),
                ids: Ids::default(),
                policy: DriftPolicy::default(),
                ..Desired::default()
            };
            let observer = Arc::new(Observer::new(root.path()).unwrap());
            let restorer = Restorer::new(observer, root.path());
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let case = Self { root, restorer, whole: DesiredWithConfig { rendered, desired }, runtime };
            case.write("/etc/file", "declared");
            case.write("/etc/no-owner", "declared");
            for (name, file) in [
                ("/etc/name", "/etc/file"),
                ("/etc/again", "/etc/file"),
                ("/etc/systemd/system/a.service", "/etc/file"),
                ("/etc/no-owner-name", "/etc/no-owner"),
            ] {
                fs::hard_link(case.at(file), case.at(name)).unwrap();
            }
            case
        }

        fn at(&self, path: &str) -> PathBuf {
            self.root.path().join(path.trim_start_matches('/'))
        }

        fn write(&self, path: &str, text: &str) {
            fs::write(self.at(path), text).unwrap();
        }

        fn read(&self, path: &str) -> String {
            fs::read_to_string(self.at(path)).unwrap()
        }

        /// Puts a file of its own in the place of a name.
        fn separate(&self, path: &str, text: &str) {
            fs::remove_file(self.at(path)).unwrap();
            self.write(path, text);
        }

        fn select(&mut self, paths: &[&str]) -> RepairSelection {
            let all = self.whole.desired.expectations.iter();
            let is_asked = |thing: &Thing| paths.iter().any(|path| *thing.path() == *Path::new(path));
            let things = all.filter(|expectation| is_asked(&expectation.thing)).cloned().collect();
            self.runtime.block_on(select(&mut self.restorer, things, &self.whole.desired.ids))
        }

        /// The restored paths, and the refused ones with their reasons.
        fn repair(&mut self, paths: &[&str]) -> (Vec<String>, Vec<String>) {
            let selection = self.select(paths);
            let state = self.at("/state");
            let repaired = repair(&mut self.restorer, &state, &self.whole, &selection);
            let done = self.runtime.block_on(repaired).unwrap();
            let restored = done.restored.iter().map(|(expectation, _)| expectation.thing.path());
            let restored = restored.map(|path| path.to_str().unwrap().to_owned()).collect();
            (restored, done.refused.iter().map(|(_, error)| error.to_string()).collect())
        }
    }

    #[test]
    fn a_name_that_matched_is_made_anew_after_its_file() {
        let mut case = Case::new();
        case.write("/etc/file", "drift");
        let (restored, refused) = case.repair(&["/etc/file"]);
        assert_eq!(restored, ["/etc/file", "/etc/name", "/etc/systemd/system/a.service", "/etc/again"]);
        assert_eq!(refused, [""; 0]);
        assert_eq!(case.read("/etc/again"), "declared");
    }

    #[test]
    fn a_name_that_was_not_selected_and_differs_stays() {
        let mut case = Case::new();
        case.write("/etc/file", "drift");
        case.separate("/etc/name", "a good copy");
        let (restored, refused) = case.repair(&["/etc/file"]);
        assert_eq!(restored, ["/etc/file", "/etc/systemd/system/a.service"]);
        assert_eq!(refused, [""; 0]);
        assert_eq!(case.read("/etc/name"), "a good copy");
    }

    #[test]
    fn a_name_whose_file_could_not_be_restored_stays() {
        let mut case = Case::new();
        case.write("/etc/no-owner", "drift");
        case.separate("/etc/no-owner-name", "declared");
        let (restored, refused) = case.repair(&["/etc/no-owner", "/etc/no-owner-name"]);
        assert_eq!(restored, [""; 0]);
        assert_eq!(
            refused,
            [
                "/etc/no-owner: the host has no user `missing`",
                "/etc/no-owner-name: its file could not be restored"
            ]
        );
        assert_eq!(case.read("/etc/no-owner-name"), "declared");
    }

    #[test]
    fn a_name_that_still_matches_its_failed_file_is_not_reported() {
        let mut case = Case::new();
        case.write("/etc/no-owner", "drift");
        let (restored, refused) = case.repair(&["/etc/no-owner"]);
        assert_eq!((restored.len(), refused.len()), (0, 1), "{refused:?}");
    }

    #[test]
    fn a_unit_at_the_same_path_hides_no_name_and_comes_after_it() {
        let mut case = Case::new();
        case.write("/etc/file", "drift");
        let mut selection = case.select(&["/etc/file"]);
        let unit = Thing::Unit { name: "a.service".to_owned() };
        let unit = case.whole.desired.expectations.iter().find(|expectation| expectation.thing == unit);
        selection.differing.push(Differing { expectation: unit.unwrap().clone(), differences: Vec::new() });
        let repairs = in_order(&mut case.restorer, &case.whole, &selection.differing);
        let repairs = case.runtime.block_on(repairs);
        let found: Vec<_> =
            repairs.iter().map(|repair| (repair.path.to_str().unwrap(), repair.differs)).collect();
        let name = "/etc/systemd/system/a.service";
        assert_eq!(
            found,
            [("/etc/file", true), ("/etc/name", false), (name, false), ("/etc/again", false), (name, true)]
        );
    }

    #[test]
    fn leftovers_are_removed_only_beside_things_that_differ() {
        let mut case = Case::new();
        let left = ["/etc/.holdfast-4194305-0.new", "/etc/systemd/system/.holdfast-4194305-0.new"];
        for path in left {
            case.write(path, "");
        }
        case.repair(&["/etc/file"]);
        assert!(left.iter().all(|path| case.at(path).exists()));
        case.write("/etc/file", "drift");
        case.repair(&["/etc/file"]);
        assert_eq!(left.map(|path| case.at(path).exists()), [false, true]);
    }
}
