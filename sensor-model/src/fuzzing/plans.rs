//! Targets for the input of plans: manifests, disruption policies, `registries.conf`, SELinux policies.
//!
//! In: any bytes. Out: nothing; a target panics if a property does not hold.

use crate::{
    action::Action,
    ignition::Purpose,
    machine_config, merge,
    node_disruption::{
        DisruptionPolicy, DisruptionPolicyError, DisruptionPolicyFile, EntrySubject, PolicyRequest,
    },
    plan::{Plan, PlanReason},
    registries as rules, selinux as labels,
};

/// A manifest file: a config does not differ from itself, its plan can be written and read, and every reboot has a drain.
pub fn plan(data: &[u8]) {
    let Ok(manifest) = machine_config::parse_for("fuzz", data, Purpose::Compare) else { return };
    let policy = DisruptionPolicy::shipped().expect("what is shipped is sound");
    for config in manifest.machine_configs {
        let Ok(config) = merge::rendered(config) else { continue };
        let Ok(same) = crate::plan::plan(Some(&config), Some(&config), &policy) else { continue };
        // A config that can never be applied is irreconcilable even with itself.
        assert!(same.changes.is_empty() && same.steps.is_empty());
        for (old, new) in [(None, Some(&config)), (Some(&config), None)] {
            let Ok(plan) = crate::plan::plan(old, new, &policy) else { continue };
            let text = serde_json::to_string(&plan).expect("a plan can be written");
            // JSON keeps the text of a reason, and not what it was made from.
            let reasons = plan.reasons.iter().map(|reason| PlanReason::Kept(reason.to_string())).collect();
            let written = Plan { reasons, ..plan.clone() };
            assert_eq!(serde_json::from_str::<Plan>(&text).ok(), Some(written));
            assert!(plan.drain || !plan.reboot);
            let writes = plan.steps.iter().filter(|step| step.action == Action::Write).count();
            assert_eq!(writes, usize::from(plan.reconcilable && !plan.changes.is_empty()));
        }
    }
}

/// A disruption policy file: an error has a field and a reason, and an accepted entry has known actions.
pub fn node_disruption(data: &[u8]) {
    let files = match DisruptionPolicyFile::parse("fuzz", data) {
        Ok(files) => files,
        Err(DisruptionPolicyError::Manifest(error)) => {
            assert!(!error.object.is_empty() && !error.field.is_empty());
            return;
        }
        Err(DisruptionPolicyError::Field { object, field, .. }) => {
            assert!(!object.is_empty() && !field.is_empty());
            return;
        }
    };
    for file in &files {
        for entry in &file.entries {
            assert!(!entry.actions.is_empty());
            assert_eq!(entry.subject == EntrySubject::SshKey, entry.pattern.is_empty());
            assert!(entry.actions.iter().all(|action| matches!(action.request, PolicyRequest::Act { .. })));
        }
    }
    if let Ok(policy) = DisruptionPolicy::merge(&files, None) {
        assert!(
            policy.entries().len()
                >= DisruptionPolicy::shipped().expect("what is shipped is sound").entries().len()
        );
    }
}

/// Two versions of `registries.conf` with a NUL between them: a judgement always has a reason, and two equal versions are safe.
pub fn registries(data: &[u8]) {
    let (old, new) = match data.iter().position(|byte| *byte == 0) {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => (&b""[..], data),
    };
    for (old, new) in [(old, new), (new, old), (old, old), (new, new)] {
        match rules::judge(old, new) {
            Ok(judgement) => {
                assert!(!judgement.because.is_empty());
                assert!(judgement.safe || old != new);
            }
            Err(error) => assert!(error.to_string().contains("registries.conf: ")),
        }
    }
}

/// A policy's `file_contexts`, then a NUL and substitutions: a label is always that of a line.
pub fn selinux(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (policy, substitutions) = text.split_once('\0').unwrap_or((&text, ""));
    let texts = labels::Texts { policy, substitutions, ..labels::Texts::default() };
    let contexts = labels::FileContexts::parse(&texts);
    let asked = [
        ("/", labels::ObjectKind::Directory),
        ("/etc/a.conf", labels::ObjectKind::File),
        ("/etc/systemd/system/a.service", labels::ObjectKind::Link),
        ("/home/core/.ssh/x", labels::ObjectKind::Other),
    ]
    .map(|(path, kind)| (std::path::Path::new(path), kind));
    let found = contexts.labels(&asked);
    for label in found.iter().flatten() {
        assert!(policy.contains(label) && label.split(':').count() >= 3, "{label:?}");
    }
    // A label does not depend on the other paths of the call.
    for (asked, label) in asked.iter().zip(found) {
        assert_eq!(contexts.labels(&[*asked]), [label], "{asked:?}");
    }
}
