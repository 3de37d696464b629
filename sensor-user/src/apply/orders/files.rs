//! The files of orders, below the state directory.
//!
//! In: a config that was handed in. Out: directories that a crash leaves whole: `new` is checked, `planned` is the newest one with
//! a plan, `ordered` is being applied or was applied last. Beside them are the program, the newest line of progress and the end.

use super::durable::{digest, make_directory, remove, replace, write};
use super::published_plan::PublishedPlan;
use crate::{agent::writer_protocol::COPY, desired::OPERATOR_CONFIG, disk::label_value};
use rustix::fs::{XattrFlags, fsetxattr};
use sensor_model::{
    journal::{Boot, Brings},
    plan::Plan,
    selinux::ATTRIBUTE,
    socket::{DesiredConfig, PlannedConfig},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// The file with the new config.
const CONFIG: &str = "config.yaml";
/// The file with the disruption policy.
const DISRUPTION: &str = "disruption.yaml";
/// The file with an [`OrderName`].
const NAME: &str = "name.json";
/// The file with a [`PublishedPlan`].
const PLAN: &str = "plan.json";
/// The file with the answer to the reporter.
const ANSWER: &str = "answer.json";

/// What orders leave: the configs with their names, and the files beside them.
const ORDERS: [&str; 10] = [
    "ordered/name.json",
    "ordered",
    "planned",
    "new",
    "end.json",
    "end.json.new",
    "line",
    "line.new",
    "starts.json",
    "starts.json.new",
];

/// Which config it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OrderName {
    /// The hash of all that was handed in.
    pub(super) id: String,
    /// The name of the MachineConfig.
    pub(super) config: String,
}

/// How the process of an order ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OrderEnd {
    /// The order.
    pub(super) id: String,
    /// The boot in which it ended.
    #[serde(flatten)]
    pub(super) boot: Boot,
    /// The result.
    pub(super) result: OrderResult,
    /// The reason of a failure, without contents.
    pub(super) reason: String,
}

impl OrderEnd {
    /// An order that failed.
    pub(super) fn failed(order: &OrderName, boot: Boot, reason: String) -> Self {
        Self { id: order.id.clone(), boot, result: OrderResult::Failed, reason }
    }
}

/// The result of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum OrderResult {
    /// The node has the config.
    Done,
    /// A reboot is under way.
    Rebooting,
    /// Preflight found that the node is not as it has to be.
    Drifted,
    /// A running node cannot take the config.
    Unreconcilable,
    /// The old config was restored.
    RolledBack,
    /// Anything else.
    Failed,
}

/// What the process that plans answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlanAnswer {
    /// It has a plan.
    Planned {
        /// The plan.
        plan: Box<Plan>,
        /// What the answer is to say about the node.
        published: PublishedPlan,
        /// An earlier apply has to be finished first.
        is_open: bool,
    },
    /// A mistake in the config or a policy.
    Refused(String),
    /// A failure of the host.
    Failed(String),
}

/// Sets the SELinux label of a program. By that of the state directory the policy does not let systemd run it.
fn set_label(file: &File, label: Option<&str>) {
    let Some(label) = label else { return };
    if let Err(error) = fsetxattr(file, ATTRIBUTE, &label_value(label), XattrFlags::empty()) {
        tracing::warn!(%error, label, "Cannot set the SELinux label of the program that applies: systemd may refuse to run it.");
    }
}

/// How often the process of an order was started in a boot.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Starts {
    #[serde(flatten)]
    boot: Boot,
    number: u32,
}

/// The configs of one directory.
#[derive(Debug)]
pub(super) struct KeptOrder {
    /// Which config it is.
    pub(super) name: OrderName,
    /// The new config.
    pub(super) config: PathBuf,
    /// The disruption policy, if there is one.
    pub(super) disruption: Option<PathBuf>,
    /// What the answer said about its plan. A version before Holdfast noted it left none.
    pub(super) published: Option<PublishedPlan>,
}

/// The directory of orders.
#[derive(Debug, Clone)]
pub(super) struct OrderDirectory {
    path: PathBuf,
    /// The copy of the program.
    program: PathBuf,
}

impl OrderDirectory {
    /// The directory below the state directory. Nothing is made yet.
    pub(super) fn new(state: &Path) -> Self {
        Self { path: state.join("order"), program: state.join(COPY) }
    }

