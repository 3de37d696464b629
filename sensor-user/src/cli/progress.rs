//! The progress of a command that takes long: one line on a terminal, which the end erases.

use std::{
    io::{self, IsTerminal as _, Stderr, Write},
    time::{Duration, Instant},
};

/// How often a terminal shows the progress.
const EVERY: Duration = Duration::from_millis(100);

/// The line of the progress. Without a terminal nothing is written.
pub(super) struct Bar<W> {
    out: W,
    is_shown: bool,
    last: Instant,
    width: usize,
}

impl Bar<Stderr> {
    /// A line on the standard error, because the progress is no part of the answer.
    pub(super) fn new() -> Self {
        let out = io::stderr();
        let is_shown = out.is_terminal();
        Self { out, is_shown, last: Instant::now(), width: 0 }
    }
}

impl<W: Write> Bar<W> {
    /// Shows a line, unless the last one is younger than a tenth of a second.
    pub(super) fn show(&mut self, line: impl FnOnce() -> String) {
        if self.is_shown && self.last.elapsed() >= EVERY {
            self.last = Instant::now();
            self.print(&line());
        }
    }

    fn print(&mut self, line: &str) {
        // A terminal that cannot be written to does not end the command.
        let _ = write!(self.out, "\r{line:<width$}", width = self.width);
        self.width = line.len();
    }

    /// Erases the line.
    pub(super) fn end(&mut self) {
        if self.width > 0 {
            self.print("");
            let _ = write!(self.out, "\r");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bar that shows its next line.
    fn bar(is_shown: bool) -> Bar<Vec<u8>> {
        Bar { out: Vec::new(), is_shown, last: Instant::now().checked_sub(EVERY).unwrap(), width: 0 }
    }

    fn written(bar: &mut Bar<Vec<u8>>) -> String {
        String::from_utf8(std::mem::take(&mut bar.out)).unwrap()
    }

    #[test]
    fn a_line_covers_the_longer_one_before_it_and_the_end_erases_it() {
        let mut bar = bar(true);
        bar.show(|| "10 of 20".to_owned());
        assert_eq!(written(&mut bar), "\r10 of 20");
        bar.last = Instant::now().checked_sub(EVERY).unwrap();
        bar.show(|| "9 of 9".to_owned());
        assert_eq!(written(&mut bar), "\r9 of 9  ");
        bar.end();
        assert_eq!(written(&mut bar), "\r      \r");
    }

    #[test]
    fn a_line_that_follows_too_soon_is_not_written() {
        let mut bar = bar(true);
        bar.last = Instant::now() + Duration::from_hours(1);
        bar.show(|| "1".to_owned());
        bar.end();
        assert_eq!(written(&mut bar), "");
    }

    #[test]
    fn without_a_terminal_nothing_is_written() {
        let mut bar = bar(false);
        bar.show(|| "1".to_owned());
        bar.end();
        assert_eq!(written(&mut bar), "");
    }
}
