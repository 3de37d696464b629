//! Which files contradict each other.

use super::{DriftPolicy, DriftPolicyError, DriftPolicyFault, DriftPolicyFile, Rule, RuleKind};
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
    /// Each file that contradicts another one by its number, with its first contradiction. Each rule is compared twice at most, however many
    /// files there are.
    pub fn contradictions(files: &[DriftPolicyFile]) -> Vec<(usize, DriftPolicyError)> {
        Self::contradictions_by(files, |one, other| one != other)
    }

    fn contradictions_by(
        files: &[DriftPolicyFile],
        mut differ: impl FnMut(&Rule, &Rule) -> bool,
    ) -> Vec<(usize, DriftPolicyError)> {
        let rule_at = |(file, rule): Place| &files[file].rules[rule];
        let mut groups: BTreeMap<(&str, RuleKind, i64), Group> = BTreeMap::new();
        for (number, file) in files.iter().enumerate() {
            for (at, rule) in file.rules.iter().enumerate() {
                let key = (rule.path.as_str(), rule.kind(), file.precedence);
                let group = groups.entry(key).or_insert(Group { first: (number, at), different: None });
                if group.different.is_none() && differ(rule_at(group.first), rule) {
                    group.different = Some((number, at));
                }
            }
        }
        let first = |(number, file): (usize, &DriftPolicyFile)| {
            file.rules.iter().enumerate().find_map(|(at, rule)| {
                let group = groups.get(&(rule.path.as_str(), rule.kind(), file.precedence))?;
                let different = group.different?;
                let other = if differ(rule_at(group.first), rule) { group.first } else { different };
                Some((number, file.contradicts(at, &files[other.0])))
            })
        };
        files.iter().enumerate().filter_map(first).collect()
    }
}

impl DriftPolicyFile {
    /// The error of the rule with this number, which differs from a rule of another file for the same path at the same precedence.
    pub(super) fn contradicts(&self, rule: usize, other: &Self) -> DriftPolicyError {
        let reason = DriftPolicyFault::Contradiction {
            other: other.origin.clone(),
            path: self.rules[rule].path.clone(),
            precedence: self.precedence,
        };
        let field = format!("spec.rules[{rule}].path");
        DriftPolicyError { origin: self.origin.clone(), field, reason: Box::new(reason) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
    fn each_rule_is_compared_twice_at_most_however_many_files_there_are() {
        // All files have a rule for the same path, and one file has another action there.
        let files: Vec<_> = (0..300)
            .map(|name| file(name, 0, &[(0, "deny"), (name + 1, "deny")]))
            .chain([file(300, 0, &[(0, "observe")])])
            .collect();
        let mut compared = 0;
        let found = DriftPolicy::contradictions_by(&files, |one, other| {
            compared += 1;
            one != other
        });
        assert_eq!(found.len(), files.len());
        let rules: usize = files.iter().map(|file| file.rules.len()).sum();
        assert!(compared <= 2 * rules, "{compared} comparisons of {rules} rules");
    }
}
