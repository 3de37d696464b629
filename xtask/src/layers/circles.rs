//! Circles between files.
//!
//! In: the imports of a crate. Out: for each group of files that take from each other in a circle, one shortest circle.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use super::source::{Crate, Import};

/// The files that a file takes from, each with one name that it takes.
type Graph<'a> = BTreeMap<&'a Path, BTreeMap<&'a Path, &'a str>>;

/// Circles of files: each file with a name that it takes from the next one; the last takes from the first.
/// Every file that is on any circle is on one of these.
pub(super) fn circles(modules: &Crate, imports: &[Import]) -> Vec<Vec<(PathBuf, String)>> {
    let mut graph: Graph<'_> = BTreeMap::new();
    for import in imports {
        // The root file declares the modules; what they take from it is a fault of its own.
        if import.from.is_empty() || import.to.is_empty() {
            continue;
        }
        if let (Some(from), Some(to)) = (modules.file(&import.from), modules.file(&import.to)) {
            graph.entry(from).or_default().entry(to).or_insert(&import.name);
        }
    }
    let mut seen: BTreeSet<&Path> = BTreeSet::new();
    let mut found = Vec::new();
    for &start in graph.keys() {
        if seen.contains(start) {
            continue;
        }
        if let Some(circle) = shortest(&graph, start) {
            seen.extend(circle.iter().copied());
            let next = circle.iter().cycle().skip(1);
            let named = circle
                .iter()
                .zip(next)
                .map(|(file, next)| ((*file).to_owned(), graph[file][next].to_owned()));
            found.push(named.collect());
        }
    }
    found
}

/// The shortest circle through a file.
fn shortest<'a>(graph: &Graph<'a>, start: &'a Path) -> Option<Vec<&'a Path>> {
    let mut before: BTreeMap<&Path, &Path> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(file) = queue.pop_front() {
        for &next in graph.get(file).into_iter().flat_map(BTreeMap::keys) {
            if next == start {
                let mut circle = vec![file];
                while let Some(&earlier) = before.get(circle[circle.len() - 1]) {
                    circle.push(earlier);
                }
                circle.reverse();
                return Some(circle);
            }
            if !before.contains_key(next) {
                before.insert(next, file);
                queue.push_back(next);
            }
        }
    }
    None
}
