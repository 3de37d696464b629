//! The rules of the merge, one function for each part.
//!
//! In: the merge so far, and one more config. Out: the merge with that config. By Ignition's rules a field that a later config
//! omits keeps its value. Lists merge by key. A file, a directory and a link of one path replace each other. Comments mark the
//! Machine Config Operator's rules.

use super::{
    covers,
    declarations::DISRUPTION_ANNOTATION,
    error::MergeError,
    rendered::{Declaration, Rendered, RenderedFile, RenderedUser, Sourced},
};
use crate::{
    expectation::{SYSTEMD_DIRECTORY, Source},
    ignition::{Dialect, spec},
    machine_config::{GENERATED_BY_ANNOTATION, MachineConfig},
};
use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
};

/// Sort key of the merge: a pool's own MachineConfigs come after those of `worker` and so override them.
pub(super) fn order(config: &MachineConfig) -> (bool, &str) {
    (config.role() != Some("worker"), &config.source.machine_config)
}

/// Merges one more config into what came before it.
pub(super) fn add(rendered: &mut Rendered, mut config: MachineConfig) {
    let ignition = config.config.take();
    let MachineConfig { source, dialect, annotations, .. } = &config;
    let sourced = |text: &String| Sourced { value: text.clone(), source: source.clone() };
    rendered.kernel_arguments.extend(config.kernel_arguments.iter().map(sourced));
    rendered.extensions.extend(config.extensions.iter().map(sourced));
    // The operator's rule: a later explicit `default` does not undo a kernel type.
    if let Some(kind) = config.kernel_type.as_ref().filter(|kind| *kind != "default") {
        rendered.kernel_type = Some(sourced(kind));
    }
    if config.fips && rendered.fips.is_none() {
        rendered.fips = Some(source.clone());
    }
    // A generated config only repeats the cluster's image of its time, so it overrides no image.
    if annotations.get(GENERATED_BY_ANNOTATION).is_none_or(String::is_empty) {
        if let Some(url) = &config.os_image_url {
            rendered.os_image_url = Some(sourced(url));
        }
        if let Some(image) = &config.base_os_extensions_container_image {
            rendered.base_os_extensions_container_image = Some(sourced(image));
        }
    }
    rendered.sources.push(source.clone());
    if let Some(text) = annotations.get(DISRUPTION_ANNOTATION) {
        let declaration = Declaration { text: text.clone(), labels: config.labels.clone() };
        rendered.declarations.insert(source.machine_config.to_string(), declaration);
    }
    if let Some(ignition) = ignition {
        add_ignition(rendered, ignition, *dialect, source);
    }
}

fn add_ignition(rendered: &mut Rendered, config: spec::Config, dialect: Dialect, source: &Source) {
    rendered.fixed.add(&config);
    let storage = config.storage.unwrap_or_default();
    for file in storage.files.into_iter().flatten() {
        let replaced =
            rendered.directories.remove(&file.path).is_some() | rendered.links.remove(&file.path).is_some();
        let covers = |old: &Sourced<_>| covers::file(&old.value, &file, dialect);
        note_shared(
            &mut rendered.shared,
            rendered.files.get(&file.path),
            covers,
            &file.path,
            replaced,
            source,
        );
        add_file(rendered, file, dialect, source);
    }
    for directory in storage.directories.into_iter().flatten() {
        let replaced = rendered.files.remove(&directory.path).is_some()
            | rendered.links.remove(&directory.path).is_some();
        let covers = |old: &Sourced<_>| covers::directory(&old.value, &directory);
        note_shared(
            &mut rendered.shared,
            rendered.directories.get(&directory.path),
            covers,
            &directory.path,
            replaced,
            source,
        );
        match rendered.directories.entry(directory.path.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(Sourced { value: directory, source: source.clone() });
            }
            Entry::Occupied(mut entry) => {
                let Sourced { value: old, source: old_source } = entry.get_mut();
                over(&mut old.mode, directory.mode);
                over(&mut old.overwrite, directory.overwrite);
                over_user(&mut old.user, directory.user);
                over_group(&mut old.group, directory.group);
                old_source.clone_from(source);
            }
        }
    }
    for link in storage.links.into_iter().flatten() {
        let replaced =
            rendered.files.remove(&link.path).is_some() | rendered.directories.remove(&link.path).is_some();
        let covers = |old: &Sourced<_>| covers::link(&old.value, &link);
        note_shared(
            &mut rendered.shared,
            rendered.links.get(&link.path),
            covers,
            &link.path,
            replaced,
            source,
        );
        match rendered.links.entry(link.path.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(Sourced { value: link, source: source.clone() });
            }
            Entry::Occupied(mut entry) => {
                let Sourced { value: old, source: old_source } = entry.get_mut();
                over(&mut old.target, link.target);
                over(&mut old.hard, link.hard);
                over(&mut old.overwrite, link.overwrite);
                over_user(&mut old.user, link.user);
                over_group(&mut old.group, link.group);
                old_source.clone_from(source);
            }
        }
    }
    for unit in config.systemd.and_then(|systemd| systemd.units).into_iter().flatten() {
        add_unit(rendered, unit, source);
    }
    for user in config.passwd.and_then(|passwd| passwd.users).into_iter().flatten() {
        add_user(rendered, user, source);
    }
}

