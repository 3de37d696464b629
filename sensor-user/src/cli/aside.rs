//! Lines for a person that hold nothing up.
//!
//! In: bytes for a writer that may block: a terminal that was stopped with Ctrl-S, a full pipe that nobody reads. Out: a thread
//! writes them and is waited for, so that order and completeness are those of a plain write, but not for longer than the
//! patience. What comes while the writer still blocks is left out. How many lines that were is said when it writes again.

use super::output::{Lasting, count};
use std::{
    io::{self, Write},
    sync::{
        Mutex, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::Duration,
};

/// How long a writer may block at first; a slow serial line writes some thousand characters in this time.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long it may block once it has used that up.
const LESS_PATIENCE: Duration = Duration::from_millis(100);

/// Standard error of a command that must not be held up; `None` for all others, which write to it themselves.
static ERRORS: Mutex<Option<Aside>> = Mutex::new(None);

/// From now on standard error holds this process up no more.
pub(super) fn begin() {
    let mut errors = ERRORS.lock().unwrap_or_else(PoisonError::into_inner);
    if errors.is_none() {
        // Without another thread it is written to as before.
        *errors = Aside::new(io::stderr()).ok();
    }
}

/// Writes to standard error; with `to_end` all of it, however long that takes.
pub(super) fn write(bytes: &[u8], to_end: bool) {
    let mut errors = ERRORS.lock().unwrap_or_else(PoisonError::into_inner);
    match errors.as_mut() {
        Some(aside) if to_end => aside.write(bytes, None),
        Some(aside) => {
            let patience = if aside.has_blocked { LESS_PATIENCE } else { PATIENCE };
            aside.write(bytes, Some(patience));
        }
        None => {
            // It cannot fail.
            let _ = Lasting(io::stderr()).write_all(bytes);
        }
    }
}

/// A writer with a thread of its own.
#[derive(Debug)]
struct Aside {
    bytes: Sender<Vec<u8>>,
    written: Receiver<()>,
    /// The thread still writes what it was given last.
    is_busy: bool,
    /// It was busy for longer than the patience.
    has_blocked: bool,
    left_out: usize,
}

impl Aside {
    fn new(to: impl Write + Send + 'static) -> io::Result<Self> {
        let (bytes, given) = mpsc::channel::<Vec<u8>>();
        let (done, written) = mpsc::channel();
        thread::Builder::new().name("output".to_owned()).spawn(move || {
            let mut to = Lasting(to);
            for bytes in given {
                // It cannot fail.
                let _ = to.write_all(&bytes);
                if done.send(()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { bytes, written, is_busy: false, has_blocked: false, left_out: 0 })
    }

    /// Writes a line, or leaves it out. `None`: waits as long as it takes.
    fn write(&mut self, line: &[u8], patience: Option<Duration>) {
        if self.is_busy {
            let is_done = match patience {
                None => self.written.recv().is_ok(),
                Some(_) => self.written.try_recv().is_ok(),
            };
            if !is_done {
                self.left_out += 1;
                return;
            }
            self.is_busy = false;
        }
        let mut bytes = Vec::new();
        if self.left_out > 0 {
            let lines = count(self.left_out, "line");
            bytes.extend(format!("{lines} left out: nobody read them in time\n").into_bytes());
        }
        bytes.extend_from_slice(line);
        self.left_out = 0;
        // A thread that is gone is one that is busy for ever.
        let is_given = self.bytes.send(bytes).is_ok();
        self.is_busy = !is_given
            || match patience {
                None => self.written.recv().is_err(),
                Some(patience) => self.written.recv_timeout(patience).is_err(),
            };
        self.has_blocked |= self.is_busy;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Blocks in each write until it is let on.
    struct Stopped {
        on: Receiver<()>,
        text: Arc<Mutex<String>>,
    }

    impl Write for Stopped {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // Where nobody lets it on any more it blocks no more.
            let _ = self.on.recv();
            self.text.lock().unwrap().push_str(std::str::from_utf8(bytes).unwrap());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_writer_that_blocks_holds_nothing_up_and_what_was_left_out_is_counted() {
        let (let_on, on) = mpsc::channel();
        let text = Arc::new(Mutex::new(String::new()));
        let mut aside = Aside::new(Stopped { on, text: Arc::clone(&text) }).unwrap();
        for line in ["a\n", "b\n", "c\n"] {
            aside.write(line.as_bytes(), Some(Duration::ZERO));
        }
        assert_eq!(*text.lock().unwrap(), "");
        drop(let_on);
        aside.write(b"d\n", None);
        aside.write(b"e\n", None);
        assert_eq!(*text.lock().unwrap(), "a\n2 lines left out: nobody read them in time\nd\ne\n");
    }

    #[test]
    fn lines_are_written_in_their_order_before_anything_goes_on() {
        let (let_on, on) = mpsc::channel();
        drop(let_on);
        let text = Arc::new(Mutex::new(String::new()));
        let mut aside = Aside::new(Stopped { on, text: Arc::clone(&text) }).unwrap();
        let mut wanted = String::new();
        for number in 0..1000 {
            let line = format!("{number}\n");
            aside.write(line.as_bytes(), Some(PATIENCE));
            wanted.push_str(&line);
            assert_eq!(*text.lock().unwrap(), wanted);
        }
    }

    /// A reader that is gone.
    struct Broken;

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    }

    #[test]
    fn a_reader_that_is_gone_holds_nothing_up_either() {
        let mut aside = Aside::new(Broken).unwrap();
        aside.write(b"a\n", None);
        aside.write(b"b\n", None);
        assert_eq!((aside.is_busy, aside.left_out), (false, 0));
    }
}