    /// Keeps a config to be checked.
    pub(super) fn set_new(&self, name: &OrderName, desired: &DesiredConfig) -> io::Result<()> {
        let new = self.path.join("new");
        remove(&new)?;
        make_directory(&self.path)?;
        fs::create_dir_all(&new)?;
        write(&new.join(CONFIG), &serde_json::to_vec(&desired.machine_config)?)?;
        if let Some(policy) = &desired.node_disruption {
            write(&new.join(DISRUPTION), &serde_json::to_vec(policy)?)?;
        }
        // The name comes last: a directory without it is not whole.
        write(&new.join(NAME), &serde_json::to_vec(name)?)
    }

    /// The config to be checked.
    pub(super) fn new_config(&self) -> Option<KeptOrder> {
        self.kept("new")
    }

    /// The new config has a plan, and this is the answer about it.
    pub(super) fn accept_new(&self, plan: &PublishedPlan, answer: &[u8]) -> io::Result<()> {
        let new = self.path.join("new");
        write(&new.join(ANSWER), answer)?;
        write(&new.join(PLAN), &serde_json::to_vec(plan)?)?;
        self.rename("new", "planned")
    }

    /// The newest config with a plan, whether it is applied or not.
    pub(super) fn newest_with_plan(&self) -> Option<OrderName> {
        self.planned().or_else(|| self.ordered())
    }

    /// The answer about it. `None` if there is none, or none is kept.
    pub(super) fn answer(&self) -> Option<PlannedConfig> {
        let newest = self.newest_with_plan()?;
        // An order that begins meanwhile moves it.
        let mut kept =
            ["planned", "ordered"].iter().filter_map(|name| self.read(&format!("{name}/{ANSWER}")));
        kept.find(|answer: &PlannedConfig| answer.id == newest.id)
    }

    /// The newest config with a plan. One whose plan is not noted has to be planned anew.
    pub(super) fn planned(&self) -> Option<OrderName> {
        self.kept("planned").filter(|kept| kept.published.is_some()).map(|kept| kept.name)
    }

    /// The planned config is to be applied.
    pub(super) fn order_planned(&self) -> io::Result<()> {
        self.rename("planned", "ordered")?;
        // They belong to the order before. An end that a crash leaves here is that of the same config, or of no order.
        ["end.json", "line", "starts.json"].iter().try_for_each(|name| remove(&self.path.join(name)))
    }

    /// Whether there is a config, or what belongs to an order.
    pub(super) fn has_orders(&self) -> bool {
        ORDERS.iter().any(|name| self.path.join(name).symlink_metadata().is_ok())
    }

    /// Removes all configs and what belongs to orders. The newest order comes first: what a crash leaves is no order.
    pub(super) fn remove_orders(&self) -> io::Result<()> {
        ORDERS.iter().try_for_each(|name| remove(&self.path.join(name)))
    }

    /// The config that is applied, or was applied last.
    pub(super) fn ordered(&self) -> Option<OrderName> {
        Some(self.kept("ordered")?.name)
    }

    /// The same with its files.
    pub(super) fn ordered_config(&self) -> Option<KeptOrder> {
        self.kept("ordered")
    }

    /// How the newest order ended; `None` while it is under way.
    pub(super) fn end(&self) -> Option<OrderEnd> {
        let end: OrderEnd = self.read("end.json")?;
        (end.id == self.ordered()?.id).then_some(end)
    }

    /// Notes the end of an order.
    pub(super) fn set_end(&self, end: &OrderEnd) {
        self.note("end.json", end);
    }

    /// The newest line of progress.
    pub(super) fn line(&self) -> Option<String> {
        fs::read_to_string(self.path.join("line")).ok()
    }

    /// Notes a line of progress. One that is lost is no loss: it is only shown.
    pub(super) fn set_line(&self, line: &str) {
        let new = self.path.join("line.new");
        if fs::write(&new, line).and_then(|()| fs::rename(&new, self.path.join("line"))).is_err() {
            tracing::debug!(line, "A line of progress cannot be kept.");
        }
    }

    /// How often the order was started again in this boot.
    pub(super) fn starts(&self, boot: &Boot) -> u32 {
        let starts: Starts = self.read("starts.json").unwrap_or_default();
        if starts.boot.is_over(boot, Brings::Services) { 0 } else { starts.number }
    }