/// Records the MachineConfigs that declare parts of a thing, before a further config is merged into it. If that config sets
/// every field again, it is the only one.
fn note_shared<T>(
    shared: &mut BTreeMap<String, BTreeSet<Arc<str>>>,
    before: Option<&Sourced<T>>,
    covers: impl Fn(&Sourced<T>) -> bool,
    path: &str,
    replaced: bool,
    by: &Source,
) {
    let name = |source: &Source| source.machine_config.clone();
    match before {
        Some(before) if !covers(before) => {
            let others = shared.entry(path.to_owned()).or_default();
            others.insert(name(&before.source));
            // A MachineConfig that declares the thing once more is the last one, so it is not among the others.
            others.remove(&name(by));
        }
        Some(_) => drop(shared.remove(path)),
        None if replaced => drop(shared.remove(path)),
        None => {}
    }
}

fn add_file(rendered: &mut Rendered, mut file: spec::File, dialect: Dialect, source: &Source) {
    match rendered.files.entry(file.path.clone()) {
        Entry::Vacant(entry) => {
            normalize(&mut file.contents);
            entry.insert(Sourced { value: RenderedFile { file, dialect }, source: source.clone() });
        }
        Entry::Occupied(mut entry) => {
            let Sourced { value: old, source: old_source } = entry.get_mut();
            old.dialect = dialect;
            old_source.clone_from(source);
            let old = &mut old.file;
            over(&mut old.mode, file.mode);
            over(&mut old.overwrite, file.overwrite);
            over_user(&mut old.user, file.user);
            over_group(&mut old.group, file.group);
            if let Some(append) = file.append {
                old.append.get_or_insert_default().extend(append);
            }
            let mut contents = file.contents.unwrap_or_default();
            // The operator's rule: an omitted compression means none, even if the source is omitted, too. The earlier source
            // is then no longer decompressed.
            if dialect == Dialect::MachineConfig && contents.compression.is_none() {
                contents.compression = Some(String::new());
            }
            let merged = old.contents.get_or_insert_default();
            if contents.source.is_some() {
                // A hash belongs to the content it was made of.
                merged.verification = None;
            }
            over(&mut merged.source, contents.source);
            over(&mut merged.compression, contents.compression);
            over(&mut merged.verification, contents.verification);
            normalize(&mut old.contents);
        }
    }
}

/// An empty compression becomes none, and contents without any field become none.
fn normalize(contents: &mut Option<spec::Resource>) {
    if let Some(said) = contents {
        said.compression = said.compression.take().filter(|compression| !compression.is_empty());
    }
    if *contents == Some(spec::Resource::default()) {
        *contents = None;
    }
}

fn add_unit(rendered: &mut Rendered, unit: spec::Unit, source: &Source) {
    let merged = rendered.units.entry(unit.name).or_default();
    let sourced = |value| Sourced { value, source: source.clone() };
    over(&mut merged.contents, unit.contents.map(|value| Sourced { value, source: source.clone() }));
    over(&mut merged.enabled, unit.enabled.map(sourced));
    over(&mut merged.mask, unit.mask.map(sourced));
    for dropin in unit.dropins.into_iter().flatten() {
        match merged.dropins.entry(dropin.name) {
            Entry::Vacant(entry) => {
                entry.insert(Sourced { value: dropin.contents, source: source.clone() });
            }
            Entry::Occupied(mut entry) => {
                over(&mut entry.get_mut().value, dropin.contents);
                entry.get_mut().source = source.clone();
            }
        }
    }
}

