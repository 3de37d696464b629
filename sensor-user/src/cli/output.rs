//! What commands print: lines, aligned tables, or JSON.
//!
//! In: texts and values. Out: standard output, with colour on a terminal only. Control characters in text from elsewhere are
//! shown as escapes and never reach the terminal.

use super::{ignore_errors::IgnoreErrors, stderr};
use serde::Serialize;
use std::{
    cell::Cell,
    io::{self, IsTerminal as _, Write},
    rc::Rc,
};

pub use super::text::{clean, count};

/// The format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum OutputFormat {
    /// For people to read.
    #[default]
    Text,
    /// For programs; the schemas are in `docs/schemas`.
    Json,
}

/// The option that chooses the format.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Output {
    /// Output format.
    #[arg(short = 'o', long = "output", value_name = "FORMAT", value_enum, default_value_t)]
    pub format: OutputFormat,
}

impl Output {
    /// Whether the answer is JSON.
    pub fn is_json(self) -> bool {
        self.format == OutputFormat::Json
    }
}

/// The colour of a word. A colour adds nothing to the meaning of the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// As it should be.
    Good,
    /// Not as it should be.
    Bad,
    /// Worth a look.
    Notable,
    /// Less important.
    Quiet,
}

/// A writer to a pipe. A reader such as `head` may close the pipe; what is written after that is dropped without an error. A
/// full disk is an error.
struct UntilClosed<W> {
    to: W,
    is_closed: Rc<Cell<bool>>,
}

impl<W: Write> UntilClosed<W> {
    /// Calls `act` while the pipe is open, and gives `dropped` after that.
    fn unless_closed<T>(&mut self, act: impl FnOnce(&mut W) -> io::Result<T>, dropped: T) -> io::Result<T> {
        if self.is_closed.get() {
            return Ok(dropped);
        }
        match act(&mut self.to) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.is_closed.set(true);
                Ok(dropped)
            }
            done => done,
        }
    }
}

impl<W: Write> Write for UntilClosed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.unless_closed(|to| to.write(bytes), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unless_closed(Write::flush, ())
    }
}

/// Standard error. After [`Screen::outlive_readers`] a slow reader does not block the command. Lines that it does not read in
/// time are left out.
#[derive(Debug)]
pub struct Errors;

impl Write for Errors {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        stderr::write(bytes, false);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Prints a line on standard error.
pub fn say(line: &str) {
    stderr::write(format!("{}\n", clean(line)).as_bytes(), false);
}

/// Prints the last line of a command on standard error. This line is never left out.
pub fn say_last(line: &str) {
    stderr::write(format!("{}\n", clean(line)).as_bytes(), true);
}

/// Standard output of a command.
pub struct Screen {
    to: Box<dyn Write>,
    colour: bool,
    is_closed: Rc<Cell<bool>>,
}

impl std::fmt::Debug for Screen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Screen").field("colour", &self.colour).finish_non_exhaustive()
    }
}

impl Screen {
    /// Standard output, with colour on a terminal unless `NO_COLOR` is set. A closed pipe changes no exit code.
    pub fn stdout() -> Self {
        let colour = io::stdout().is_terminal() && wants_colour();
        Self { colour, ..Self::pipe(io::stdout()) }
    }

    /// A pipe that its reader may close, without colour.
    fn pipe(to: impl Write + 'static) -> Self {
        let is_closed = Rc::default();
        Self { to: Box::new(UntilClosed { to, is_closed: Rc::clone(&is_closed) }), colour: false, is_closed }
    }

    /// Any other writer, without colour.
    pub fn plain(to: Box<dyn Write>) -> Self {
        Self { to, colour: false, is_closed: Rc::default() }
    }

    /// Whether the reader closed standard output.
    pub fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// From now on errors of standard output do not end the command, and a slow reader of standard error does not block it. A slow
    /// reader of standard output does, so a command prints there only when its work is over.
    pub fn outlive_readers(&mut self) {
        stderr::begin();
        let to = std::mem::replace(&mut self.to, Box::new(io::sink()));
        self.to = Box::new(IgnoreErrors(to));
    }

    /// The writer.
    pub fn writer(&mut self) -> &mut dyn Write {
        &mut self.to
    }

    /// A word in the colour of its tone.
    pub fn paint(&self, tone: Tone, word: &str) -> String {
        if !self.colour {
            return word.to_owned();
        }
        let code = match tone {
            Tone::Good => "32",
            Tone::Bad => "31",
            Tone::Notable => "33",
            Tone::Quiet => "2",
        };
        format!("\x1b[{code}m{word}\x1b[0m")
    }

    /// Prints a line.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn line(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.to, "{text}")
    }

    /// Prints rows with aligned columns, the first column in the row's colour.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn table(&mut self, indent: usize, rows: &[(Option<Tone>, Vec<String>)]) -> io::Result<()> {
        let columns = rows.iter().map(|(_, cells)| cells.len()).max().unwrap_or(0);
        let width = |column: usize| {
            rows.iter()
                .filter(|(_, cells)| cells.len() > column + 1)
                .filter_map(|(_, cells)| Some(cells.get(column)?.chars().count()))
                .max()
        };
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        for (tone, cells) in rows {
            let mut line = " ".repeat(indent);
            for (column, cell) in cells.iter().enumerate() {
                let last = column + 1 == cells.len();
                let padding = if last { 0 } else { widths[column].saturating_sub(cell.chars().count()) + 2 };
                match tone {
                    Some(tone) if column == 0 => line.push_str(&self.paint(*tone, cell)),
                    _ => line.push_str(cell),
                }
                line.push_str(&" ".repeat(padding));
            }
            writeln!(self.to, "{}", line.trim_end())?;
        }
        Ok(())
    }

    /// Prints a line of a unified diff, in colour.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn diff_line(&mut self, indent: &str, line: &str) -> io::Result<()> {
        let tone = match line.as_bytes().first() {
            Some(b'+') => Some(Tone::Good),
            Some(b'-') => Some(Tone::Bad),
            Some(b'@' | b'\\') => Some(Tone::Quiet),
            _ => None,
        };
        let line = clean(line);
        let line = tone.map_or_else(|| line.clone(), |tone| self.paint(tone, &line));
        self.line(&format!("{indent}{line}"))
    }

    /// Prints a value as indented JSON.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut self.to, value).map_err(io::Error::from)?;
        self.line("")
    }

    /// Writes everything that is still buffered.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Whether the environment allows colour.
pub fn wants_colour() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pipe without a reader. The first write to it is interrupted.
    struct Broken(bool);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            let is_first = std::mem::take(&mut self.0);
            Err(if is_first { io::ErrorKind::Interrupted } else { io::ErrorKind::BrokenPipe }.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    }

    #[test]
    fn a_screen_that_outlives_its_readers_has_no_errors() {
        let mut screen = Screen::plain(Box::new(Broken(true)));
        assert!(screen.line("a").is_err() && screen.flush().is_err());
        screen.outlive_readers();
        screen.line("a").unwrap();
        screen.json(&["a"]).unwrap();
        screen.flush().unwrap();
    }

    /// A full disk.
    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_pipe_is_no_error_and_a_full_disk_is_one() {
        let mut screen = Screen::pipe(Broken(true));
        assert!(!screen.is_closed());
        screen.line("a").unwrap();
        screen.json(&["a"]).unwrap();
        screen.flush().unwrap();
        assert!(screen.is_closed());
        let mut screen = Screen::pipe(Full);
        assert!(screen.line("a").is_err() && !screen.is_closed());
    }
}
