//! `holdfast doctor`: tests what the daemon would do on this host.
//!
//! In: the kernel. Out: what it offers, each hook in both modes, the backend that the daemon would use, what it cannot see here,
//! and what to do about that. The programs that it loads end with it; it pins nothing.

mod facts;

use super::{
    exit::{DRIFT, IN_SYNC},
    output::{Output, Screen, Tone, clean, count},
};
use crate::{
    agent::{
        canary::{CANARY_ID, Canary, CanaryState},
        kernel_programs::KernelPrograms,
        privileges,
        reports::HookMode,
    },
    clock::SystemClock,
    event,
    fanotify::{BLIND_SPOTS, FanotifyBackend},
    kernel::{
        hooks::{FUNCTIONS, Mode, TRACEPOINTS, WhyOff, hidden},
        load::{self, HookState},
    },
    observation::Observer,
};
use facts::{Fact, State, facts};
use sensor_model::protocol::GapReason;
use serde::Serialize;
use std::{fs, io, os::unix::fs::DirBuilderExt as _, path::Path, sync::Arc};

/// The value of [`Report::schema`].
pub const SCHEMA: &str = "holdfast.doctor/v1";

/// The changes that no backend sees when they happen.
const SWEPT: &str = "stores through mappings, raw writes to a block device, changes of mount attributes and edits \
while the host was off are found by the periodic verification, without an actor";

/// Records that are read until that of the canary; others may be on the ring before it.
const RECORDS: usize = 4096;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Doctor {
    /// Print a line for every hook in every mode.
    #[arg(long)]
    hooks: bool,
    #[command(flatten)]
    output: Output,
}

/// What was found.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(super) struct Report {
    /// Name and version of this contract.
    #[schemars(extend("const" = SCHEMA))]
    schema: &'static str,
    /// Whether Holdfast detects changes here as well as on any host.
    healthy: bool,
    /// Facts about the kernel and the host.
    facts: Vec<Fact>,
    /// The backend that the daemon would use; null if none works.
    #[schemars(extend("enum" = ["lsm", "fentry", "fanotify", null]))]
    backend: Option<&'static str>,
    /// Each backend, tried.
    modes: Vec<Tried>,
    /// Changes that are not detected at once on this host.
    not_seen: Vec<NotSeen>,
    /// The capabilities that the daemon keeps while it watches.
    keeps: Vec<Keeps>,
}

/// A capability that is kept.
#[derive(Debug, Serialize, schemars::JsonSchema)]
struct Keeps {
    /// The capability, by the kernel's name.
    capability: &'static str,
    /// What the daemon needs it for.
    why: &'static str,
}

/// The test of one backend.
#[derive(Debug, Serialize, schemars::JsonSchema)]
struct Tried {
    /// The backend.
    #[schemars(extend("enum" = ["lsm", "fentry", "fanotify"]))]
    mode: &'static str,
    /// Whether it works here.
    usable: bool,
    /// Why it does not work; null if it works.
    reason: Option<String>,
    /// Each hook of the backend.
    hooks: Vec<TriedHook>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
struct TriedHook {
    /// The hook.
    hook: &'static str,
    /// `attached`, `waiting` or `off`.
    #[schemars(extend("enum" = ["attached", "waiting", "off"]))]
    state: &'static str,
    /// Why it is off; null if it is not.
    reason: Option<String>,
    #[serde(skip)]
    off: Option<WhyOff>,
    #[serde(skip)]
    line: String,
}

/// Changes that the daemon cannot see on this host.
#[derive(Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
struct NotSeen {
    /// The change.
    what: String,
    /// Why it is not detected at once.
    because: String,
    /// What to do about it; null if there is nothing to do.
    advice: Option<String>,
}

impl Doctor {
    /// Loads the programs in both modes, waits for the record of a canary, and reports.
    ///
    /// # Errors
    /// No directory for the canary.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let observer = Arc::new(Observer::new(Path::new("/"))?);
        let nest = Nest::make()?;
        let mut modes: Vec<Tried> =
            [Mode::Lsm, Mode::Fentry].into_iter().map(|mode| attempt(mode, &nest.0, &observer)).collect();
        modes.push(fanotify(&observer));
        let facts = facts(Path::new("/"));
        let chosen = modes.iter().find(|tried| tried.usable);
        let not_seen = not_seen(chosen);
        let report = Report {
            schema: SCHEMA,
            healthy: chosen.is_some_and(|chosen| chosen.mode != "fanotify")
                && not_seen.is_empty()
                && facts.iter().all(|fact| fact.state != State::Bad),
            backend: chosen.map(|chosen| chosen.mode),
            not_seen,
            keeps: keeps(chosen),
            facts,
            modes,
        };
        if self.output.is_json() {
            screen.json(&report)?;
        } else {
            self.text(&report, screen)?;
        }
        Ok(if report.healthy { IN_SYNC } else { DRIFT })
    }

