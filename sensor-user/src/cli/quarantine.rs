//! `holdfast quarantine`: objects that a drift policy moved out of closed directories.

use super::{
    apply::options::HostOptions,
    describe,
    exit::{BadInput, DRIFT, IN_SYNC},
    output::{Screen, Tone, clean, count, say},
};
use crate::{
    observation::Observer,
    quarantine::{Manifest, Quarantine, QuarantineError},
};
use anyhow::Context as _;
use schemars::JsonSchema;
use serde::Serialize;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

const SCHEMA: &str = "holdfast.dev/quarantine/v1";

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct QuarantineCommand {
    #[command(subcommand)]
    what: What,
}

/// What to do.
#[derive(Debug, clap::Subcommand)]
enum What {
    /// List the items, the oldest first.
    List(List),
    /// Put the object of an item back at its path, if nothing is there.
    Restore(Restore),
    /// Remove an item and its object for good.
    Remove(Remove),
}

/// Arguments of `list`.
#[derive(Debug, clap::Args)]
struct List {
    #[command(flatten)]
    options: HostOptions,
}

/// Arguments of `restore`.
#[derive(Debug, clap::Args)]
struct Restore {
    /// The id of the item.
    id: String,
    #[command(flatten)]
    options: HostOptions,
}

/// Arguments of `remove`.
#[derive(Debug, clap::Args)]
struct Remove {
    /// The id of the item.
    id: String,
    /// Do not ask for confirmation.
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    options: HostOptions,
}

/// What `holdfast quarantine` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct QuarantineReport {
    /// Format of this value.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// The items, the oldest first; for `restore` and `remove` the one that is gone from the quarantine.
    pub items: Vec<Manifest>,
    /// Items whose manifest cannot be read, and why.
    pub unreadable: Vec<String>,
}

impl QuarantineCommand {
    /// Lists, restores or removes.
    ///
    /// # Errors
    /// An item that does not exist, and one that cannot be moved.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        match &self.what {
            What::List(list) => list.run(screen),
            What::Restore(restore) => restore.run(screen),
            What::Remove(remove) => remove.run(screen),
        }
    }
}

impl List {
    fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let quarantine = Quarantine::open_existing(&self.options.state())?;
        let (items, broken) = match &quarantine {
            Some(quarantine) => quarantine.items()?,
            None => Default::default(),
        };
        let unreadable = broken.iter().map(ToString::to_string).collect();
        let report = QuarantineReport { schema: SCHEMA, items, unreadable };
        if self.options.output.is_json() {
            screen.json(&report)?;
        } else {
            text(&report, screen)?;
        }
        Ok(IN_SYNC)
    }
}

impl Restore {
    fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let item = act(&self.options, &self.id, Quarantine::restore)?;
        say(&format!(
            "the rule {} of {} moves it again while its action is `revert`, unless a config, a package or an exception declares it; \
             `holdfast adopt {}` prints a MachineConfig",
            item.rule, item.policy, item.path
        ));
        report(item, "restored", &self.options, screen)
    }
}

impl Remove {
    fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        if !self.yes {
            let quarantine = Quarantine::open_existing(&self.options.state())?;
            let items = quarantine.map(|quarantine| quarantine.items()).transpose()?.unwrap_or_default().0;
            let item = items.iter().find(|item| item.id == self.id).ok_or_else(|| no_item(&self.id))?;
            if !ask(item)? {
                return Ok(DRIFT);
            }
        }
        let item = act(&self.options, &self.id, Quarantine::remove)?;
        report(item, "removed", &self.options, screen)
    }
}

fn no_item(id: &str) -> anyhow::Error {
    BadInput::because(format!(
        "{id}: the quarantine has no item with this id; `holdfast quarantine list` shows the ids"
    ))
}

fn act(
    options: &HostOptions,
    id: &str,
    act: fn(&Quarantine, &Observer, &str) -> Result<Manifest, QuarantineError>,
) -> anyhow::Result<Manifest> {
    let quarantine = Quarantine::open_existing(&options.state())?.ok_or_else(|| no_item(id))?;
    let observer = Observer::new(&options.host_root).context("--host-root")?;
    act(&quarantine, &observer, id).map_err(|error| BadInput::wrap_if(error.is_input(), error))
}

/// Shows the item and asks.
fn ask(item: &Manifest) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        return Err(BadInput::because("there is no terminal to ask on; use --yes"));
    }
    let mut to = io::stderr().lock();
    write!(to, "Remove {} of {} for good? [y/N] ", what(item), clean(&item.path))?;
    to.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

fn report(item: Manifest, word: &str, options: &HostOptions, screen: &mut Screen) -> anyhow::Result<u8> {
    if options.output.is_json() {
        screen.json(&QuarantineReport { schema: SCHEMA, items: vec![item], unreadable: Vec::new() })?;
    } else {
        let word = screen.paint(Tone::Good, word);
        screen.line(&format!("{word} {}: {}", clean(&item.path), what(&item)))?;
    }
    Ok(IN_SYNC)
}

/// What an object is, in a few words.
fn what(item: &Manifest) -> String {
    let kind = item.kind.as_str();
    let below = item.objects.saturating_sub(1);
    let size = if below > 0 {
        format!(", {} below it", count(usize::try_from(below).unwrap_or(usize::MAX), "object"))
    } else {
        String::new()
    };
    format!("{kind} {} {}:{}, {} bytes{size}", item.mode, item.uid, item.gid, item.size)
}

fn text(report: &QuarantineReport, screen: &mut Screen) -> io::Result<()> {
    let mut rows = Vec::new();
    for item in &report.items {
        let maker = describe::actor(item.actors.first());
        let mut row =
            vec![item.id.clone(), describe::time(&item.time), clean(&item.path), what(item), clean(&maker)];
        if item.links > 1 {
            row.push(format!("the file has {} other names", item.links - 1));
        }
        rows.push((Some(Tone::Notable), row));
    }
    if rows.is_empty() && report.unreadable.is_empty() {
        return screen.line("the quarantine is empty");
    }
    screen.table(0, &rows)?;
    for error in &report.unreadable {
        screen.line(&clean(error))?;
    }
    Ok(())
}
