//! Which files contradict each other.

use super::{DriftPolicy, DriftPolicyError, DriftPolicyFault, DriftPolicyFile, RuleKind};
use std::collections::BTreeMap;

/// The number of a file, and that of a rule in it.
type Place = (usize, usize);

/// The files with a rule for one path at one precedence.
struct Group {
    first: Place,
    /// The first one whose rule differs from that of `first`.
    different: Option<Place>,
}

impl DriftPolicy {
    /// Each file that contradicts another one by its number, with its first contradiction. The time grows with the number of rules, not with
    /// that of pairs of files.
    pub fn contradictions(files: &[DriftPolicyFile]) -> Vec<(usize, DriftPolicyError)> {
        let rule_at = |(file, rule): Place| &files[file].rules[rule];
        let mut groups: BTreeMap<(&str, RuleKind, i64), Group> = BTreeMap::new();
        for (number, file) in files.iter().enumerate() {
            for (at, rule) in file.rules.iter().enumerate() {
                let key = (rule.path.as_str(), rule.kind(), file.precedence);
                let group = groups.entry(key).or_insert(Group { first: (number, at), different: None });
                if group.different.is_none() && rule_at(group.first) != rule {
                    group.different = Some((number, at));
                }
            }
        }
        let contradiction = |(number, file): (usize, &DriftPolicyFile)| {
            file.rules.iter().enumerate().find_map(|(at, rule)| {
                let group = groups.get(&(rule.path.as_str(), rule.kind(), file.precedence))?;
                let other = if rule_at(group.first) == rule { group.different? } else { group.first };
                let reason = DriftPolicyFault::Contradiction {
                    other: files[other.0].origin.clone(),
                    path: rule.path.clone(),
                    precedence: file.precedence,
                };
                let field = format!("spec.rules[{at}].path");
                let error = DriftPolicyError { origin: file.origin.clone(), field, reason: Box::new(reason) };
                Some((number, error))
            })
        };
        files.iter().enumerate().filter_map(contradiction).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::{Duration, Instant};

    fn file(name: usize, precedence: i64, rules: &[(usize, &str)]) -> DriftPolicyFile {
        let rules: Vec<_> = rules
            .iter()
            .map(|(path, action)| serde_json::json!({"path": format!("/etc/{path}"), "action": action}))
            .collect();
        let policy = serde_json::json!({
            "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicy",
            "metadata": {"name": name.to_string()}, "spec": {"precedence": precedence, "rules": rules},
        });
        DriftPolicyFile::of_item(&policy).unwrap()
    }

    proptest! {
        #[test]
        fn a_file_contradicts_another_one_if_the_two_cannot_be_merged(
            files in prop::collection::vec((0_i64..2, prop::collection::btree_map(0_usize..4, 0_usize..2, 0..4)), 0..6),
        ) {
            let files: Vec<_> = files.iter().enumerate().map(|(name, (precedence, rules))| {
                let rules: Vec<_> = rules.iter().map(|(path, action)| (*path, ["deny", "observe"][*action])).collect();
                file(name, *precedence, &rules)
            }).collect();
            let found: Vec<usize> = DriftPolicy::contradictions(&files).into_iter().map(|(number, error)| {
                assert_eq!(&error.origin, &files[number].origin);
                let DriftPolicyFault::Contradiction { other, .. } = *error.reason else { panic!("{error}") };
                let other = files.iter().find(|file| file.origin == other).unwrap();
                assert!(DriftPolicy::merge(&[other.clone(), files[number].clone()]).is_err());
                number
            }).collect();
            let cannot_be_merged = |one: &usize| files.iter().any(|other| {
                DriftPolicy::merge(&[other.clone(), files[*one].clone()]).is_err()
            });
            let expected: Vec<usize> = (0..files.len()).filter(cannot_be_merged).collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn thousands_of_files_are_compared_in_a_moment() {
        let files: Vec<_> = (0..5000)
            .map(|name| {
                let rules: Vec<_> = (0..20).map(|rule| (name * 20 + rule, "deny")).collect();
                file(name, 0, &rules)
            })
            .chain([file(5000, 0, &[(7, "observe")])])
            .collect();
        let begun = Instant::now();
        let found: Vec<usize> =
            DriftPolicy::contradictions(&files).iter().map(|(number, _)| *number).collect();
        assert_eq!(found, [0, 5000]);
        // All pairs of them take many minutes.
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }
}
