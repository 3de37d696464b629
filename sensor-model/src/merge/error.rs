//! Why MachineConfigs cannot be merged.

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
        /// Who asks for the extension.
        asked_by: Source,
    },
    /// Two parts of the rendered config would write the same path.
    #[error("{} and {}: {what} {} conflicts with the systemd unit or drop-in of the same path", first.machine_config, second.machine_config, quote(path))]
    Conflict {
        /// `file`, `directory` or `link`.
        what: &'static str,
        /// The path.
        path: String,
        /// Who declares it.
        first: Box<Source>,
        /// Who declares the unit.
        second: Box<Source>,
    },
    /// What lies below a link of the config would be written wherever the link points.
    #[error("{} and {}: {what} {} is below the link {}", link_of.machine_config, path_of.machine_config, quote(path), quote(link))]
    BelowLink {
        /// `file`, `directory` or `link`.
        what: &'static str,
        /// The path.
        path: String,
        /// Who declares it.
        path_of: Box<Source>,
        /// The link's path.
        link: String,
        /// Who declares the link.
        link_of: Box<Source>,
    },
    /// A directory cannot have another name.
    #[error("{} and {}: the target of the hard link {} is the directory {}", link_of.machine_config, directory_of.machine_config, quote(link), quote(directory))]
    HardLink {
        /// The link's path.
        link: String,
        /// Who declares the link.
        link_of: Box<Source>,
        /// The directory's path.
        directory: String,
        /// Who declares the directory.
        directory_of: Box<Source>,
    },
}
