//! Which configs and policies are read, and how.
//!
//! In: options ([`NamedSources`]), and the config that was applied last. Out: the files to read now: the named ones, the last
//! usable ones ([`Inputs::replaced`]), or those of the last apply ([`Inputs::use_applied`]).

use super::{
    cluster_policies::cluster_policies,
    last_usable,
    source::{Generation, MachineConfigs, OPERATOR_CONFIG, StateSource, choose, state_directory},
    unknown::Unknown,
};
use sensor_model::waiting::WaitingArgument;
use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

/// Reads from a state directory which kernel arguments wait for the next boot. The store of applies is below this room, so the
/// caller passes this function.
pub type Waits = fn(&Path) -> Vec<WaitingArgument>;

/// What the options of a command name.
#[derive(Debug, Clone)]
pub struct NamedSources {
    /// The host's root directory.
    pub root: PathBuf,
    /// The state directory; `None`: that of the host.
    pub state: Option<PathBuf>,
    /// MachineConfigs and Ignition configs; none for the config that was applied last, or those of the service.
    pub configs: Vec<PathBuf>,
    /// Drift policies.
    pub policies: Vec<PathBuf>,
    /// Unknown fields in configs cause a warning and no error.
    pub allow_unknown: bool,
}

impl NamedSources {
    /// The state directory.
    pub fn state(&self) -> PathBuf {
        state_directory(self.state.as_deref(), &self.root)
    }

    /// The inputs of a command that reads the files once. `applied` reads which config was applied last. It is called only if no
    /// config is named.
    ///
    /// # Errors
    /// Those of `applied`.
    pub fn inputs<E>(
        self,
        applied: impl FnOnce(&Path) -> Result<Option<Generation>, E>,
        waits: Waits,
    ) -> Result<Inputs, E> {
        let is_of_host = self.configs.is_empty();
        let applied = if is_of_host { applied(&self.state())? } else { None };
        Ok(Inputs { with_cluster_policies: is_of_host, ..self.chosen(applied, waits) })
    }

    /// The inputs of the daemon, which learns of applies itself and reads the files in a process of its own.
    pub fn daemon_inputs(self, options: DaemonInputs, waits: Waits) -> Inputs {
        let DaemonInputs { allow_empty, with_cluster_policies } = options;
        Inputs { allow_empty, with_cluster_policies, own_process: true, ..self.chosen(None, waits) }
    }

    fn chosen(self, applied: Option<Generation>, waits: Waits) -> Inputs {
        let (source, policies) = choose(&self.root, &self.configs, &self.policies, applied);
        Inputs {
            state: self.state(),
            root: self.root,
            source,
            policies,
            with_cluster_policies: false,
            allow_unknown: self.allow_unknown,
            allow_empty: false,
            own_process: false,
            keep: None,
            waits,
            root_image: None,
            device_tables: None,
            replaced: None,
        }
    }
}

/// How a daemon reads configs and policies, beyond what the options of all commands name.
#[derive(Debug, Clone, Copy, Default)]
pub struct DaemonInputs {
    /// Empty configs may follow configs that declared something.
    pub allow_empty: bool,
    /// The policies of the cluster are in force, too.
    pub with_cluster_policies: bool,
}

/// The tables of verity devices that the daemon asked for while it had the right to.
#[derive(Debug)]
pub struct DeviceTables {
    /// `MAJOR:MINOR NAME PARAMETERS` of each device.
    pub lines: Vec<String>,
    /// The descriptor of the control device, which shows whether a table may have been replaced since.
    pub control: OwnedFd,
}

/// Which configs and policies are read, and how.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is one option")]
pub struct Inputs {
    /// The host's root directory.
    pub root: PathBuf,
    /// The state directory.
    pub state: PathBuf,
    /// What declares the expected state.
    pub source: StateSource,
    /// Drift policies: files and directories.
    pub policies: Vec<PathBuf>,
    /// The policies of the cluster are in force, too, if there are any.
    pub with_cluster_policies: bool,
    /// Unknown fields in configs cause a warning and no error.
    pub allow_unknown: bool,
    /// Empty configs may follow configs that declared something.
    pub allow_empty: bool,
    /// Whether a process of its own reads the files.
    pub own_process: bool,
    /// The directory in which [`super::load()`] keeps the files as the last usable ones; `None` keeps nothing.
    pub keep: Option<PathBuf>,
    /// Which kernel arguments wait for the next boot.
    pub waits: Waits,
    /// A path by which the process that reads the files opens the image that is the host's root.
    pub root_image: Option<PathBuf>,
    /// What the kernel said of verity devices, for a process that may not ask.
    pub device_tables: Option<Arc<DeviceTables>>,
    /// The named source and policies, while the last usable files are read instead.
    pub replaced: Option<(StateSource, Vec<PathBuf>)>,
}

impl Inputs {
    /// The inputs with the named source and policies, also while the last usable files replace these.
    #[must_use]
    pub fn as_given(&self) -> Self {
        let mut inputs = self.clone();
        inputs.restore();
        inputs
    }

