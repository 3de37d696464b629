//! Facts of the kernel on which detection depends.
//!
//! In: procfs and sysfs. Out: one fact for each of them, with advice where it limits detection. It only reads.

use crate::bounded;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use serde::Serialize;
use std::path::Path;

/// One fact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Fact {
    /// What it is about.
    pub name: &'static str,
    /// How it is.
    pub value: String,
    /// Whether it is as it should be.
    pub state: FactState,
    /// What to do about it.
    pub advice: Option<&'static str>,
}

/// Whether a fact is as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FactState {
    /// As it should be.
    Good,
    /// Something works less well, or not at all.
    Bad,
    /// It could be better, and detection works.
    Notable,
    /// It could not be read.
    Unknown,
}

/// Capabilities that the daemon starts with: number and name.
const CAPABILITIES: [(u32, &str); 6] = [
    (1, "dac_override"),
    (8, "setpcap"),
    (19, "sys_ptrace"),
    (21, "sys_admin"),
    (38, "perfmon"),
    (39, "bpf"),
];

/// All facts, read below `root` (`/`, or a made-up one in tests).
pub(super) fn facts(root: &Path) -> Vec<Fact> {
    vec![
        release(root),
        types(root),
        modules(root),
        lockdown(root),
        tracing(root),
        bpffs(root),
        capabilities(root),
        unprivileged(root),
        locked_memory(),
    ]
}

fn read(root: &Path, path: &str) -> Option<String> {
    Some(bounded::read_text(&root.join(path), bounded::TABLE).ok()?.trim().to_owned())
}

fn fact(name: &'static str, value: impl Into<String>, state: FactState, advice: &'static str) -> Fact {
    let advice = (!matches!(state, FactState::Good) && !advice.is_empty()).then_some(advice);
    Fact { name, value: value.into(), state, advice }
}

fn unknown(name: &'static str, advice: &'static str) -> Fact {
    fact(name, "not known", FactState::Unknown, advice)
}

fn release(root: &Path) -> Fact {
    match read(root, "proc/sys/kernel/osrelease") {
        Some(release) => fact("kernel", release, FactState::Good, ""),
        None => unknown("kernel", "mount procfs"),
    }
}

fn types(root: &Path) -> Fact {
    let there = root.join("sys/kernel/btf/vmlinux").exists();
    let (value, state) = if there { ("present", FactState::Good) } else { ("missing", FactState::Bad) };
    fact("type information (BTF)", value, state, "boot a kernel built with CONFIG_DEBUG_INFO_BTF")
}

fn modules(root: &Path) -> Fact {
    let name = "security modules";
    let Some(list) = read(root, "sys/kernel/security/lsm") else {
        return unknown(name, "mount securityfs on /sys/kernel/security");
    };
    let state =
        if list.split(',').any(|module| module == "bpf") { FactState::Good } else { FactState::Notable };
    fact(
        name,
        list,
        state,
        "add `bpf` to the `lsm=` kernel argument: without it changes are seen, but `deny` cannot refuse them",
    )
}

fn lockdown(root: &Path) -> Fact {
    let Some(text) = read(root, "sys/kernel/security/lockdown") else {
        return fact("lockdown", "not built in or not mounted", FactState::Good, "");
    };
    // `none [integrity] confidentiality`.
    let mode =
        text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("none", |(mode, _)| mode);
    let state = if mode == "confidentiality" { FactState::Bad } else { FactState::Good };
    let advice = "boot with `lockdown=integrity`: confidentiality keeps programs from reading kernel memory";
    fact("lockdown", mode, state, advice)
}

fn tracing(root: &Path) -> Fact {
    let name = "function tracing";
    match read(root, "proc/sys/kernel/ftrace_enabled").as_deref() {
        Some("0") => fact(name, "off", FactState::Bad, "set the sysctl kernel.ftrace_enabled to 1"),
        Some(_) => fact(name, "on", FactState::Good, ""),
        None => unknown(
            name,
            "boot a kernel built with CONFIG_FUNCTION_TRACER and CONFIG_BPF_LSM or fentry support",
        ),
    }
}

