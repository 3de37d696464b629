//! Where the expected state of a node is declared.
//!
//! In: the paths of the command line, and the config that was applied last. Out: the configs in force. This module reads no
//! file.

use super::error::DesiredError;
use sensor_model::status::ConfigOrigin;
use std::{
    io,
    path::{Path, PathBuf},
};

/// The state directory below the host's root.
pub const STATE: &str = "/var/lib/holdfast";

/// The service's configs below its host's root. They are in force if no config is named and none was applied.
pub const SERVICE_CONFIGS: &str = "etc/holdfast/machine-configs";

/// The config of a node below its host's root, as the Machine Config Operator's daemon stores it after each update. It is JSON of one
/// rendered MachineConfig.
pub const OPERATOR_CONFIG: &str = "etc/machine-config-daemon/currentconfig";

/// The service's policies below its host's root.
pub(crate) const POLICIES: &str = "etc/holdfast/policies";

/// What declares the expected state of a node. MachineConfigs are the only kind so far; layers of the OS image, packages and
/// objects of a cluster get a variant each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateSource {
    /// MachineConfigs and Ignition configs.
    MachineConfigs(MachineConfigs),
}

/// Which MachineConfigs and Ignition configs are in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MachineConfigs {
    /// Files and directories that the command line names.
    Named(Vec<PathBuf>),
    /// The directory of the host's service.
    Service(PathBuf),
    /// The same directory, and nothing while it does not exist.
    ServiceIfAny(PathBuf),
    /// The file of the Machine Config Operator's daemon.
    Operator(PathBuf),
    /// The config that `holdfast apply` applied last.
    Applied(Generation),
    /// Copies of the last files that could be used.
    LastUsable(Vec<PathBuf>),
}

/// A config that `holdfast apply` keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// The number of the apply.
    pub number: u64,
    /// The directory of its manifests.
    pub manifests: PathBuf,
}

impl From<(u64, PathBuf)> for Generation {
    fn from((number, manifests): (u64, PathBuf)) -> Self {
        Self { number, manifests }
    }
}

impl StateSource {
    /// Files and directories that the command line names.
    pub fn named(paths: Vec<PathBuf>) -> Self {
        Self::MachineConfigs(MachineConfigs::Named(paths))
    }

    /// The config that was applied last.
    pub fn applied(generation: Generation) -> Self {
        Self::MachineConfigs(MachineConfigs::Applied(generation))
    }

    /// The paths of the manifests.
    pub fn manifests(&self) -> &[PathBuf] {
        let Self::MachineConfigs(configs) = self;
        match configs {
            MachineConfigs::Named(paths) | MachineConfigs::LastUsable(paths) => paths,
            MachineConfigs::ServiceIfAny(path) if !path.exists() => &[],
            MachineConfigs::Service(path)
            | MachineConfigs::ServiceIfAny(path)
            | MachineConfigs::Operator(path) => std::slice::from_ref(path),
            MachineConfigs::Applied(generation) => std::slice::from_ref(&generation.manifests),
        }
    }

    /// The number of the apply that applied the config; `None` for other configs.
    pub fn generation(&self) -> Option<u64> {
        match self {
            Self::MachineConfigs(MachineConfigs::Applied(generation)) => Some(generation.number),
            Self::MachineConfigs(_) => None,
        }
    }

    /// Which of the places it is.
    pub(super) fn origin(&self) -> ConfigOrigin {
        let Self::MachineConfigs(configs) = self;
        match configs {
            MachineConfigs::Named(_) => ConfigOrigin::Named,
            MachineConfigs::Service(_) | MachineConfigs::ServiceIfAny(_) => ConfigOrigin::Service,
            MachineConfigs::Operator(_) => ConfigOrigin::Operator,
            MachineConfigs::Applied(_) => ConfigOrigin::Applied,
            MachineConfigs::LastUsable(_) => ConfigOrigin::LastUsable,
        }
    }

    /// Whether the configs are those of the host's service.
    pub(super) fn is_of_service(&self) -> bool {
        matches!(self, Self::MachineConfigs(MachineConfigs::Service(_) | MachineConfigs::ServiceIfAny(_)))
    }

    /// The file of the Machine Config Operator's daemon, if it is the source.
    pub fn of_operator(&self) -> Option<&Path> {
        match self {
            Self::MachineConfigs(MachineConfigs::Operator(path)) => Some(path),
            Self::MachineConfigs(_) => None,
        }
    }

    /// Whether the config was accepted before, so that an unknown field in it is no reason to refuse it.
    pub(super) fn was_accepted(&self) -> bool {
        let Self::MachineConfigs(configs) = self;
        match configs {
            MachineConfigs::Named(_) | MachineConfigs::Service(_) | MachineConfigs::ServiceIfAny(_) => false,
            MachineConfigs::Operator(_) | MachineConfigs::Applied(_) | MachineConfigs::LastUsable(_) => true,
        }
    }