    fn text(&self, report: &Report, screen: &mut Screen) -> io::Result<()> {
        let rows: Vec<_> = report
            .facts
            .iter()
            .map(|fact| {
                let tone = (fact.state != State::Good).then(|| fact.state.tone());
                (tone, vec![fact.name.to_owned(), clean(&fact.value)])
            })
            .collect();
        screen.table(0, &rows)?;
        for tried in &report.modes {
            let attached = tried.hooks.iter().filter(|hook| hook.state != "off").count();
            let hooks = match tried.hooks.len() {
                0 => String::new(),
                all => format!(", {attached} of {}", count(all, "hook")),
            };
            let (tone, word) =
                if tried.usable { (Tone::Good, "works") } else { (Tone::Notable, "does not work") };
            let word = screen.paint(tone, word);
            let reason =
                tried.reason.as_ref().map_or_else(String::new, |reason| format!(": {}", clean(reason)));
            screen.line(&format!("backend {} {word}{hooks}{reason}", tried.mode))?;
        }
        if self.hooks {
            for tried in &report.modes {
                for hook in &tried.hooks {
                    screen.line(&clean(&format!("{} {}: {}", tried.mode, hook.hook, hook.line)))?;
                }
            }
        }
        for missed in &report.not_seen {
            let word = screen.paint(Tone::Bad, "not seen");
            screen.line(&format!("{word}: {}", clean(&format!("{} ({})", missed.what, missed.because))))?;
            if let Some(advice) = &missed.advice {
                screen.line(&format!("  hint: {advice}"))?;
            }
        }
        for fact in &report.facts {
            if let Some(advice) = fact.advice {
                screen.line(&format!("hint: {}: {advice}", fact.name))?;
            }
        }
        if !report.keeps.is_empty() {
            let names: Vec<&str> = report.keeps.iter().map(|keeps| keeps.capability).collect();
            screen.line(&format!("of its capabilities the daemon would keep {}", names.join(", ")))?;
        }
        screen.line(&format!("note: {SWEPT}"))?;
        let word =
            if report.healthy { screen.paint(Tone::Good, "ok") } else { screen.paint(Tone::Bad, "degraded") };
        screen.line(&format!(
            "{word}: the daemon would use {}",
            report.backend.unwrap_or("nothing and not start")
        ))
    }
}

/// A directory for the canary, apart from that of a running daemon.
#[derive(Debug)]
struct Nest(std::path::PathBuf);