    /// Notes how often.
    pub(super) fn set_starts(&self, boot: Boot, number: u32) {
        self.note("starts.json", &Starts { boot, number });
    }

    /// Stores the config of the newest order where the Machine Config Operator's daemon keeps its own, if it has one there: that daemon
    /// would otherwise take the node back to it.
    pub(super) fn store_as_operator(&self, root: &Path) -> io::Result<()> {
        let stored = root.join(OPERATOR_CONFIG);
        if !stored.exists() {
            return Ok(());
        }
        let config = fs::read(self.path.join("ordered").join(CONFIG))?;
        let new = stored.with_extension("new");
        write(&new, &config)?;
        fs::rename(&new, &stored)?;
        stored.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    }

    /// A copy of the program on the host, for systemd. `label` is the SELinux label that a program of the host has.
    pub(super) fn program(&self, program: &Path, label: Option<&str>) -> io::Result<PathBuf> {
        /// An apply and a revert may need the copy at once, and neither may run a part of it.
        static COPYING: Mutex<()> = Mutex::new(());
        let _one = COPYING.lock().unwrap_or_else(PoisonError::into_inner);
        make_directory(&self.path)?;
        let copy = self.program.clone();
        let wanted = digest(program)?;
        if digest(&copy).is_ok_and(|found| found == wanted) {
            set_label(&File::open(&copy)?, label);
            return Ok(copy);
        }
        let new = self.path.join("holdfast.new");
        remove(&new)?;
        let mut file = File::options().write(true).create_new(true).open(&new)?;
        io::copy(&mut File::open(program)?, &mut file)?;
        file.set_permissions(Permissions::from_mode(0o700))?;
        set_label(&file, label);
        file.sync_all()?;
        // A file that is open for writing cannot be run.
        drop(file);
        fs::rename(&new, &copy)?;
        Ok(copy)
    }

    fn kept(&self, directory: &str) -> Option<KeptOrder> {
        let path = self.path.join(directory);
        let name: OrderName = self.read(&format!("{directory}/{NAME}"))?;
        let existing = |name: &str| Some(path.join(name)).filter(|path| path.exists());
        let published = self.read(&format!("{directory}/{PLAN}"));
        Some(KeptOrder { name, config: path.join(CONFIG), disruption: existing(DISRUPTION), published })
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_slice(&fs::read(self.path.join(name)).ok()?).ok()
    }

    fn note(&self, name: &str, value: &impl Serialize) {
        let text = serde_json::to_vec(value).map_err(io::Error::from);
        let noted = text.and_then(|text| replace(&self.path.join(name), &text));
        if let Err(error) = noted {
            tracing::error!(%error, file = name, "Cannot write a file of the apply's order.");
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        remove(&self.path.join(to))?;
        fs::rename(self.path.join(from), self.path.join(to))?;
        File::open(&self.path)?.sync_all()
    }
}

/// The name of the object in a file of JSON; `None` if there is none.
pub(super) fn name_in(path: &Path) -> Option<String> {
    let object: serde_json::Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    object["metadata"]["name"].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn desired(name: &str) -> (OrderName, DesiredConfig) {
        let config = json!({"metadata": {"name": name}});
        let desired = DesiredConfig {
            machine_config: config,
            node_disruption: Some(json!({"kind": "MachineConfiguration"})),
        };
        (OrderName { id: format!("id of {name}"), config: name.to_owned() }, desired)
    }

    #[test]
    fn a_config_is_ordered_only_after_it_has_a_plan_and_an_end_belongs_to_its_order() {
        let state = tempfile::tempdir().unwrap();
        let directory = OrderDirectory::new(state.path());
        let (first, config) = desired("one");
        directory.set_new(&first, &config).unwrap();
        assert!(directory.planned().is_none() && directory.ordered().is_none());
        assert!(directory.order_planned().is_err(), "nothing is planned");
        directory.accept_new(&PublishedPlan::default(), &[]).unwrap();
        assert_eq!(directory.planned().unwrap(), first);
        directory.order_planned().unwrap();
        assert_eq!(directory.ordered().unwrap(), first);
        assert!(directory.planned().is_none() && directory.end().is_none());
        let kept = directory.ordered_config().unwrap();
        assert!(kept.disruption.is_some());
        let mode = fs::metadata(kept.config).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "a config may have secrets");
        directory.set_end(&OrderEnd::failed(&first, Boot::of_kernel("boot"), "reason".to_owned()));
        let end = directory.end().unwrap();
        assert_eq!((end.reason.as_str(), end.boot), ("reason", Boot::of_kernel("boot")));
        let (second, config) = desired("two");
        directory.set_new(&second, &config).unwrap();
        directory.accept_new(&PublishedPlan::default(), &[]).unwrap();
        assert!(directory.end().is_some(), "a plan ends no order");
        directory.order_planned().unwrap();
        assert!(directory.end().is_none(), "the end of an earlier order");
    }

