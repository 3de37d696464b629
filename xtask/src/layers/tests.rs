//! Crates of a few lines, each with one fault or none.

use std::fs;

use tempfile::TempDir;

use super::*;

/// A crate of these files, and its root file.
fn a_crate(files: &[(&str, &str)]) -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    for (name, text) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let root = directory.path().join("lib.rs");
    (directory, root)
}

fn order(modules: &[&str]) -> Vec<String> {
    modules.iter().map(|module| (*module).to_owned()).collect()
}

#[test]
fn the_crates_of_this_workspace_keep_the_order_of_the_document() {
    check().unwrap();
}

const ROOT: (&str, &str) = ("lib.rs", "mod low; mod high;");

#[test]
fn an_import_from_a_module_above_is_no_fault() {
    let (_directory, root) = a_crate(&[ROOT, ("low.rs", "pub fn f() {}"), ("high.rs", "use crate::low::f;")]);
    assert_eq!(faults(&root, &order(&["low", "high"])).unwrap(), []);
}

#[test]
fn an_import_that_runs_back_is_a_fault_in_a_use_in_a_path_and_in_a_macro() {
    for text in [
        "use crate::high::f;",
        "use super::high::f as g;",
        "fn g() { crate::high::f() }",
        "use crate::high; fn g() { high::f() }",
        "fn g() { println!(\"{}\", crate::high::f()) }",
        "use crate::{high::{self, f}};",
        "type T = Vec<crate::high::S>;",
    ] {
        let (_directory, root) =
            a_crate(&[ROOT, ("low.rs", text), ("high.rs", "pub fn f() {} pub struct S;")]);
        let faults = faults(&root, &order(&["low", "high"])).unwrap();
        assert!(
            matches!(&faults[..], [LayerFault::Back { from, to, .. }, ..] if from == "low" && to == "high"),
            "{text}: {faults:?}"
        );
    }
}

#[test]
fn a_re_export_counts_as_the_file_that_defines_the_name() {
    let files = [
        ROOT,
        ("low.rs", "pub fn f() {}"),
        ("high/mod.rs", "mod one; mod two; pub use one::S;"),
        ("high/one.rs", "pub struct S;"),
        ("high/two.rs", "use super::S;"),
    ];
    let (_directory, root) = a_crate(&files);
    assert_eq!(faults(&root, &order(&["low", "high"])).unwrap(), []);
}

#[test]
fn a_circle_between_a_module_and_its_child_is_a_fault() {
    let files = [
        ROOT,
        ("low.rs", ""),
        ("high/mod.rs", "mod one; use one::S; pub struct Shared(S);"),
        ("high/one.rs", "use super::Shared; pub struct S;"),
    ];
    let (_directory, root) = a_crate(&files);
    let faults = faults(&root, &order(&["low", "high"])).unwrap();
    let [LayerFault::Circle(circle)] = &faults[..] else { panic!("{faults:?}") };
    let names: Vec<&str> = circle.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(names, ["S", "Shared"]);
}

#[test]
fn what_is_for_tests_alone_may_take_from_everywhere() {
    let text = "#[cfg(test)] use crate::high::f; #[cfg(test)] mod tests { use crate::high::f; }";
    let (_directory, root) = a_crate(&[ROOT, ("low.rs", text), ("high.rs", "pub fn f() {}")]);
    assert_eq!(faults(&root, &order(&["low", "high"])).unwrap(), []);
}

#[test]
fn a_module_that_the_table_lacks_and_a_row_without_a_module_are_faults() {
    let (_directory, root) = a_crate(&[ROOT, ("low.rs", ""), ("high.rs", "")]);
    let faults = faults(&root, &order(&["low", "gone"])).unwrap();
    assert_eq!(faults, [LayerFault::Unnamed("high".into()), LayerFault::Missing("gone".into())]);
}

#[test]
fn no_module_takes_a_definition_of_the_root_file() {
    let (_directory, root) = a_crate(&[("lib.rs", "mod low; pub struct S;"), ("low.rs", "use crate::S;")]);
    let faults = faults(&root, &order(&["low"])).unwrap();
    assert!(matches!(&faults[..], [LayerFault::Root { name, .. }] if name == "S"), "{faults:?}");
}

#[test]
fn the_order_is_that_of_the_rows_below_the_crates_heading() {
    let text = "### `a`\n\n| module | owns |\n|---|---|\n| `x`, `y` | `no` |\n| `z` | |\n\n### `b`\n| m | |\n|---|---|\n| `w` | |\n";
    assert_eq!(table::order(text, "a").unwrap(), ["x", "y", "z"]);
    assert_eq!(table::order(text, "b").unwrap(), ["w"]);
    assert!(table::order(text, "c").is_err());
    assert!(table::order("### `a`\n| m |\n|---|\n| `x` |\n| `x` |\n", "a").is_err());
}
