//! QEMU's monitor: saving a running guest to a file, and loading it.
//!
//! In: the connection that QEMU makes to our socket. Out: a file with the guest's memory and devices, or a guest that continues
//! from such a file. The file does not contain the disks.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

/// Longest time between two lines of the monitor: saving and loading take less than a second each.
const LIMIT: Duration = Duration::from_mins(1);
/// Bytes for each second. QEMU's own limit is meant for networks.
const BANDWIDTH: u64 = 100_000_000_000;

/// An open monitor.
#[derive(Debug)]
pub(super) struct Monitor {
    reader: BufReader<UnixStream>,
    /// Events that came before the answer to a command.
    events: VecDeque<Value>,
}

impl Monitor {
    /// Reads the greeting and asks for events.
    pub(super) fn open(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(LIMIT))?;
        let mut monitor = Self { reader: BufReader::new(stream), events: VecDeque::new() };
        monitor.line()?;
        monitor.command("qmp_capabilities", &json!({}))?;
        let events = json!({ "capabilities": [{ "capability": "events", "state": true }] });
        monitor.command("migrate-set-capabilities", &events)?;
        Ok(monitor)
    }

    /// Saves the guest, which is paused afterwards.
    pub(super) fn save(&mut self, file: &Path) -> Result<()> {
        self.command("migrate-set-parameters", &json!({ "max-bandwidth": BANDWIDTH }))?;
        self.command("migrate", &json!({ "uri": uri(file) }))?;
        self.wait_for(|event| event["event"] == "MIGRATION" && event["data"]["status"] == "completed")
    }

    /// Loads a guest into a QEMU that was started to wait for one; it runs afterwards.
    pub(super) fn load(&mut self, file: &Path) -> Result<()> {
        self.command("migrate-incoming", &json!({ "uri": uri(file) }))?;
        self.wait_for(|event| event["event"] == "RESUME")
    }

    /// Ends QEMU.
    pub(super) fn quit(&mut self) -> Result<()> {
        self.command("quit", &json!({}))
    }

    /// The state of the emulated processors and their interrupt controllers, as QEMU's human monitor prints it.
    pub(super) fn processors(&mut self) -> Result<String> {
        let mut text = self.human_monitor("info registers -a")?;
        for number in 0..text.matches("CPU#").count() {
            text.push_str(&self.human_monitor(&format!("info lapic {number}"))?);
        }
        Ok(text)
    }

    fn human_monitor(&mut self, command: &str) -> Result<String> {
        let answer = self.ask("human-monitor-command", &json!({ "command-line": command }))?;
        Ok(answer.as_str().unwrap_or_default().replace('\r', ""))
    }

    fn command(&mut self, name: &str, arguments: &Value) -> Result<()> {
        self.ask(name, arguments).map(drop)
    }

    fn ask(&mut self, name: &str, arguments: &Value) -> Result<Value> {
        let line = json!({ "execute": name, "arguments": arguments });
        writeln!(self.reader.get_mut(), "{line}").context("cannot write to QEMU's monitor")?;
        loop {
            let mut answer = self.line()?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU's monitor refuses {name}: {error}");
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
            self.events.push_back(answer);
        }
    }

    fn wait_for(&mut self, wanted: impl Fn(&Value) -> bool) -> Result<()> {
        loop {
            let event = match self.events.pop_front() {
                Some(event) => event,
                None => self.line()?,
            };
            if event["event"] == "MIGRATION" && event["data"]["status"] == "failed" {
                bail!("QEMU cannot save or load the guest");
            }
            if wanted(&event) {
                return Ok(());
            }
        }
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        let read = self.reader.read_line(&mut line).context("QEMU's monitor does not answer")?;
        if read == 0 {
            bail!("QEMU ended");
        }
        serde_json::from_str(&line).with_context(|| format!("no JSON from QEMU's monitor: {line}"))
    }
}

fn uri(file: &Path) -> String {
    format!("file:{}", file.display())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// A monitor whose QEMU answers each command with the next of these lines.
    fn monitor(answers: &'static [&'static str]) -> Result<Monitor> {
        let (ours, theirs) = UnixStream::pair()?;
        thread::spawn(move || -> std::io::Result<()> {
            let mut qemu = BufReader::new(theirs);
            qemu.get_mut().write_all(b"{\"QMP\":{}}\n")?;
            for answer in ["{\"return\":{}}", "{\"return\":{}}"].iter().chain(answers) {
                qemu.read_line(&mut String::new())?;
                qemu.get_mut().write_all(format!("{answer}\n").as_bytes())?;
            }
            Ok(())
        });
        Monitor::open(ours)
    }

    #[test]
    fn a_guest_is_saved_when_the_event_says_so_and_not_when_the_command_is_accepted() {
        const COMPLETED: &str = "{\"event\":\"MIGRATION\",\"data\":{\"status\":\"active\"}}\n{\"return\":{}}\n\
                         {\"event\":\"MIGRATION\",\"data\":{\"status\":\"completed\"}}";
        let mut saved = monitor(&["{\"return\":{}}", COMPLETED]).unwrap();
        saved.save(Path::new("/state")).unwrap();
    }

    #[test]
    fn a_refused_command_a_failed_migration_and_an_end_of_qemu_are_errors() {
        const FAILED: &str = "{\"return\":{}}\n{\"event\":\"MIGRATION\",\"data\":{\"status\":\"failed\"}}";
        for answers in [&["{\"error\":{\"desc\":\"no\"}}"][..], &[FAILED], &[]] {
            assert!(monitor(answers).unwrap().load(Path::new("/state")).is_err(), "{answers:?}");
        }
    }
}
