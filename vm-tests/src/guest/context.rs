//! The context of a scenario: the kernel's series, and the port for its results.
//!
//! In: results of checks. Out: messages on the second serial port.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

use anyhow::{Context as _, Result};
use nix::fcntl::OFlag;
use nix::sys::termios::tcdrain;

use super::command::parameter;
use crate::protocol::{self, Ending, Message, ResultLine};

/// The second serial port.
const PORT: &str = "/dev/ttyS1";

/// The context of a scenario.
#[derive(Debug)]
pub struct Context {
    port: File,
    /// The kernel series, as the host calls it: `6.12`, or `7.x`.
    pub kernel: String,
    failed: usize,
}

impl Context {
    /// Opens the port.
    pub(crate) fn open() -> Result<Self> {
        let port = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlag::O_NOCTTY.bits())
            .open(PORT)
            .with_context(|| format!("cannot open {PORT}"))?;
        let kernel = parameter("hf.kernel").unwrap_or_default();
        Ok(Self { port, kernel, failed: 0 })
    }

    pub(crate) fn send(&mut self, message: &Message) {
        // If the port fails, the host sees that the last line is missing.
        let _ = self.port.write_all(format!("{}\n", message.to_line()).as_bytes());
    }

    /// Waits for the host's line with the name of the scenario.
    pub(crate) fn scenario(&self) -> Result<String> {
        let mut line = String::new();
        BufReader::new(&self.port).read_line(&mut line).with_context(|| format!("cannot read {PORT}"))?;
        let name =
            protocol::started(&line).with_context(|| format!("the host named no scenario: {line:?}"))?;
        Ok(name.to_owned())
    }

    /// Waits until the host has every message: a power-off loses what the driver still holds.
    pub(crate) fn finish(&mut self) {
        self.send(&Message::Done);
        let _ = tcdrain(&self.port);
    }

    /// Reports progress for people.
    pub fn note(&mut self, text: impl Into<String>) {
        self.send(&Message::Note { text: text.into() });
    }

    /// Reports a check.
    pub fn report(&mut self, line: ResultLine) {
        if line.ending == Ending::Fail {
            self.failed += 1;
        }
        self.send(&Message::Result(line));
    }

    /// Reports a check by its text for people, or its error.
    pub fn check(&mut self, name: &str, result: Result<String>) {
        let (ending, detail) = match result {
            Ok(detail) => (Ending::Pass, detail),
            Err(error) => (Ending::Fail, format!("{error:#}")),
        };
        self.report(ResultLine { name: name.to_owned(), ending, detail, data: serde_json::Value::Null });
    }

    /// Reports a check that does not apply to this kernel.
    pub fn skip(&mut self, name: &str, reason: &str) {
        let line = ResultLine {
            name: name.to_owned(),
            ending: Ending::Skip,
            detail: reason.to_owned(),
            data: serde_json::Value::Null,
        };
        self.report(line);
    }

    /// Reports a measurement.
    pub fn measured(&mut self, name: &str, detail: String, data: serde_json::Value) {
        self.report(ResultLine { name: name.to_owned(), ending: Ending::Pass, detail, data });
    }
}
