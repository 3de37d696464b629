//! The files that are generated from the command line's definition and from the types.
//!
//! In: the definition and the types, through examples of `sensor-user` and `cluster`. Out: `docs/cli.md`, `docs/schemas` and
//! `deploy/crds`, which the repository keeps, the files of `manifests`, and the man pages and completion scripts in `target/dist`. With `check` an error if
//! a kept file is not the generated one. It refuses a schema that lacks a field of the kept one: contracts only grow.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::dist;
use crate::manifests;
use crate::run::{cargo, say, show};

/// The generated page that is kept.
const PAGE: &str = "docs/cli.md";

/// Where the generated schemas are kept.
const SCHEMAS: &str = "docs/schemas";

/// Where the generated CustomResourceDefinitions are kept, beside what is written by hand.
const DEFINITIONS: &str = "deploy/crds";

/// Deepest field of a schema that is compared: an actor's ancestors are actors.
const DEPTH: usize = 12;

/// Makes everything; with `check` it only compares the kept files. The options of Cargo are those of other builds, so that
/// Cargo builds nothing twice. They do not change the files.
pub(crate) fn generate(check: bool, options: &[&str]) -> Result<()> {
    let folder = dist::target_dir().join("dist");
    say("generate", "command line reference, schemas, CustomResourceDefinitions, man pages, completions");
    show(
        cargo()
            .args(["build", "--quiet", "--workspace", "--example", "reference", "--example", "crds"])
            .args(options)
            .current_dir(dist::root()),
    )?;
    let made = folder.join("schemas");
    if made.exists() {
        fs::remove_dir_all(&made).with_context(|| format!("cannot remove {}", made.display()))?;
    }
    let program = dist::target_dir().join("debug/examples/reference");
    show(Command::new(program).arg(&folder).current_dir(dist::root()))?;
    keep(Path::new(PAGE), Some(&read(&folder.join("cli.md"))?), check)?;
    definitions(&folder.join("crds"), check)?;
    manifests::generated()?.iter().try_for_each(|(path, text)| keep(path, Some(text), check))?;
    let kept = Path::new(SCHEMAS);
    let (made, old) = (schemas(&made)?, schemas(&dist::root().join(kept))?);
    for (name, text) in &old {
        let Some(new) = made.get(name) else {
            keep(&kept.join(name), None, check)?;
            continue;
        };
        let lost = lost(text, new).with_context(|| format!("{SCHEMAS}/{name}"))?;
        if !lost.is_empty() {
            bail!(
                "{SCHEMAS}/{name}: the type lacks the fields {}: a contract's fields are never renamed or removed",
                lost.join(", ")
            );
        }
    }
    made.iter().try_for_each(|(name, text)| keep(&kept.join(name), Some(text), check))
}

/// Makes the CustomResourceDefinitions.
fn definitions(folder: &Path, check: bool) -> Result<()> {
    let program = dist::target_dir().join("debug/examples/crds");
    show(Command::new(program).arg(folder).current_dir(dist::root()))?;
    schemas(folder)?
        .iter()
        .try_for_each(|(name, text)| keep(&Path::new(DEFINITIONS).join(name), Some(text), check))
}

/// Writes a kept file, or reports that it differs.
fn keep(path: &Path, made: Option<&str>, check: bool) -> Result<()> {
    let kept = dist::root().join(path);
    if fs::read_to_string(&kept).ok().as_deref() == made {
        return Ok(());
    }
    if check {
        bail!("{} is not what the sources make; run `cargo xtask generate`", path.display());
    }
    match made {
        Some(text) => fs::write(&kept, text),
        None => fs::remove_file(&kept),
    }
    .with_context(|| format!("cannot write {}", kept.display()))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The texts of a folder's schemas by their names.
fn schemas(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        found.insert(name, read(&path)?);
    }
    Ok(found)
}

/// The fields that a schema had and the new one lacks.
fn lost(old: &str, new: &str) -> Result<Vec<String>> {
    let (old, new): (Value, Value) = (serde_json::from_str(old)?, serde_json::from_str(new)?);
    let (mut had, mut has) = (BTreeSet::new(), BTreeSet::new());
    fields(&old, &old, "", 0, &mut had);
    fields(&new, &new, "", 0, &mut has);
    Ok(had.difference(&has).cloned().collect())
}

/// Every field that a schema names, with its way from the root: `.drifted[].path`.
fn fields(schema: &Value, root: &Value, at: &str, depth: usize, found: &mut BTreeSet<String>) {
    if depth > DEPTH {
        return;
    }
    let deeper = depth + 1;
    if let Some(target) = schema.get("$ref").and_then(Value::as_str).and_then(|at| at.strip_prefix('#')) {
        fields(root.pointer(target).unwrap_or(&Value::Null), root, at, deeper, found);
    }
    for key in ["oneOf", "anyOf", "allOf"] {
        for part in schema.get(key).and_then(Value::as_array).into_iter().flatten() {
            fields(part, root, at, deeper, found);
        }
    }
    if let Some(items) = schema.get("items") {
        fields(items, root, &format!("{at}[]"), deeper, found);
    }
    for (name, field) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let at = format!("{at}.{name}");
        fields(field, root, &at, deeper, found);
        found.insert(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_is_renamed_or_removed_is_named_and_a_new_one_is_not() {
        let old = r##"{"properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/b"}}, "c": {}},
            "$defs": {"b": {"properties": {"x": {}, "y": {}}}}}"##;
        let same =
            r#"{"properties": {"a": {"items": {"properties": {"x": {}, "y": {}, "new": {}}}}, "c": {}}}"#;
        let less = r#"{"properties": {"a": {"items": {"anyOf": [{"properties": {"x": {}, "z": {}}}]}}}}"#;
        assert_eq!(lost(old, same).unwrap(), Vec::<String>::new());
        assert_eq!(lost(old, less).unwrap(), [".a[].y", ".c"]);
    }

    #[test]
    fn what_refers_to_itself_comes_to_an_end() {
        let actor = r##"{"properties": {"pid": {}, "ancestors": {"items": {"$ref": "#"}}}}"##;
        assert_eq!(lost(actor, actor).unwrap(), Vec::<String>::new());
    }
}
