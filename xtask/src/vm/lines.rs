//! Lines of the serial ports.
//!
//! In: a stream of bytes. Out: its lines, without the escape codes that firmware sends.

use std::io::{BufRead as _, BufReader, Read};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Reads lines in a thread of its own until the stream ends.
pub(super) fn read_lines(stream: impl Read + Send + 'static, lines: Sender<String>) {
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            if lines.send(plain(&String::from_utf8_lossy(&line))).is_err() {
                return;
            }
            line.clear();
        }
    });
}

/// The sender for `read_lines`, and the receiver of its lines.
pub(super) fn lines() -> (Sender<String>, Receiver<String>) {
    channel()
}

/// A line without escape sequences and control characters.
fn plain(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        if c != '\x1b' {
            if !c.is_control() || c == '\t' {
                out.push(c);
            }
            continue;
        }
        if rest.next_if_eq(&'[').is_some() {
            // Parameters, then one letter that ends the sequence.
            while rest.next().is_some_and(|c| !('@'..='~').contains(&c)) {}
        } else {
            rest.next();
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_codes_of_the_firmware_are_gone_and_text_stays() {
        assert_eq!(plain("\x1b[2J\x1b[01;01H\x1bcHF {\"is\":\"done\"}\r\n"), "HF {\"is\":\"done\"}");
    }
}
