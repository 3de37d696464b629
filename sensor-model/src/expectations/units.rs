//! Units.
//!
//! In: the units of a rendered config. Out: the expectations of their files and drop-ins, of closed drop-in directories, and of
//! enablement and mask.

use super::declared::{FILE_MODE, digest};
use crate::{
    expectation::{
        ClosedDirectoryExpectation, Expectation, Expected, FileExpectation, Owner, SYSTEMD_DIRECTORY, Source,
        Thing, UnitExpectation,
    },
    link_exceptions::LinkExceptions,
    merge::{Rendered, RenderedUnit, Sourced},
    name_patterns::NamePatterns,
};
use std::path::{Path, PathBuf};

/// Undeclared drop-ins that OpenShift's own services write at every boot (node address, cloud provider).
const NODE_WRITTEN_DROPINS: [(&str, &str); 5] = [
    ("crio.service", "20-nodenet.conf"),
    ("kubelet.service", "20-aws-node-name.conf"),
    ("kubelet.service", "20-aws-providerid.conf"),
    ("kubelet.service", "20-nodenet.conf"),
    ("kubelet.service", "20-openstack-node-name.conf"),
];

pub(super) fn expectations(rendered: &Rendered, found: &mut Vec<Expectation>) {
    for (name, unit) in &rendered.units {
        let path = unit_path(name);
        // The path of a masked unit is a link to /dev/null, so its content is not on the disk.
        if !is_masked(unit)
            && let Some(contents) = unit.contents.as_ref().filter(|contents| !contents.value.is_empty())
        {
            found.push(file(&path, contents.value.as_bytes(), false, &contents.source));
        }
        state(name, unit, rendered, found);
        dropins(name, unit, rendered, found);
    }
}

/// The content of a unit's file or of a drop-in.
pub(super) fn bytes(rendered: &Rendered, path: &Path) -> Option<Vec<u8>> {
    let below = path.strip_prefix(SYSTEMD_DIRECTORY).ok()?.to_str()?;
    if let Some((directory, dropin)) = below.split_once('/') {
        let unit = rendered.units.get(directory.strip_suffix(".d")?)?;
        let contents = unit.dropins.get(dropin)?.value.as_deref().unwrap_or_default();
        return Some(contents.as_bytes().to_vec());
    }
    let unit = rendered.units.get(below).filter(|unit| !is_masked(unit))?;
    let contents = &unit.contents.as_ref()?.value;
    (!contents.is_empty()).then(|| contents.as_bytes().to_vec())
}

fn is_masked(unit: &RenderedUnit) -> bool {
    unit.mask.as_ref().is_some_and(|mask| mask.value)
}

fn state(name: &str, unit: &RenderedUnit, rendered: &Rendered, found: &mut Vec<Expectation>) {
    // A thing has one source: the last MachineConfig that declares mask or enablement, else the content.
    let said = [&unit.mask, &unit.enabled].into_iter().flatten().map(|part| &part.source);
    let rank = |source: &&Source| rendered.sources.iter().position(|other| other == *source);
    let Some(source) = said.max_by_key(rank).cloned() else {
        return;
    };
    let contents = unit.contents.as_ref().map_or("", |contents| contents.value.as_str());
    found.push(Expectation {
        thing: Thing::Unit { name: name.to_owned() },
        expected: Expected::Unit(UnitExpectation {
            enabled: unit.enabled.as_ref().map(|enabled| enabled.value),
            masked: unit.mask.as_ref().map(|mask| mask.value),
            install_directories: install_directories(contents),
        }),
        ssh_keys: false,
        label: None,
        source: source.into(),
    });
}