    /// The standard input of a process of this program: the control device of its [`DeviceTables`], or nothing.
    pub(crate) fn standard_input(&self) -> Stdio {
        let control = self.device_tables.as_ref().and_then(|tables| tables.control.try_clone().ok());
        control.map_or_else(Stdio::null, Stdio::from)
    }

    /// Names the source and policies again that the last usable files replace.
    pub fn restore(&mut self) {
        if let Some((source, policies)) = self.replaced.take() {
            (self.source, self.policies) = (source, policies);
        }
    }

    /// Puts the config in force that the Machine Config Operator's daemon stored, if no config is named: a node that this daemon managed
    /// before has its present config there, also beside configs of the service.
    pub fn prefer_operator_config(&mut self) {
        let stored = self.root.join(OPERATOR_CONFIG);
        if self.source.is_of_service() && stored.exists() {
            self.source = StateSource::MachineConfigs(MachineConfigs::Operator(stored));
        }
    }

    /// Nothing is declared while no config is named and the host has none: a managed node gets its first config from the cluster.
    pub fn allow_no_config(&mut self) {
        let StateSource::MachineConfigs(configs) = &mut self.source;
        if let MachineConfigs::Service(path) = configs {
            *configs = MachineConfigs::ServiceIfAny(std::mem::take(path));
        }
    }

    /// The file with the policies of the cluster, if they are in force. The last usable policies have a copy of it.
    pub fn cluster_policies(&self) -> Option<PathBuf> {
        let is_read = self.with_cluster_policies && !self.is_replaced();
        is_read.then(|| cluster_policies(&self.state))
    }

    /// The drift policies in force: files and directories.
    pub fn all_policies(&self) -> Vec<PathBuf> {
        let of_cluster = self.cluster_policies().filter(|path| path.exists());
        self.policies.iter().cloned().chain(of_cluster).collect()
    }

    /// Whether the last usable files replace the named source and policies.
    pub fn is_replaced(&self) -> bool {
        self.replaced.is_some()
    }

    /// Puts the config that was applied last in force. Gives whether another config was in force before.
    pub fn use_applied(&mut self, generation: Generation) -> bool {
        self.restore();
        let applied = StateSource::applied(generation);
        let is_other = self.source != applied;
        self.source = applied;
        is_other
    }

    /// What is done about unknown fields. A config that was accepted before stays accepted.
    pub(super) fn unknown(&self) -> Unknown {
        Unknown::allowed(self.allow_unknown || self.source.was_accepted() || self.is_replaced())
    }

    /// The directory in which the daemon keeps the files that it reads; `None` if it reads kept files.
    pub(super) fn kept_in(&self) -> Option<PathBuf> {
        (!self.is_replaced()).then(|| last_usable::directory(&self.state))
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::SERVICE_CONFIGS;
    use super::*;

    fn named(configs: &[&str]) -> NamedSources {
        NamedSources {
            root: PathBuf::from("/mnt"),
            state: None,
            configs: configs.iter().map(PathBuf::from).collect(),
            policies: Vec::new(),
            allow_unknown: false,
        }
    }

    #[test]
    fn the_stored_config_of_the_operator_is_preferred_to_that_of_the_service_and_to_no_named_one() {
        let root = tempfile::tempdir().unwrap();
        let stored = root.path().join(OPERATOR_CONFIG);
        for directory in [SERVICE_CONFIGS, "etc/machine-config-daemon"] {
            std::fs::create_dir_all(root.path().join(directory)).unwrap();
        }
        let operator = |configs: &[&str]| {
            let named = NamedSources { root: root.path().to_owned(), ..named(configs) };
            let mut inputs = named.daemon_inputs(DaemonInputs::default(), |_| Vec::new());
            inputs.prefer_operator_config();
            inputs.source.of_operator().map(Path::to_owned)
        };
        assert_eq!(operator(&[]), None, "nothing is stored");
        std::fs::write(&stored, "{}").unwrap();
        assert_eq!(operator(&[]), Some(stored));
        assert_eq!(operator(&["a.yaml"]), None);
    }

    #[test]
    fn the_applied_config_is_read_only_if_no_config_is_named() {
        let refuses = |_: &Path| Err("not readable");
        let inputs = named(&["a.yaml"]).inputs(refuses, |_| Vec::new()).unwrap();
        assert_eq!(inputs.source, StateSource::named(vec![PathBuf::from("a.yaml")]));
        assert_eq!(named(&[]).inputs(refuses, |_| Vec::new()).unwrap_err(), "not readable");
        let applied = |state: &Path| Ok::<_, ()>(Some((1, state.join("config")).into()));
        let inputs = named(&[]).inputs(applied, |_| Vec::new()).unwrap();
        let generation = (1, PathBuf::from("/mnt/var/lib/holdfast/config")).into();
        assert_eq!(inputs.source, StateSource::applied(generation));
    }
}
