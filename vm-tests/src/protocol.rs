//! The lines between a guest and the host, on the second serial port.
//!
//! In: messages of the guest, or lines that the host read. Out: one line for each message, `HF` and JSON. The host sends
//! one line after each `Hello`: the scenario to run. Only these lines use the port, so that no kernel message can split one.

use serde::{Deserialize, Serialize};

/// First word of each line of the guest.
const MARK: &str = "HF ";
/// First word of the host's line.
const RUN: &str = "run ";

/// How one check of a scenario ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The check succeeded.
    Pass,
    /// The check failed.
    Fail,
    /// The check does not apply to this kernel; the detail says why.
    Skip,
}

/// One check of a scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResultLine {
    /// Name of the check, unique in its scenario.
    pub name: String,
    /// Result of the check.
    pub ending: Ending,
    /// What the check found, for people.
    pub detail: String,
    /// What the check found, for programs: measurements, and rows of generated tables.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub data: serde_json::Value,
}

/// A message of the guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Message {
    /// The guest program runs and waits for the name of its scenario.
    Hello {
        /// The kernel's release, as in `uname -r`.
        release: String,
    },
    /// The program has the name of its scenario, and begins it. The host takes a guest without this message as not started.
    Begun,
    /// Progress of the scenario, for people. It also resets the watchdog.
    Note {
        /// The text.
        text: String,
    },
    /// The result of a check.
    Result(ResultLine),
    /// The scenario is over; nothing follows.
    Done,
}

impl Message {
    /// The message as a line, without a line break.
    #[must_use]
    pub fn to_line(&self) -> String {
        // Plain structs of strings and numbers always serialize.
        format!("{MARK}{}", serde_json::to_string(self).unwrap_or_default())
    }

    /// The message in a line, if it is one.
    #[must_use]
    pub fn from_line(line: &str) -> Option<Self> {
        serde_json::from_str(line.trim().strip_prefix(MARK)?).ok()
    }
}

/// The host's line that starts a scenario, without a line break.
#[must_use]
pub fn start(scenario: &str) -> String {
    format!("{RUN}{scenario}")
}

/// The scenario that the host's line starts.
#[must_use]
pub fn started(line: &str) -> Option<&str> {
    line.trim().strip_prefix(RUN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_with_line_breaks_is_one_line_and_is_read_back() {
        let message = Message::Result(ResultLine {
            name: "mounts".into(),
            ending: Ending::Fail,
            detail: "two\nlines \"quoted\"".into(),
            data: serde_json::json!({ "ns": 12 }),
        });
        let line = message.to_line();
        assert_eq!(line.lines().count(), 1);
        assert_eq!(Message::from_line(&format!("{line}\r\n")), Some(message));
    }

    #[test]
    fn the_hosts_line_names_the_scenario() {
        assert_eq!(started(&format!("{}\n", start("apply-watched"))), Some("apply-watched"));
        assert_eq!(started("HF {\"is\":\"done\"}"), None);
    }

    #[test]
    fn a_line_without_a_message_is_ignored() {
        assert_eq!(Message::from_line("[    0.5] HF {\"is\":\"done\"}"), None);
        assert_eq!(Message::from_line("HF {\"is\":\"do"), None);
    }
}
