//! Kubernetes for the tests: its programs, a control plane on this machine, and images for a node's containerd.
//!
//! In: the cache, and the pins in `vm-tests/kube-assets`. Out: the paths of the programs, a running control
//! plane that ends with its value, and archives of images. Nothing is installed on the machine, and no registry of
//! images is used.

mod assets;
pub(crate) mod control_plane;
#[cfg(test)]
mod deploy_tests;
#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod faulty_server;
mod go;
pub(crate) mod image;
pub(crate) mod installed;
#[cfg(test)]
mod log_tests;
#[cfg(test)]
mod manage_tests;
#[cfg(test)]
mod node_config_tests;
#[cfg(test)]
mod openshift_tests;
#[cfg(test)]
mod os_image_tests;
#[cfg(test)]
mod plugin_tests;
#[cfg(test)]
mod policy_tests;
mod process;
#[cfg(test)]
mod reads;
#[cfg(test)]
mod reporter_tests;
#[cfg(test)]
mod restore_tests;
#[cfg(test)]
mod rights_tests;
#[cfg(test)]
mod steady_tests;
pub(crate) mod tar;

pub(crate) use assets::{KubeAssets, NEWEST, OLDER, RELEASE, beyond, tested};
pub(crate) use control_plane::{ClientPlace, ControlPlane, User, Wanted, free_ports};
pub(crate) use process::LoggedProcess;
