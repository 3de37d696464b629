//! The lines between a guest and the host, on the second serial port.
//!
//! Comes in: messages of the guest, or lines that the host read. Goes out: one line for each message, `HF` and JSON.
//! The port belongs to these lines alone, so that no kernel message can cut one in two.

use serde::{Deserialize, Serialize};

/// First word of each line.
const MARK: &str = "HF ";

/// How one check of a scenario ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// What was to be shown was shown.
    Pass,
    /// It was not.
    Fail,
    /// It does not apply to this kernel; the detail says why.
    Skip,
}

/// One check of a scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResultLine {
    /// Name of the check, unique in its scenario.
    pub name: String,
    /// How it ended.
    pub ending: Ending,
    /// What was found, for people.
    pub detail: String,
    /// What was found, for programs: measurements, and rows of generated tables.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub data: serde_json::Value,
}

/// Everything that a guest says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Message {
    /// The guest program runs; what dies before this never started.
    Hello {
        /// The kernel's release, as in `uname -r`.
        release: String,
    },
    /// The scenario reached a point that a person may want to see, and that keeps the watchdog calm.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_with_line_breaks_stays_one_line_and_comes_back() {
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
    fn what_is_no_message_is_ignored() {
        assert_eq!(Message::from_line("[    0.5] HF {\"is\":\"done\"}"), None);
        assert_eq!(Message::from_line("HF {\"is\":\"do"), None);
    }
}
