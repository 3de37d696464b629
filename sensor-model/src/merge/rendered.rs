//! The merge of MachineConfigs: those of a pool, or those of the files that a command names.
//!
//! In: nothing. Out: the form of the merge, in which each part has the MachineConfig that declares it.

use super::fixed::Fixed;
use crate::{
    expectation::Source,
    ignition::{Dialect, spec},
    machine_config::pool_of_rendered,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The role whose MachineConfigs every custom pool includes.
const WORKER: &str = "worker";

/// A part of the rendered config with its MachineConfig.
#[derive(Debug, Clone, PartialEq)]
pub struct Sourced<T> {
    /// The part.
    pub value: T,
    /// The last MachineConfig that declares the part.
    pub source: Source,
}

/// A file after the merge.
#[derive(Debug, Clone, PartialEq)]
pub struct RenderedFile {
    /// The file in Ignition's form, every field merged.
    pub file: spec::File,
    /// The dialect of the last MachineConfig that declares the file; it decides what an unset source means.
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
    /// Drop-ins by name; `None` for a drop-in without contents.
    pub dropins: BTreeMap<String, Sourced<Option<String>>>,
}

/// A user after the merge.
#[derive(Debug, Clone, PartialEq)]
pub struct RenderedUser {
    /// The user in Ignition's form, every field except the keys merged.
    pub user: spec::User,
    /// Declared keys in order, each once; `None` if no MachineConfig declares a list of keys.
    pub keys: Option<Vec<Sourced<String>>>,
    /// The last MachineConfig that declares anything of the user.
    pub source: Source,
}

/// The merge of MachineConfigs, which may be of one pool or of any files.
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
    /// The first MachineConfig that enables FIPS; `None` if none does.
    pub fips: Option<Source>,
    /// OS image that overrides the cluster's.
    pub os_image_url: Option<Sourced<String>>,
    /// Extensions image that overrides the cluster's.
    pub base_os_extensions_container_image: Option<Sourced<String>>,
    /// Sections that only the first boot applies.
    pub fixed: Fixed,
    /// Declared disruption by the name of the MachineConfig.
    pub declarations: BTreeMap<String, Declaration>,
    /// Files, directories and links that several MachineConfigs declare in part: by path, all of them but the last one.
    pub shared: BTreeMap<String, BTreeSet<Arc<str>>>,
    /// Roles of the MachineConfigs, by their label.
    pub roles: BTreeSet<String>,
}

/// The disruption that the owner of a MachineConfig declares for its content. A policy decides whether the declaration is
/// accepted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Declaration {
    /// Value of [`DISRUPTION_ANNOTATION`].
    pub text: String,
    /// `metadata.labels` of the MachineConfig.
    pub labels: BTreeMap<String, String>,
}

impl Rendered {
    /// Replaces everything about the operating system by that of another config.
    pub fn take_os(&mut self, other: Self) {
        self.kernel_arguments = other.kernel_arguments;
        self.kernel_type = other.kernel_type;
        self.extensions = other.extensions;
        self.os_image_url = other.os_image_url;
        self.base_os_extensions_container_image = other.base_os_extensions_container_image;
    }

    /// Whether the config declares nothing. Names, roles and annotations of MachineConfigs are no declarations.
    pub fn declares_nothing(&self) -> bool {
        let bare = Self {
            sources: self.sources.clone(),
            declarations: self.declarations.clone(),
            roles: self.roles.clone(),
            ..Self::default()
        };
        *self == bare
    }

    /// The config's pool: by the name of a rendered config, else by its roles. A custom pool also has the role `worker`. With
    /// several other roles the pool is unknown.
    pub fn pool(&self) -> Option<&str> {
        let named = self.sources.iter().find_map(|source| pool_of_rendered(&source.machine_config));
        let mut own = self.roles.iter().map(String::as_str).filter(|role| *role != WORKER);
        named.or_else(|| match (own.next(), own.next()) {
            (None, _) => self.roles.first().map(String::as_str),
            (one, None) => one,
            _ => None,
        })
    }
}

impl RenderedUnit {
    /// Whether this MachineConfig declares every part of the unit.
    pub fn is_declared_by(&self, name: &str) -> bool {
        let flags = [&self.enabled, &self.mask].into_iter().flatten().map(|part| &part.source);
        let contents = self.contents.iter().map(|part| &part.source);
        let mut sources =
            flags.chain(contents).chain(self.dropins.values().map(|part| &part.source)).peekable();
        sources.peek().is_some() && sources.all(|source| *source.machine_config == *name)
    }

    pub(super) fn sources_mut(&mut self) -> impl Iterator<Item = &mut Source> {
        let flags = [&mut self.enabled, &mut self.mask].into_iter().flatten().map(|part| &mut part.source);
        let contents = self.contents.iter_mut().map(|part| &mut part.source);
        flags.chain(contents).chain(self.dropins.values_mut().map(|part| &mut part.source))
    }
}