fn bpffs(root: &Path) -> Fact {
    let name = "BPF file system";
    let advice = "mount it (`mount -t bpf bpf /sys/fs/bpf`), or run the daemon with `--no-pins`";
    let Some(mounts) = read(root, "proc/self/mounts") else { return unknown(name, advice) };
    let mounted = mounts.lines().any(|line| {
        let mut fields = line.split(' ').skip(1);
        fields.next() == Some("/sys/fs/bpf") && fields.next() == Some("bpf")
    });
    if mounted {
        fact(name, "/sys/fs/bpf", FactState::Good, "")
    } else {
        fact(name, "not mounted on /sys/fs/bpf", FactState::Notable, advice)
    }
}

fn capabilities(root: &Path) -> Fact {
    let name = "capabilities";
    let status = read(root, "proc/self/status");
    let effective = status
        .as_deref()
        .and_then(|text| text.lines().find_map(|line| line.strip_prefix("CapEff:")))
        .and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    let Some(effective) = effective else { return unknown(name, "mount procfs") };
    let missing: Vec<&str> = CAPABILITIES
        .iter()
        .filter(|(number, _)| effective & (1 << number) == 0)
        .map(|(_, name)| *name)
        .collect();
    if missing.is_empty() {
        return fact(name, "all that are needed", FactState::Good, "");
    }
    fact(
        name,
        format!("missing: {}", missing.join(", ")),
        FactState::Bad,
        "run as root in the initial user namespace",
    )
}

fn unprivileged(root: &Path) -> Fact {
    let name = "unprivileged BPF";
    match read(root, "proc/sys/kernel/unprivileged_bpf_disabled").as_deref() {
        Some("0") => {
            fact(name, "allowed", FactState::Notable, "set the sysctl kernel.unprivileged_bpf_disabled to 2")
        }
        Some(_) => fact(name, "refused", FactState::Good, ""),
        None => unknown(name, ""),
    }
}

/// Before 5.11 the kernel charged maps to this limit.
fn locked_memory() -> Fact {
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((soft, _)) if soft == RLIM_INFINITY => fact("locked memory", "unlimited", FactState::Good, ""),
        Ok((soft, _)) => {
            fact("locked memory", format!("{soft} bytes (counts before 5.11)"), FactState::Good, "")
        }
        Err(_) => unknown("locked memory", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn states(root: &Path) -> Vec<(&'static str, FactState)> {
        facts(root).into_iter().map(|fact| (fact.name, fact.state)).take(8).collect()
    }

    #[test]
    fn a_host_with_everything_needs_no_advice() {
        let root = host(&[
            ("proc/sys/kernel/osrelease", "6.12.0\n"),
            ("sys/kernel/btf/vmlinux", ""),
            ("sys/kernel/security/lsm", "lockdown,capability,bpf"),
            ("sys/kernel/security/lockdown", "none [integrity] confidentiality\n"),
            ("proc/sys/kernel/ftrace_enabled", "1\n"),
            ("proc/self/mounts", "bpf /sys/fs/bpf bpf rw 0 0\n"),
            ("proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n"),
            ("proc/sys/kernel/unprivileged_bpf_disabled", "2\n"),
        ]);
        let states = states(root.path());
        assert!(states.iter().all(|(_, state)| *state == FactState::Good), "{states:?}");
    }

    #[test]
    fn each_fact_that_hinders_says_what_to_do() {
        let root = host(&[
            ("sys/kernel/security/lsm", "lockdown,bpfilter"),
            ("sys/kernel/security/lockdown", "none integrity [confidentiality]\n"),
            ("proc/sys/kernel/ftrace_enabled", "0\n"),
            ("proc/self/mounts", "bpf /elsewhere bpf rw 0 0\n"),
            ("proc/self/status", "CapEff:\t0000000000000000\n"),
            ("proc/sys/kernel/unprivileged_bpf_disabled", "0\n"),
        ]);
        let facts = facts(root.path());
        for fact in facts.iter().take(8) {
            assert!(fact.state != FactState::Good && fact.advice.is_some(), "{fact:?}");
        }
    }
}
