//! Why MachineConfigs cannot be merged.
//!
//! In: nothing. Out: the errors, with both MachineConfigs.

use crate::{expectation::Source, text::quote};

/// Why MachineConfigs don't go together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// Two MachineConfigs of one name.
    #[error("MachineConfig {}: metadata.name: it is in {first} and in {second}", quote(name))]
    DuplicateName {
        /// The name.
        name: String,
        /// The file of one.
        first: String,
        /// The file of the other.
        second: String,
    },
    /// The Machine Config Operator's rule and text.
    #[error(
        "MachineConfig {}: spec.extensions: installing kernel-devel extension is not supported with kernelType: {kernel_type}",
        quote(&asked_by.machine_config)
    )]
    KernelDevel {
        /// The kernel type.
        kernel_type: String,
        /// The MachineConfig that asks for the extension.
        asked_by: Source,
    },
    /// Two parts of the rendered config declare the same path.
    #[error("{} and {}: {what} {} conflicts with the systemd unit or drop-in of the same path", first.machine_config, second.machine_config, quote(path))]
    Conflict {
        /// `file`, `directory` or `link`.
        what: &'static str,
        /// The path.
        path: String,
        /// The MachineConfig that declares it.
        first: Box<Source>,
        /// The MachineConfig that declares the unit.
        second: Box<Source>,
    },
    /// A path below a declared link: its file would be written to the link's target.
    #[error("{} and {}: {what} {} is below the link {}", link_of.machine_config, path_of.machine_config, quote(path), quote(link))]
    BelowLink {
        /// `file`, `directory` or `link`.
        what: &'static str,
        /// The path.
        path: String,
        /// The MachineConfig that declares it.
        path_of: Box<Source>,
        /// The link's path.
        link: String,
        /// The MachineConfig that declares the link.
        link_of: Box<Source>,
    },
    /// A hard link to a directory, which Linux does not have.
    #[error("{} and {}: the target of the hard link {} is the directory {}", link_of.machine_config, directory_of.machine_config, quote(link), quote(directory))]
    HardLink {
        /// The link's path.
        link: String,
        /// The MachineConfig that declares the link.
        link_of: Box<Source>,
        /// The directory's path.
        directory: String,
        /// The MachineConfig that declares the directory.
        directory_of: Box<Source>,
    },
}