impl Nest {
    fn make() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("holdfast-doctor-{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Nest {
    fn drop(&mut self) {
        // A failure leaves a directory in the temporary directory, and nothing else.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Loads the programs in a mode and waits for the record of a canary, as the daemon does.
fn attempt(mode: Mode, nest: &Path, observer: &Observer) -> Tried {
    let mut tried = Tried { mode: mode.prefix(), usable: false, reason: None, hooks: Vec::new() };
    let loaded = match load::load(mode, None, Some(0)) {
        Ok(loaded) => loaded,
        Err(error) => {
            tried.reason = Some(error.to_string());
            return tried;
        }
    };
    tried.hooks = loaded
        .sensor
        .hooks
        .iter()
        .map(|(hook, state)| {
            let (word, off) = match state {
                HookState::Attached | HookState::Adopted => ("attached", None),
                HookState::Waiting => ("waiting", None),
                HookState::Off(off) => ("off", Some(off.clone())),
            };
            let reason = off.as_ref().map(WhyOff::to_string);
            TriedHook { hook, state: word, reason, off, line: format!("{state:?}") }
        })
        .collect();
    let mut kernel = KernelPrograms::new(loaded.maps);
    let mut ring = loaded.ring;
    let mut canary = match Canary::new(&[nest], observer, &mut kernel) {
        Ok(canary) => canary,
        Err(error) => {
            tried.reason = Some(error.to_string());
            return tried;
        }
    };
    canary.write(observer, &mut kernel);
    ring.drain(RECORDS, |bytes| {
        if event::decode(bytes).is_ok_and(|change| change.record.id == CANARY_ID) {
            canary.received();
        }
    });
    match canary.check(&mut kernel) {
        CanaryState::Alive => tried.usable = true,
        CanaryState::RecordLost => tried.reason = Some(GapReason::CanaryNotReceived.to_string()),
        CanaryState::Blind(reason) => tried.reason = Some(reason.to_string()),
    }
    loaded.sensor.detach();
    tried
}

fn fanotify(observer: &Arc<Observer>) -> Tried {
    let reason = FanotifyBackend::new(Arc::clone(observer), Arc::new(SystemClock))
        .err()
        .map(|error| error.to_string());
    Tried { mode: "fanotify", usable: reason.is_none(), reason, hooks: Vec::new() }
}

/// The capabilities that the daemon would keep on the chosen backend.
fn keeps(chosen: Option<&Tried>) -> Vec<Keeps> {
    let Some(chosen) = chosen else { return Vec::new() };
    let mode = [HookMode::Lsm, HookMode::Fentry].into_iter().find(|mode| mode.name() == chosen.mode);
    privileges::kept_with(mode.unwrap_or(HookMode::Fanotify))
        .map(|kept| Keeps { capability: kept.name, why: kept.why })
        .collect()
}

/// What the chosen backend cannot see here, and could see on another kernel.
fn not_seen(chosen: Option<&Tried>) -> Vec<NotSeen> {
    let Some(chosen) = chosen else {
        return vec![NotSeen {
            what: "every change, as it happens".to_owned(),
            because: "no backend works".to_owned(),
            advice: Some("`holdfast check` from a timer finds what has drifted".to_owned()),
        }];
    };
    if chosen.mode == "fanotify" {
        let blind = |what: &&str| NotSeen {
            what: (*what).to_owned(),
            because: "fanotify does not tell".to_owned(),
            advice: None,
        };
        return BLIND_SPOTS.iter().map(blind).collect();
    }
    let off = chosen.hooks.iter().filter_map(|hook| Some((hook, hook.off.as_ref()?)));
    off.filter_map(|(tried, reason)| {
        if TRACEPOINTS.iter().any(|(_, tracepoint)| *tracepoint == tried.hook) {
            return Some(NotSeen {
                what: "processes that are gone when their change is looked at".to_owned(),
                because: format!("tracepoint {}: {reason}", tried.hook),
                advice: None,
            });
        }
        let word =
            if FUNCTIONS.iter().any(|function| function.name == tried.hook) { "function" } else { "hook" };
        hidden(tried.hook, reason).map(|what| NotSeen {
            what: what.to_owned(),
            because: format!("{word} {}: {reason}", tried.hook),
            advice: Some("report this kernel's release and the reason".to_owned()),
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sensor_model::host::btf::BtfError;

    fn tried(mode: &'static str, hooks: &[(&'static str, Option<WhyOff>)]) -> Tried {
        let hooks = hooks
            .iter()
            .map(|(hook, off)| TriedHook {
                hook,
                state: if off.is_some() { "off" } else { "attached" },
                reason: off.as_ref().map(WhyOff::to_string),
                off: off.clone(),
                line: String::new(),
            })
            .collect();
        Tried { mode, usable: true, reason: None, hooks }
    }

    fn refused() -> WhyOff {
        aya::programs::ProgramError::AlreadyAttached.into()
    }

    #[test]
    fn a_hook_that_is_off_is_told_by_what_it_would_see() {
        let refused = Some(refused());
        let missed = not_seen(Some(&tried("lsm", &[("inode_rename", refused), ("inode_unlink", None)])));
        assert_eq!(missed.len(), 1);
        assert_eq!(missed[0].what, "renames and replacements");
    }

    #[test]
    fn a_hook_that_this_kernel_never_had_hides_nothing() {
        let absent = WhyOff::Types(BtfError::NoFunction("security_inode_set_acl".to_owned()));
        let missed = not_seen(Some(&tried("fentry", &[("inode_set_acl", Some(absent))])));
        assert_eq!(missed, []);
        let missed = not_seen(Some(&tried("fentry", &[("inode_set_acl", Some(refused()))])));
        assert_eq!(missed.len(), 1, "one that it has and does not let us hang on does");
    }

    #[test]
    fn without_any_backend_nothing_is_seen_and_the_way_out_is_named() {
        let missed = not_seen(None);
        assert!(missed[0].advice.as_ref().is_some_and(|advice| advice.contains("holdfast check")));
        assert_eq!(not_seen(Some(&tried("fanotify", &[]))).len(), BLIND_SPOTS.len());
    }
}
