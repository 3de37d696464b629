//! Changes that a backend does not see when they happen.
//!
//! In: the backend that the daemon would use, tested. Out: each change that it misses here and sees on another kernel, and why.

use super::backends::TestedBackend;
use crate::agent::reports::BackendName;
use crate::{
    fanotify::BLIND_SPOTS,
    kernel::hooks::{FUNCTIONS, TRACEPOINTS, hidden},
};
use serde::Serialize;

/// The changes that no backend sees when they happen.
pub const SWEPT: &str = "stores through mappings, raw writes to a block device, changes of mount attributes and edits \
while the host was off are found by the periodic verification, without an actor";

/// Changes that the daemon cannot see on this host.
#[derive(Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct UnseenChange {
    /// The change.
    pub what: String,
    /// Why it is not detected at once.
    pub because: String,
    /// What to do about it; null if there is nothing to do.
    pub advice: Option<String>,
}

/// What the chosen backend cannot see here, and could see on another kernel.
pub(super) fn not_seen(chosen: Option<&TestedBackend>) -> Vec<UnseenChange> {
    let Some(chosen) = chosen else {
        return vec![UnseenChange {
            what: "every change, as it happens".to_owned(),
            because: "no backend works".to_owned(),
            advice: Some("`holdfast check` from a timer finds what has drifted".to_owned()),
        }];
    };
    if chosen.mode == BackendName::Fanotify {
        let blind = |what: &&str| UnseenChange {
            what: (*what).to_owned(),
            because: "fanotify does not tell".to_owned(),
            advice: None,
        };
        return BLIND_SPOTS.iter().map(blind).collect();
    }
    if let (false, Some(reason)) = (chosen.usable, &chosen.reason) {
        return vec![UnseenChange {
            what: "every change, as it happens".to_owned(),
            because: reason.clone(),
            advice: Some("set the sysctl `kernel.ftrace_enabled` to 1".to_owned()),
        }];
    }
    let off = chosen.hooks.iter().filter_map(|hook| Some((hook, hook.off()?)));
    off.filter_map(|(tested, reason)| {
        if TRACEPOINTS.iter().any(|hook| hook.name == tested.hook) {
            return Some(UnseenChange {
                what: "processes that are gone when their change is looked at".to_owned(),
                because: format!("tracepoint {}: {reason}", tested.hook),
                advice: None,
            });
        }
        let word =
            if FUNCTIONS.iter().any(|function| function.name == tested.hook) { "function" } else { "hook" };
        hidden(tested.hook, reason).map(|what| UnseenChange {
            what: what.to_owned(),
            because: format!("{word} {}: {reason}", tested.hook),
            advice: Some("report this kernel's release and the reason".to_owned()),
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        diagnosis::backends::TestedHook,
        kernel::{hooks::WhyOff, load::HookState},
    };
    use sensor_model::host::btf::BtfError;

    fn refused() -> WhyOff {
        aya::programs::ProgramError::AlreadyAttached.into()
    }

    fn tested(mode: BackendName, hooks: &[(&'static str, Option<WhyOff>)]) -> TestedBackend {
        let state = |off: &Option<WhyOff>| off.clone().map_or(HookState::Attached, HookState::Off);
        let hooks = hooks.iter().map(|(hook, off)| TestedHook::new(hook, state(off))).collect();
        TestedBackend { mode, usable: true, reason: None, hooks, is_accepted: true }
    }

    #[test]
    fn a_hook_that_is_off_is_reported_by_what_it_would_see() {
        let refused = Some(refused());
        let backend = tested(BackendName::Lsm, &[("inode_rename", refused), ("inode_unlink", None)]);
        let missed = not_seen(Some(&backend));
        assert_eq!(missed.len(), 1);
        assert_eq!(missed[0].what, "renames and replacements");
    }

    #[test]
    fn a_hook_that_this_kernel_does_not_have_hides_nothing() {
        let absent = WhyOff::Types(BtfError::NoFunction("security_inode_set_acl".to_owned()));
        let missed = not_seen(Some(&tested(BackendName::Fentry, &[("inode_set_acl", Some(absent))])));
        assert_eq!(missed, []);
        let missed = not_seen(Some(&tested(BackendName::Fentry, &[("inode_set_acl", Some(refused()))])));
        assert_eq!(missed.len(), 1, "the kernel has the hook and refuses the program");
    }

    #[test]
    fn programs_that_wait_for_function_tracing_see_no_change_as_it_happens() {
        let reason = Some("function tracing is off".to_owned());
        let waiting =
            TestedBackend { usable: false, reason, ..tested(BackendName::Lsm, &[("inode_rename", None)]) };
        let missed = not_seen(Some(&waiting));
        assert_eq!((missed.len(), missed[0].because.as_str()), (1, "function tracing is off"));
        assert!(missed[0].advice.as_ref().is_some_and(|advice| advice.contains("kernel.ftrace_enabled")));
    }

    #[test]
    fn without_a_backend_the_report_names_the_command_that_still_finds_drift() {
        let missed = not_seen(None);
        assert!(missed[0].advice.as_ref().is_some_and(|advice| advice.contains("holdfast check")));
        assert_eq!(not_seen(Some(&tested(BackendName::Fanotify, &[]))).len(), BLIND_SPOTS.len());
    }
}
