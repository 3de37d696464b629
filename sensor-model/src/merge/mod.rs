//! Many MachineConfigs become one rendered config.
//!
//! Parsed MachineConfigs come in, in any order; out comes what they say together, by the Machine
//! Config Operator's rules (which rest on Ignition's), with the MachineConfig that each part came
//! from. Contents stay in their encoded form. Disks, file systems, RAID, LUKS and the like are made once,
//! at the first boot, and are not what a running node can drift from: they are carried as they are
//! ([`Fixed`]), to be compared.

mod covers;
mod declarations;
mod fixed;
mod rules;

#[cfg(test)]
mod tests;

use crate::{
    expectation::Source,
    ignition::{Dialect, spec},
    machine_config::{GENERATED_BY_ANNOTATION, MachineConfig},
    pool,
    text::quote,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub use declarations::{DECLARATIONS_ANNOTATION, DISRUPTION_ANNOTATION};
pub use fixed::{Fixed, Section};

/// The role whose MachineConfigs every pool of its own takes, too.
const WORKER: &str = "worker";

/// A part of the rendered config, and who said it last.
#[derive(Debug, Clone, PartialEq)]
pub struct Sourced<T> {
    /// The part.
    pub value: T,
    /// The MachineConfig that said it last.
    pub source: Source,
}

/// A file after the merge.
#[derive(Debug, Clone, PartialEq)]
pub struct RenderedFile {
    /// As Ignition declares it, every field merged.
    pub file: spec::File,
    /// Whose rule decides what an unset source means: that of whoever said the file last.
    pub dialect: Dialect,
}

/// A unit after the merge.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RenderedUnit {
    /// Its file's content.
    pub contents: Option<Sourced<String>>,
    /// Declared enablement.
    pub enabled: Option<Sourced<bool>>,
    /// Declared mask.
    pub mask: Option<Sourced<bool>>,
    /// Drop-ins by name; `None` is a drop-in without contents.
    pub dropins: BTreeMap<String, Sourced<Option<String>>>,
}

/// A user after the merge, as far as ssh keys need it.
#[derive(Debug, Clone, PartialEq)]
pub struct RenderedUser {
    /// As Ignition declares it, every field but the keys merged.
    pub user: spec::User,
    /// Declared keys in order, each once; `None` when nobody declares any list of keys.
    pub keys: Option<Vec<Sourced<String>>>,
    /// The MachineConfig that said anything about the user last.
    pub source: Source,
}

/// The merge of MachineConfigs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rendered {
    /// The MachineConfigs in the order in which they were merged.
    pub sources: Vec<Source>,
    /// Files by path.
    pub files: BTreeMap<String, Sourced<RenderedFile>>,
    /// Directories by path.
    pub directories: BTreeMap<String, Sourced<spec::Directory>>,
    /// Links by path.
    pub links: BTreeMap<String, Sourced<spec::Link>>,
    /// Units by name.
    pub units: BTreeMap<String, RenderedUnit>,
    /// Users by name.
    pub users: BTreeMap<String, RenderedUser>,
    /// Kernel arguments in order, duplicates kept.
    pub kernel_arguments: Vec<Sourced<String>>,
    /// `realtime` or `64k-pages`; `None` means the default kernel.
    pub kernel_type: Option<Sourced<String>>,
    /// Extensions in order, duplicates kept.
    pub extensions: Vec<Sourced<String>>,
    /// Who asks for FIPS first; `None` when nobody does.
    pub fips: Option<Source>,
    /// OS image that overrides the cluster's.
    pub os_image_url: Option<Sourced<String>>,
    /// Extensions image that overrides the cluster's.
    pub base_os_extensions_container_image: Option<Sourced<String>>,
    /// What only a first boot can make.
    pub fixed: Fixed,
    /// Names of MachineConfigs whose owners say which action their content needs, and what they say.
    pub declarations: BTreeMap<String, Declaration>,
    /// Files, directories and links of which several MachineConfigs say parts: all but the last one.
    pub shared: BTreeMap<String, BTreeSet<Arc<str>>>,
    /// Roles of the MachineConfigs, by their label.
    pub roles: BTreeSet<String>,
}

impl Rendered {
    /// Takes what another one says of the operating system in the place of its own.
    pub fn take_os(&mut self, other: Self) {
        self.kernel_arguments = other.kernel_arguments;
        self.kernel_type = other.kernel_type;
        self.extensions = other.extensions;
        self.os_image_url = other.os_image_url;
        self.base_os_extensions_container_image = other.base_os_extensions_container_image;
    }

    /// Whether nothing on a node would be because of it. Names, roles and annotations of MachineConfigs declare nothing.
    pub fn declares_nothing(&self) -> bool {
        let bare = Self {
            sources: self.sources.clone(),
            declarations: self.declarations.clone(),
            roles: self.roles.clone(),
            ..Self::default()
        };
        *self == bare
    }

    /// The pool that it is for: by the name of a rendered config, else by its roles. A pool of its own takes what is the
    /// workers' besides; with several others nobody can tell.
    pub fn pool(&self) -> Option<&str> {
        let named = self.sources.iter().find_map(|source| pool::of_rendered(&source.machine_config));
        let mut own = self.roles.iter().map(String::as_str).filter(|role| *role != WORKER);
        named.or_else(|| match (own.next(), own.next()) {
            (None, _) => self.roles.first().map(String::as_str),
            (one, None) => one,
            _ => None,
        })
    }
}

/// What the owner of a MachineConfig says of the disruption that its content needs. Whether it counts is
/// for a policy to say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Declaration {
    /// Value of [`DISRUPTION_ANNOTATION`].
    pub text: String,
    /// `metadata.labels` of the MachineConfig.
    pub labels: BTreeMap<String, String>,
}

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

/// Merges MachineConfigs: those of role `worker` first, then all others, each group by name; a later
/// one wins.
///
/// # Errors
/// Two MachineConfigs of one name, parts that cannot stand together.
pub fn merge(mut configs: Vec<MachineConfig>) -> Result<Rendered, MergeError> {
    configs.sort_by(|a, b| rules::order(a).cmp(&rules::order(b)));
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    for config in &configs {
        let Source { machine_config, origin } = &config.source;
        if let Some(first) = names.insert(machine_config, origin) {
            return Err(MergeError::DuplicateName {
                name: machine_config.to_string(),
                first: first.to_owned(),
                second: origin.to_string(),
            });
        }
    }
    let mut rendered = Rendered::default();
    for config in configs {
        rendered.roles.extend(config.role().map(str::to_owned));
        rules::add(&mut rendered, config);
    }
    rules::check(&rendered)?;
    Ok(rendered)
}

/// Takes one MachineConfig as rendered already: it says everything itself, the images included, also where
/// a controller made it.
///
/// # Errors
/// Parts that cannot stand together.
pub fn rendered(mut config: MachineConfig) -> Result<Rendered, MergeError> {
    config.annotations.remove(GENERATED_BY_ANNOTATION);
    // Only what renders a pool knows what its owners declared; anybody else could say anything of anybody.
    let is_rendered = pool::of_rendered(&config.source.machine_config).is_some();
    let kept = config.annotations.remove(DECLARATIONS_ANNOTATION).filter(|_| is_rendered);
    let origin = config.source.origin.clone();
    let mut rendered = Rendered::default();
    rendered.roles.extend(config.role().map(str::to_owned));
    rules::add(&mut rendered, config);
    rules::check(&rendered)?;
    if let Some(kept) = kept {
        declarations::restore(&mut rendered, &kept, &origin);
    }
    Ok(rendered)
}