    #[test]
    fn the_operators_file_has_the_applied_config_where_it_exists_and_is_made_nowhere() {
        let (state, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let directory = OrderDirectory::new(state.path());
        let (name, config) = desired("one");
        directory.set_new(&name, &config).unwrap();
        directory.accept_new(&PublishedPlan::default(), &[]).unwrap();
        directory.order_planned().unwrap();
        let stored = root.path().join(OPERATOR_CONFIG);
        directory.store_as_operator(root.path()).unwrap();
        assert!(!stored.exists(), "the node was never the operator's");
        fs::create_dir_all(stored.parent().unwrap()).unwrap();
        fs::write(&stored, "{}").unwrap();
        directory.store_as_operator(root.path()).unwrap();
        assert_eq!(name_in(&stored), Some("one".to_owned()));
    }

    #[test]
    fn a_directory_without_a_name_is_no_config() {
        let state = tempfile::tempdir().unwrap();
        let directory = OrderDirectory::new(state.path());
        let (name, config) = desired("one");
        directory.set_new(&name, &config).unwrap();
        assert!(directory.new_config().is_some());
        fs::remove_file(state.path().join("order/new").join(NAME)).unwrap();
        assert!(directory.new_config().is_none());
    }

    #[test]
    fn the_copy_of_the_program_has_the_label_also_if_it_was_there_before() {
        let state = tempfile::tempdir().unwrap();
        fs::create_dir(state.path().join("order")).unwrap();
        let directory = OrderDirectory::new(state.path());
        let program = state.path().join("program");
        fs::write(&program, "program").unwrap();
        let label_of = |path: &Path| {
            let mut value = vec![0; 256];
            let length = rustix::fs::getxattr(path, ATTRIBUTE, value.as_mut_slice()).unwrap();
            String::from_utf8(value[..length].to_vec()).unwrap()
        };
        for label in ["system_u:object_r:bin_t:s0", "system_u:object_r:other_t:s0"] {
            let copy = directory.program(&program, Some(label)).unwrap();
            assert_eq!(label_of(&copy), format!("{label}\0"));
            assert_eq!(fs::read_to_string(copy).unwrap(), "program");
        }
    }

    #[test]
    fn starts_are_counted_for_one_boot() {
        let state = tempfile::tempdir().unwrap();
        fs::create_dir(state.path().join("order")).unwrap();
        let directory = OrderDirectory::new(state.path());
        let boot = |boot_id: &str, count| Boot { soft_reboots: Some(count), ..Boot::of_kernel(boot_id) };
        assert_eq!(directory.starts(&boot("a", 0)), 0);
        directory.set_starts(boot("a", 0), 2);
        assert_eq!(directory.starts(&boot("a", 0)), 2);
        assert_eq!((directory.starts(&boot("b", 0)), directory.starts(&boot("a", 1))), (0, 0));
    }

    #[test]
    fn the_program_is_copied_once_and_again_when_it_is_another_one() {
        let state = tempfile::tempdir().unwrap();
        fs::create_dir(state.path().join("order")).unwrap();
        let directory = OrderDirectory::new(state.path());
        let program = state.path().join("program");
        for content in ["one", "two"] {
            fs::write(&program, content).unwrap();
            let copy = directory.program(&program, None).unwrap();
            assert_eq!(fs::read_to_string(&copy).unwrap(), content);
            let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
            let before = inode(&copy);
            assert_eq!(inode(&directory.program(&program, None).unwrap()), before);
        }
    }
}