    /// Adds to an error which config Holdfast chose, if the command line names none.
    pub(super) fn explain(&self, error: DesiredError) -> DesiredError {
        let Self::MachineConfigs(configs) = self;
        let chosen = match configs {
            MachineConfigs::Named(_) | MachineConfigs::LastUsable(_) => return error,
            MachineConfigs::ServiceIfAny(_) => "the config of the service".to_owned(),
            MachineConfigs::Operator(_) => "the config of the Machine Config Operator's daemon".to_owned(),
            MachineConfigs::Applied(generation) => {
                format!("the config that was applied last, number {}", generation.number)
            }
            MachineConfigs::Service(configs) => match &error {
                DesiredError::Read { path, error }
                    if path == configs && error.kind() == io::ErrorKind::NotFound =>
                {
                    return DesiredError::NoneOfService(configs.clone());
                }
                _ => "the config of the service".to_owned(),
            },
        };
        DesiredError::Chosen { chosen, error: Box::new(error) }
    }
}

/// The configs and policies in force. They are the named ones, else the config that was applied last, else those of the service
/// of the host at `root`, else the config of the Machine Config Operator's daemon there. The service's policies are never used with named configs, so an answer about a config does not depend
/// on the machine.
pub(super) fn choose(
    root: &Path,
    configs: &[PathBuf],
    policies: &[PathBuf],
    applied: Option<Generation>,
) -> (StateSource, Vec<PathBuf>) {
    let mut policies = policies.to_vec();
    if !configs.is_empty() {
        return (StateSource::named(configs.to_vec()), policies);
    }
    let of_service = root.join(POLICIES);
    if policies.is_empty() && of_service.is_dir() {
        policies.push(of_service);
    }
    let (service, operator) = (root.join(SERVICE_CONFIGS), root.join(OPERATOR_CONFIG));
    let configs = match applied {
        Some(generation) => MachineConfigs::Applied(generation),
        // An admin who puts configs there chose them for this host.
        None if !service.exists() && operator.exists() => MachineConfigs::Operator(operator),
        None => MachineConfigs::Service(service),
    };
    (StateSource::MachineConfigs(configs), policies)
}

/// The state directory: the named one, or that of the host at `root`. So the applies of two hosts are never mixed up.
pub fn state_directory(named: Option<&Path>, root: &Path) -> PathBuf {
    named.map_or_else(|| root.join(STATE.trim_start_matches('/')), Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "/";

    fn service(root: &str) -> StateSource {
        StateSource::MachineConfigs(MachineConfigs::Service(Path::new(root).join(SERVICE_CONFIGS)))
    }

    #[test]
    fn without_named_configs_those_of_the_service_are_in_force() {
        for (root, path) in
            [(ROOT, "/etc/holdfast/machine-configs"), ("/mnt", "/mnt/etc/holdfast/machine-configs")]
        {
            let chosen = choose(root.as_ref(), &[], &[], None).0;
            assert_eq!((chosen.manifests(), &chosen), (&[PathBuf::from(path)][..], &service(root)));
        }
    }

    #[test]
    fn the_applied_config_is_preferred_to_the_services_and_named_configs_to_both() {
        let applied = Generation { number: 1, manifests: PathBuf::from("generations/1/config") };
        let named = [PathBuf::from("a.yaml")];
        let chosen = choose(ROOT.as_ref(), &[], &[], Some(applied.clone())).0;
        assert_eq!((chosen.generation(), chosen), (Some(1), StateSource::applied(applied.clone())));
        assert_eq!(choose(ROOT.as_ref(), &named, &[], Some(applied)).0, StateSource::named(named.to_vec()));
    }

    #[test]
    fn a_node_of_the_operator_has_the_config_that_its_daemon_stored_unless_the_service_has_configs() {
        let root = tempfile::tempdir().unwrap();
        let stored = root.path().join(OPERATOR_CONFIG);
        std::fs::create_dir_all(stored.parent().unwrap()).unwrap();
        std::fs::write(&stored, "{}").unwrap();
        let chosen = choose(root.path(), &[], &[], None).0;
        assert_eq!((chosen.of_operator(), chosen.was_accepted()), (Some(stored.as_path()), true));
        let applied = Generation { number: 1, manifests: PathBuf::from("generations/1/config") };
        assert_eq!(choose(root.path(), &[], &[], Some(applied)).0.of_operator(), None);
        std::fs::create_dir_all(root.path().join(SERVICE_CONFIGS)).unwrap();
        assert!(choose(root.path(), &[], &[], None).0.is_of_service());
    }

    #[test]
    fn a_managed_node_without_any_config_has_nothing_declared_until_the_service_gets_one() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(SERVICE_CONFIGS);
        let source = StateSource::MachineConfigs(MachineConfigs::ServiceIfAny(path.clone()));
        assert!(source.manifests().is_empty() && source.is_of_service());
        std::fs::create_dir_all(&path).unwrap();
        assert_eq!(source.manifests(), [path]);
    }

    #[test]
    fn the_state_directory_is_that_of_the_host_at_the_root() {
        assert_eq!(state_directory(None, Path::new("/")), Path::new("/var/lib/holdfast"));
        assert_eq!(state_directory(None, Path::new("/mnt")), Path::new("/mnt/var/lib/holdfast"));
        assert_eq!(state_directory(Some(Path::new("/state")), Path::new("/mnt")), Path::new("/state"));
    }

    #[test]
    fn the_services_policies_are_not_mixed_with_other_configs_or_policies() {
        let (named, policy) = ([PathBuf::from("a.yaml")], [PathBuf::from("p.yaml")]);
        let chosen = (StateSource::named(named.to_vec()), vec![]);
        assert_eq!(choose(ROOT.as_ref(), &named, &[], None), chosen);
        assert_eq!(choose(ROOT.as_ref(), &[], &policy, None), (service(ROOT), policy.to_vec()));
    }
}
