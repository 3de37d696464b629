//! What commands print: lines, aligned tables, or JSON.
//!
//! In: texts and values. Out: standard output, with colour on a terminal only. Control characters in text from elsewhere are
//! shown as escapes and never reach the terminal.

use super::{ignore_errors::Lasting, stderr};
use serde::Serialize;
use std::{
    cell::Cell,
    io::{self, IsTerminal as _, Write},
    rc::Rc,
};

pub use super::text::{clean, count};

/// The format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Format {
    /// For people.
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
    pub format: Format,
}

impl Output {
    /// Whether the answer is JSON.
    pub fn is_json(self) -> bool {
        self.format == Format::Json
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

/// A writer to a pipe that its reader may close, as `head` does. It drops what is written after that, without an error. A full
/// disk is an error.
struct Heard<W> {
    to: W,
    is_gone: Rc<Cell<bool>>,
}

impl<W: Write> Heard<W> {
    /// Calls `act` while there is a reader, and gives `dropped` after that.
    fn unless_gone<T>(&mut self, act: impl FnOnce(&mut W) -> io::Result<T>, dropped: T) -> io::Result<T> {
        if self.is_gone.get() {
            return Ok(dropped);
        }
        match act(&mut self.to) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.is_gone.set(true);
                Ok(dropped)
            }
            done => done,
        }
    }
}

impl<W: Write> Write for Heard<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.unless_gone(|to| to.write(bytes), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unless_gone(Write::flush, ())
    }
}

/// Standard error. After [`Screen::outlive_readers`] a slow reader does not block the command: lines that it does not read in
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

/// The same at the end of a command: the line is never left out.
pub fn say_last(line: &str) {
    stderr::write(format!("{}\n", clean(line)).as_bytes(), true);
}

/// Standard output of a command.
pub struct Screen {
    to: Box<dyn Write>,
    colour: bool,
    is_gone: Rc<Cell<bool>>,
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
        Self { colour, ..Self::heard(io::stdout()) }
    }

    /// A pipe that its reader may close, without colour.
    fn heard(to: impl Write + 'static) -> Self {
        let is_gone = Rc::default();
        Self { to: Box::new(Heard { to, is_gone: Rc::clone(&is_gone) }), colour: false, is_gone }
    }

    /// Any other writer, without colour.
    pub fn plain(to: Box<dyn Write>) -> Self {
        Self { to, colour: false, is_gone: Rc::default() }
    }

    /// Whether the reader closed standard output.
    pub fn is_unheard(&self) -> bool {
        self.is_gone.get()
    }

    /// From now on errors of standard output do not end the command, and a slow reader of standard error does not block it. A slow
    /// reader of standard output does, so a command prints there only when its work is over.
    pub fn outlive_readers(&mut self) {
        stderr::begin();
        let to = std::mem::replace(&mut self.to, Box::new(io::sink()));
        self.to = Box::new(Lasting(to));
    }

    /// The writer.
    pub fn writer(&mut self) -> &mut dyn Write {
        &mut self.to
    }

    /// A word in its colour.
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

    /// A pipe whose reader is gone, and a line that was interrupted before.
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
    fn a_reader_that_is_gone_is_no_error_and_a_full_disk_is_one() {
        let mut screen = Screen::heard(Broken(true));
        assert!(!screen.is_unheard());
        screen.line("a").unwrap();
        screen.json(&["a"]).unwrap();
        screen.flush().unwrap();
        assert!(screen.is_unheard());
        let mut screen = Screen::heard(Full);
        assert!(screen.line("a").is_err() && !screen.is_unheard());
    }
}
