//! `holdfast doctor`: what the daemon could do on this host.

use super::{
    exit::{DRIFT, IN_SYNC},
    output::{Output, Screen, Tone, clean, count},
};
use crate::diagnosis::{self, BackendName, Diagnosis, FactState, SWEPT, TestedBackend, TestedHookState};
use std::io;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Doctor {
    /// Print a line for every hook in every mode.
    #[arg(long)]
    hooks: bool,
    #[command(flatten)]
    output: Output,
}

impl Doctor {
    /// Tests the host and prints the result.
    ///
    /// # Errors
    /// The host cannot be tested.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let found = diagnosis::diagnose()?;
        if self.output.is_json() {
            screen.json(&found)?;
        } else {
            self.text(&found, screen)?;
        }
        Ok(if found.healthy { IN_SYNC } else { DRIFT })
    }

    fn text(&self, found: &Diagnosis, screen: &mut Screen) -> io::Result<()> {
        let rows: Vec<_> = found
            .facts
            .iter()
            .map(|fact| (tone(fact.state), vec![fact.name.to_owned(), clean(&fact.value)]))
            .collect();
        screen.table(0, &rows)?;
        for tested in &found.modes {
            backend(tested, screen)?;
        }
        if self.hooks {
            for tested in &found.modes {
                for hook in &tested.hooks {
                    let line = format!("{} {}: {:?}", tested.mode.as_str(), hook.hook, hook.loaded);
                    screen.line(&clean(&line))?;
                }
            }
        }
        for missed in &found.not_seen {
            let word = screen.paint(Tone::Bad, "not seen");
            screen.line(&format!("{word}: {}", clean(&format!("{} ({})", missed.what, missed.because))))?;
            if let Some(advice) = &missed.advice {
                screen.line(&format!("  hint: {advice}"))?;
            }
        }
        for fact in &found.facts {
            if let Some(advice) = fact.advice {
                screen.line(&format!("hint: {}: {advice}", fact.name))?;
            }
        }
        if !found.keeps.is_empty() {
            let names: Vec<&str> = found.keeps.iter().map(|kept| kept.capability).collect();
            screen.line(&format!("of its capabilities the daemon would keep {}", names.join(", ")))?;
        }
        screen.line(&format!("note: {SWEPT}"))?;
        let word =
            if found.healthy { screen.paint(Tone::Good, "ok") } else { screen.paint(Tone::Bad, "degraded") };
        let backend = found.backend.map_or("nothing and not start", BackendName::as_str);
        screen.line(&format!("{word}: the daemon would use {backend}"))
    }
}

/// The colour of a fact; none if the fact is as it should be.
fn tone(state: FactState) -> Option<Tone> {
    match state {
        FactState::Good => None,
        FactState::Bad => Some(Tone::Bad),
        FactState::Notable | FactState::Unknown => Some(Tone::Notable),
    }
}

/// Whether a backend works, and how many of its hooks do.
fn backend(tested: &TestedBackend, screen: &mut Screen) -> io::Result<()> {
    let attached = tested.hooks.iter().filter(|hook| hook.state != TestedHookState::Off).count();
    let hooks = match tested.hooks.len() {
        0 => String::new(),
        all => format!(", {attached} of {}", count(all, "hook")),
    };
    let (tone, word) = if tested.usable { (Tone::Good, "works") } else { (Tone::Notable, "does not work") };
    let word = screen.paint(tone, word);
    let reason = tested.reason.as_ref().map_or_else(String::new, |reason| format!(": {}", clean(reason)));
    screen.line(&format!("backend {} {word}{hooks}{reason}", tested.mode.as_str()))
}
