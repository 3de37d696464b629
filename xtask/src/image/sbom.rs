//! The list of what the programs are made of, in the format `CycloneDX` 1.6.
//!
//! In: the packages as `cargo metadata` resolves them, the checksums of the lock files, the programs. Out: JSON with each crate that is
//! compiled into a program or into the kernel programs, the standard library and the C library. It has neither a date nor a random
//! number nor a path, so that equal sources give equal lists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::cache::sha256_file;
use crate::dist::{self, BPF_TARGET, HOST_TARGET, VERSION};
use crate::run::{cargo, output};

/// The workspaces: folder, target, and the packages of the programs.
const WORKSPACES: [(&str, &str, &[&str]); 2] = [
    ("", HOST_TARGET, &["sensor-user", "holdfast-cluster"]),
    ("sensor-ebpf", BPF_TARGET, &["holdfast-ebpf"]),
];
/// The reference of the image itself.
const IMAGE: &str = "holdfast-image";

/// The whole list.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Bom {
    #[serde(rename = "bomFormat")]
    format: &'static str,
    spec_version: &'static str,
    version: u32,
    metadata: Metadata,
    components: Vec<Component>,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Serialize)]
struct Metadata {
    component: Component,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Component {
    #[serde(rename = "type")]
    kind: &'static str,
    bom_ref: String,
    name: String,
    version: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hashes: Vec<Hash>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    licenses: Vec<License>,
    #[serde(skip_serializing_if = "Option::is_none")]
    purl: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    components: Vec<Component>,
}

#[derive(Debug, Serialize)]
struct Hash {
    alg: &'static str,
    content: String,
}

#[derive(Debug, Serialize)]
struct License {
    /// An expression of SPDX.
    expression: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Dependency {
    #[serde(rename = "ref")]
    of: String,
    depends_on: BTreeSet<String>,
}

/// What is read of `cargo metadata`.
#[derive(Debug, Deserialize)]
struct Resolved {
    packages: Vec<Package>,
    resolve: Graph,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    /// Where it is from; nothing for our own.
    source: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Graph {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Debug, Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<EdgeKind>,
}

#[derive(Debug, Deserialize)]
struct EdgeKind {
    /// `dev`, `build`, or nothing for what is compiled in.
    kind: Option<String>,
}

/// What is read of a lock file.
#[derive(Debug, Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Debug, Deserialize)]
struct Locked {
    name: String,
    version: String,
    checksum: Option<String>,
}

/// Components and their dependencies by the components' references.
#[derive(Debug, Default)]
struct Parts {
    components: BTreeMap<String, Component>,
    dependencies: BTreeMap<String, BTreeSet<String>>,
}

/// The list for these programs, as JSON.
pub(super) fn of_programs(programs: &[PathBuf]) -> Result<String> {
    let mut parts = Parts::default();
    for (folder, target, packages) in WORKSPACES {
        let folder = dist::root().join(folder);
        let lock = folder.join("Cargo.lock");
        let lock: Lock = toml::from_str(&fs::read_to_string(&lock)?)
            .with_context(|| format!("{} is no lock file", lock.display()))?;
        parts.add(&resolved(&folder, target)?, &lock, packages)?;
    }
    let libraries = libraries()?;
    let roots: BTreeSet<String> =
        WORKSPACES.iter().flat_map(|(_, _, names)| *names).map(own_reference).collect();
    let mut needs = roots.clone();
    needs.extend(libraries.iter().map(|library| library.bom_ref.clone()));
    parts.dependencies.insert(IMAGE.to_owned(), needs);
    for library in libraries {
        parts.dependencies.insert(library.bom_ref.clone(), BTreeSet::new());
        parts.components.insert(library.bom_ref.clone(), library);
    }
    let files = programs.iter().map(|path| file(path)).collect::<Result<_>>()?;
    text(parts, files)
}

fn text(parts: Parts, files: Vec<Component>) -> Result<String> {
    let image = Component {
        components: files,
        licenses: license("Apache-2.0"),
        ..component("container", IMAGE.to_owned(), "holdfast", VERSION)
    };
    let bom = Bom {
        format: "CycloneDX",
        spec_version: "1.6",
        version: 1,
        metadata: Metadata { component: image },
        components: parts.components.into_values().collect(),
        dependencies: parts
            .dependencies
            .into_iter()
            .map(|(of, depends_on)| Dependency { of, depends_on })
            .collect(),
    };
    Ok(format!("{}\n", serde_json::to_string_pretty(&bom)?))
}

/// The packages of a workspace, for a target.
fn resolved(folder: &Path, target: &str) -> Result<Resolved> {
    let mut metadata = cargo();
    metadata.args(["metadata", "--format-version", "1", "--locked", "--filter-platform", target]);
    let text = output(metadata.current_dir(folder))?;
    serde_json::from_str(&text).context("`cargo metadata` printed something unknown")
}

impl Parts {
    /// Adds the packages of these names and what is compiled into them.
    fn add(&mut self, resolved: &Resolved, lock: &Lock, names: &[&str]) -> Result<()> {
        let packages: BTreeMap<&str, &Package> =
            resolved.packages.iter().map(|package| (package.id.as_str(), package)).collect();
        let nodes: BTreeMap<&str, &Node> =
            resolved.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
        let mut open = Vec::new();
        for name in names {
            let mut own = resolved.packages.iter().filter(|package| package.source.is_none());
            let package = own.find(|package| package.name == *name);
            open.push(package.with_context(|| format!("no package {name}"))?.id.as_str());
        }
        let mut seen = BTreeSet::new();
        while let Some(id) = open.pop() {
            if !seen.insert(id) {
                continue;
            }
            let package = packages.get(id).with_context(|| format!("no package {id}"))?;
            let node = nodes.get(id).with_context(|| format!("no node {id}"))?;
            let compiled_in = |edge: &&Edge| edge.dep_kinds.iter().any(|kind| kind.kind.is_none());
            let needed: Vec<&str> =
                node.deps.iter().filter(compiled_in).map(|edge| edge.pkg.as_str()).collect();
            let references =
                needed.iter().filter_map(|id| packages.get(id)).map(|package| reference(package));
            self.dependencies.entry(reference(package)).or_default().extend(references);
            self.components.entry(reference(package)).or_insert_with(|| library(package, lock));
            open.extend(needed);
        }
        Ok(())
    }
}

/// How the list names a package: by its address in the registry, or by its name if it is our own.
fn reference(package: &Package) -> String {
    match package.source {
        Some(_) => format!("pkg:cargo/{}@{}", package.name, package.version),
        None => own_reference(&package.name.as_str()),
    }
}

fn own_reference(name: &&str) -> String {
    format!("{name}@{VERSION}")
}

fn library(package: &Package, lock: &Lock) -> Component {
    let mut locked = lock.package.iter();
    let locked = locked.find(|locked| locked.name == package.name && locked.version == package.version);
    let checksum = locked.and_then(|locked| locked.checksum.clone());
    Component {
        hashes: checksum.map(sha256).into_iter().collect(),
        licenses: package.license.as_deref().map(license).unwrap_or_default(),
        purl: package.source.is_some().then(|| reference(package)),
        ..component("library", reference(package), &package.name, &package.version)
    }
}

/// A program, with its hash.
fn file(path: &Path) -> Result<Component> {
    let name = path.file_name().and_then(|name| name.to_str()).context("a program without a name")?;
    Ok(Component {
        hashes: vec![sha256(sha256_file(path)?)],
        ..component("application", format!("file:/{name}"), name, VERSION)
    })
}

/// What the compiler links without a package: Rust's standard library and the C library.
fn libraries() -> Result<Vec<Component>> {
    let compiler = output(Command::new("rustc").arg("--version"))?;
    let c_library = output(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
    let second = |text: &str| text.split_whitespace().nth(1).map(str::to_owned).context("no version");
    let (rust, c) = (second(&compiler)?, second(&c_library)?);
    let generic = |name: &str, version: &str, terms: &str| {
        let purl = format!("pkg:generic/{name}@{version}");
        Component {
            licenses: license(terms),
            purl: Some(purl.clone()),
            ..component("library", purl, name, version)
        }
    };
    Ok(vec![generic("rust-std", &rust, "MIT OR Apache-2.0"), generic("glibc", &c, "LGPL-2.1-or-later")])
}

fn component(kind: &'static str, bom_ref: String, name: &str, version: &str) -> Component {
    Component {
        kind,
        bom_ref,
        name: name.to_owned(),
        version: version.to_owned(),
        hashes: Vec::new(),
        licenses: Vec::new(),
        purl: None,
        components: Vec::new(),
    }
}

fn sha256(content: String) -> Hash {
    Hash { alg: "SHA-256", content }
}

/// Old packages separate alternatives by a slash, which is no operator of SPDX.
fn license(text: &str) -> Vec<License> {
    vec![License { expression: text.replace('/', " OR ").split_whitespace().collect::<Vec<_>>().join(" ") }]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn list() -> Value {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("holdfast");
        fs::write(&program, "program").unwrap();
        serde_json::from_str(&of_programs(&[program]).unwrap()).unwrap()
    }

    fn references(components: &Value) -> Vec<&str> {
        components.as_array().unwrap().iter().map(|part| part["bom-ref"].as_str().unwrap()).collect()
    }

    #[test]
    fn the_list_has_each_crate_of_the_programs_once_with_license_and_checksum() {
        let list = list();
        assert_eq!((&list["bomFormat"], &list["specVersion"]), (&json!("CycloneDX"), &json!("1.6")));
        let found = references(&list["components"]);
        assert_eq!(found.len(), found.iter().collect::<BTreeSet<_>>().len(), "a reference stands twice");
        let has = |start: &str| found.iter().any(|reference| reference.starts_with(start));
        // One of each program, of the kernel programs, and of what no package brings.
        for wanted in ["pkg:cargo/aya@", "pkg:cargo/kube@", "pkg:cargo/aya-ebpf@", "pkg:generic/glibc@"] {
            assert!(has(wanted), "no {wanted}");
        }
        // Only tests use it.
        assert!(!has("pkg:cargo/proptest@") && !has("pkg:cargo/tempfile@"), "{found:?}");
        for part in list["components"].as_array().unwrap() {
            assert!(part["licenses"][0]["expression"].is_string(), "{part}");
            let is_crate = part["purl"].as_str().is_some_and(|purl| purl.starts_with("pkg:cargo/"));
            let hash = part["hashes"][0]["content"].as_str().map(str::len);
            assert_eq!(hash, is_crate.then_some(64), "{part}");
        }
        let program = &list["metadata"]["component"]["components"][0];
        assert_eq!(program["hashes"][0]["content"].as_str().map(str::len), Some(64), "{program}");
    }

    #[test]
    fn each_dependency_leads_to_a_component_and_each_component_is_reached() {
        let list = list();
        let known: BTreeSet<&str> = references(&list["components"]).into_iter().chain([IMAGE]).collect();
        let mut graph = BTreeMap::new();
        for row in list["dependencies"].as_array().unwrap() {
            let needs: Vec<&str> =
                row["dependsOn"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
            assert!(needs.iter().all(|id| known.contains(id)), "{row}");
            graph.insert(row["ref"].as_str().unwrap(), needs);
        }
        let (mut reached, mut open) = (BTreeSet::new(), vec![IMAGE]);
        while let Some(id) = open.pop() {
            if reached.insert(id) {
                open.extend(&graph[id]);
            }
        }
        assert_eq!(reached, known);
    }

    #[test]
    fn the_list_names_no_folder_of_this_machine() {
        let text = list().to_string();
        let root = dist::root();
        assert!(!text.contains(root.to_str().unwrap()) && !text.contains("file://"), "{text}");
    }

    #[test]
    fn alternatives_are_written_as_spdx_has_them() {
        assert_eq!(license("MIT/Apache-2.0")[0].expression, "MIT OR Apache-2.0");
        assert_eq!(license("Unlicense OR MIT")[0].expression, "Unlicense OR MIT");
    }
}