fn add_user(rendered: &mut Rendered, mut user: spec::User, source: &Source) {
    let keys = user.ssh_authorized_keys.take();
    let merged = match rendered.users.entry(user.name.clone()) {
        Entry::Vacant(entry) => entry.insert(RenderedUser { user, keys: None, source: source.clone() }),
        Entry::Occupied(entry) => {
            let merged = entry.into_mut();
            let old = &mut merged.user;
            over(&mut old.gecos, user.gecos);
            over(&mut old.home_dir, user.home_dir);
            over(&mut old.no_create_home, user.no_create_home);
            over(&mut old.no_log_init, user.no_log_init);
            over(&mut old.no_user_group, user.no_user_group);
            over(&mut old.password_hash, user.password_hash);
            over(&mut old.primary_group, user.primary_group);
            over(&mut old.shell, user.shell);
            over(&mut old.should_exist, user.should_exist);
            over(&mut old.system, user.system);
            over(&mut old.uid, user.uid);
            for group in user.groups.into_iter().flatten() {
                let groups = old.groups.get_or_insert_default();
                if !groups.contains(&group) {
                    groups.push(group);
                }
            }
            merged.source = source.clone();
            merged
        }
    };
    if let Some(keys) = keys {
        let merged = merged.keys.get_or_insert_default();
        for key in keys {
            match merged.iter_mut().find(|old| old.value == key) {
                Some(old) => old.source = source.clone(),
                None => merged.push(Sourced { value: key, source: source.clone() }),
            }
        }
    }
}

/// Checks the merge for conflicts that each config alone does not have.
pub(super) fn check(rendered: &Rendered) -> Result<(), MergeError> {
    if let Some(kind) = &rendered.kernel_type
        && let Some(extension) =
            rendered.extensions.iter().find(|extension| extension.value == "kernel-devel")
    {
        return Err(MergeError::KernelDevel {
            kernel_type: kind.value.clone(),
            asked_by: extension.source.clone(),
        });
    }
    for (name, unit) in &rendered.units {
        let path = format!("{SYSTEMD_DIRECTORY}/{name}");
        if let Some(contents) = unit.contents.as_ref().filter(|contents| !contents.value.is_empty()) {
            no_node_at(rendered, &path, &contents.source)?;
        }
        for (dropin, contents) in &unit.dropins {
            if contents.value.as_ref().is_some_and(|contents| !contents.is_empty()) {
                no_node_at(rendered, &format!("{path}.d/{dropin}"), &contents.source)?;
            }
        }
    }
    links(rendered)
}

/// Checks the links of the merge against all its paths.
fn links(rendered: &Rendered) -> Result<(), MergeError> {
    let files = rendered.files.iter().map(|(path, file)| ("file", path, &file.source));
    let directories =
        rendered.directories.iter().map(|(path, directory)| ("directory", path, &directory.source));
    let links = rendered.links.iter().map(|(path, link)| ("link", path, &link.source));
    for (what, path, source) in files.chain(directories).chain(links) {
        let parents = path.match_indices('/').skip(1).map(|(end, _)| &path[..end]);
        let mut above = parents.filter_map(|parent| Some((parent, rendered.links.get(parent)?)));
        if let Some((parent, link)) = above.next() {
            return Err(MergeError::BelowLink {
                what,
                path: path.clone(),
                path_of: Box::new(source.clone()),
                link: parent.to_owned(),
                link_of: Box::new(link.source.clone()),
            });
        }
    }
    for (path, link) in rendered.links.iter().filter(|(_, link)| link.value.hard == Some(true)) {
        let target = link.value.target.as_deref().unwrap_or_default();
        if let Some(directory) = rendered.directories.get(target) {
            return Err(MergeError::HardLink {
                link: path.clone(),
                link_of: Box::new(link.source.clone()),
                directory: target.to_owned(),
                directory_of: Box::new(directory.source.clone()),
            });
        }
    }
    Ok(())
}

fn no_node_at(rendered: &Rendered, path: &str, unit: &Source) -> Result<(), MergeError> {
    let file = rendered.files.get(path).map(|file| ("file", &file.source));
    let directory = rendered.directories.get(path).map(|directory| ("directory", &directory.source));
    let link = rendered.links.get(path).map(|link| ("link", &link.source));
    match file.or(directory).or(link) {
        Some((what, first)) => Err(MergeError::Conflict {
            what,
            path: path.to_owned(),
            first: Box::new(first.clone()),
            second: Box::new(unit.clone()),
        }),
        None => Ok(()),
    }
}

/// A value of a later config replaces the earlier one; an omitted value does not.
fn over<T>(old: &mut Option<T>, new: Option<T>) {
    if new.is_some() {
        *old = new;
    }
}

/// Replaces id and name together. Ignition merges them separately, so the result could have both and be invalid.
fn over_user(old: &mut Option<spec::NodeUser>, new: Option<spec::NodeUser>) {
    over(old, new.filter(|new| new.id.is_some() || new.name.is_some()));
}

/// See [`over_user`].
fn over_group(old: &mut Option<spec::NodeGroup>, new: Option<spec::NodeGroup>) {
    over(old, new.filter(|new| new.id.is_some() || new.name.is_some()));
}
