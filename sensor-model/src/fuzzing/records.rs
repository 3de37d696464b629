//! Targets for cgroup paths, drift policies, the forensic log and the journal.
//!
//! In: any bytes. Out: nothing; a target panics if a property does not hold.

use crate::{
    cgroup::Placement,
    chain::{self, Chain},
    drift_policy::{DriftAction, DriftPolicy, DriftPolicyFile, RuleKind},
    host::hierarchy::Hierarchy,
};
use std::path::Path;

/// A cgroup path, or a `/proc/PID/cgroup`: every id has the right form.
pub fn cgroup(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let hierarchy = Hierarchy::of(text);
    assert_eq!(hierarchy.number == 0, hierarchy.controller.is_none(), "only version 2 has the number 0");
    assert!(hierarchy.path(text).is_none_or(|path| text.contains(path) && !path.starts_with("/..")));
    for placement in [Placement::of_path(text), Placement::of_proc(text)] {
        let is_container = |id: &String| id.len() == 64 && id.bytes().all(|digit| digit.is_ascii_hexdigit());
        assert!(placement.container_id.as_ref().is_none_or(is_container));
        assert!(placement.runtime.is_none() || placement.container_id.is_some());
        let is_pod = |uid: &String| matches!(uid.len(), 32 | 36) && !uid.contains(['/', '\n']);
        assert!(placement.pod_uid.as_ref().is_none_or(is_pod));
        assert!(placement.unit.is_none_or(|unit| !unit.contains('/')));
    }
}

/// A drift policy file: an error has a field and a reason, and a rule about declared things decides about its own path.
pub fn drift_policy(data: &[u8]) {
    let file = match DriftPolicyFile::parse("fuzz", data) {
        Ok(file) => file,
        Err(error) => {
            assert!(!error.field.is_empty());
            return;
        }
    };
    let policy = DriftPolicy::merge(std::slice::from_ref(&file)).expect("a file cannot contradict itself");
    for rule in &file.rules {
        let decision = policy.decide(Path::new(&rule.path), None);
        let is_exact = !rule.path.contains(['*', '?', '[', '{', '\\']) && !rule.path.ends_with('/');
        if is_exact && rule.kind() == RuleKind::Declared {
            assert_eq!(decision.rule.map(|(rule, _)| rule), Some(rule));
            assert!(rule.action == decision.action && !decision.allowed);
        }
        assert!(decision.secret || decision.rule.is_some());
    }
    assert!(policy.decide(Path::new("/"), None).action >= DriftAction::Ignore);
}

/// Lines of the forensic log: the sound part is a chain, whatever is cut or changed.
pub fn forensic_log(data: &[u8]) {
    let tail = chain::sound_tail(data);
    assert!(tail.sound <= data.len());
    assert_eq!(tail.sound == 0, tail.place.is_none());
    assert_eq!(chain::sound_tail(&data[..tail.sound]), tail);
    let mut chain = Chain::default();
    match chain::verify(&mut chain, data).expect("memory can be read") {
        Ok(unfinished) => assert!(unfinished <= data.len() && tail.broken.is_none()),
        Err(bad) => assert!(bad.line > 0),
    }
    for line in data.split(|byte| *byte == b'\n') {
        if let Ok(entry) = chain::open(line) {
            let place = chain::ChainPlace { seq: entry.seq, previous_hash: entry.previous_hash.clone() };
            // A line with fields of a later version cannot be written again.
            if let Ok((again, next)) = chain::seal(&place, &entry.record)
                && again.as_bytes() == line
            {
                assert_eq!(next, entry.next_place());
            }
        }
    }
}

/// A journal of an apply: its records are written the same, and a cut journal has the records before the cut.
pub fn journal(data: &[u8]) {
    use crate::journal::codec::{line, parse};
    let Ok(parsed) = parse(data) else { return };
    assert_eq!(parsed.sound + parsed.torn, data.len());
    let mut digest = String::new();
    for record in &parsed.records {
        let Ok((_, next)) = line(&digest, record) else { return };
        digest = next;
    }
    for target in &parsed.begin.targets {
        assert!(target.path.is_absolute(), "{}", target.path.display());
    }
    let again = parse(&data[..parsed.sound]).map(|again| again.records);
    assert_eq!(again, Ok(parsed.records));
}