fn dropins(name: &str, unit: &RenderedUnit, rendered: &Rendered, found: &mut Vec<Expectation>) {
    let Some(source) = unit.dropins.values().next_back().map(|dropin| dropin.source.clone()) else { return };
    let directory = PathBuf::from(format!("{SYSTEMD_DIRECTORY}/{name}.d"));
    for (dropin, Sourced { value, source }) in &unit.dropins {
        let contents = value.as_deref().unwrap_or_default();
        let path = directory.join(dropin);
        // A drop-in without contents does not override a file, directory or link that declares the same path.
        if contents.is_empty() && path.to_str().is_some_and(|path| is_node(rendered, path)) {
            continue;
        }
        found.push(file(&path, contents.as_bytes(), contents.is_empty(), source));
    }
    if is_node(rendered, &directory.to_string_lossy())
        && !rendered.directories.contains_key(&*directory.to_string_lossy())
    {
        return;
    }
    let written = NODE_WRITTEN_DROPINS.iter().filter(|(unit, _)| *unit == name).map(|(_, dropin)| *dropin);
    let nodes = nodes_in(rendered, &directory);
    let mut names: Vec<String> =
        unit.dropins.keys().cloned().chain(nodes).chain(written.map(str::to_owned)).collect();
    names.sort();
    names.dedup();
    found.push(Expectation {
        thing: Thing::closed_directory(directory),
        expected: Expected::ClosedDirectory(ClosedDirectoryExpectation {
            names,
            suffix: Some(".conf".into()),
            ssh_keys: false,
            except: NamePatterns::default(),
            except_links: LinkExceptions::default(),
        }),
        ssh_keys: false,
        label: None,
        source: source.into(),
    });
}

/// Names of declared files, directories and links directly in a directory.
pub(super) fn nodes_in(rendered: &Rendered, directory: &Path) -> Vec<String> {
    let prefix = format!("{}/", directory.to_string_lossy());
    let files = rendered.files.range(prefix.clone()..).map(|(path, _)| path);
    let directories = rendered.directories.range(prefix.clone()..).map(|(path, _)| path);
    let links = rendered.links.range(prefix.clone()..).map(|(path, _)| path);
    let below = |path: &&String| path.starts_with(&prefix);
    files
        .take_while(below)
        .chain(directories.take_while(below))
        .chain(links.take_while(below))
        .filter_map(|path| path[prefix.len()..].split('/').next().map(str::to_owned))
        .collect()
}

fn is_node(rendered: &Rendered, path: &str) -> bool {
    rendered.files.contains_key(path)
        || rendered.directories.contains_key(path)
        || rendered.links.contains_key(path)
}

fn file(path: &Path, bytes: &[u8], may_be_missing: bool, source: &Source) -> Expectation {
    Expectation {
        thing: Thing::file(path),
        expected: Expected::File(FileExpectation {
            content: Some(digest(bytes)),
            keys: Box::default(),
            layout_free: false,
            mode: FILE_MODE,
            user: Owner::Id(0),
            group: Owner::Id(0),
            may_be_missing,
            xattrs: None,
        }),
        ssh_keys: false,
        label: None,
        source: source.clone().into(),
    }
}

fn unit_path(name: &str) -> PathBuf {
    Path::new(SYSTEMD_DIRECTORY).join(name)
}

/// The directories below `/etc/systemd/system` that `systemctl enable` links into, by the `[Install]` sections of
/// a unit's text, such as `multi-user.target.wants`.
pub fn install_directories(contents: &str) -> Vec<String> {
    let mut in_install = false;
    let mut found = Vec::new();
    // A backslash at the end of a line continues it.
    for line in contents.replace("\\\n", " ").lines() {
        let line = line.trim();
        if line.starts_with('[') {
            in_install = line == "[Install]";
            continue;
        }
        let Some((key, value)) = line.split_once('=').filter(|_| in_install) else { continue };
        let ending = match key.trim() {
            "WantedBy" => "wants",
            "RequiredBy" => "requires",
            "UpheldBy" => "upholds",
            _ => continue,
        };
        let targets = value.split_ascii_whitespace().filter(|target| crate::path::check_name(target).is_ok());
        found.extend(targets.map(|target| format!("{target}.{ending}")));
    }
    found.sort();
    found.dedup();
    found
}
