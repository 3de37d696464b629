//! Lines on standard error that do not block an apply.
//!
//! In: bytes for a writer that may block: a terminal stopped with Ctrl-S, or a full pipe without a reader. Out: a thread writes
//! them. The command waits for each write, so that lines keep their order, but only for [`PATIENCE`]. It leaves out lines while
//! the writer still blocks, and prints their number with the next line that is written.

use super::{ignore_errors::Lasting, text::count};
use std::{
    io::{self, Write},
    sync::{
        Mutex, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::Duration,
};

/// How long a write may block at first. A slow serial line writes some thousand characters in this time.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a write may block after one took longer than [`PATIENCE`].
const LESS_PATIENCE: Duration = Duration::from_millis(100);

/// Standard error of a command that must not block; `None` for all others, which write without a thread.
static ERRORS: Mutex<Option<Aside>> = Mutex::new(None);

/// From now on standard error does not block this process.
pub(super) fn begin() {
    let mut errors = ERRORS.lock().unwrap_or_else(PoisonError::into_inner);
    if errors.is_none() {
        // If no thread can be started, writes go on without one.
        *errors = Aside::new(io::stderr()).ok();
    }
}

/// Writes to standard error; with `to_end` it waits until everything is written.
pub(super) fn write(bytes: &[u8], to_end: bool) {
    let mut errors = ERRORS.lock().unwrap_or_else(PoisonError::into_inner);
    match errors.as_mut() {
        Some(aside) if to_end => aside.write(bytes, None),
        Some(aside) => {
            let patience = if aside.has_blocked { LESS_PATIENCE } else { PATIENCE };
            aside.write(bytes, Some(patience));
        }
        None => {
            // `Lasting` never fails.
            let _ = Lasting(io::stderr()).write_all(bytes);
        }
    }
}

/// A writer on a thread of its own.
#[derive(Debug)]
struct Aside {
    bytes: Sender<Vec<u8>>,
    written: Receiver<()>,
    /// The thread still writes the last line.
    is_busy: bool,
    /// A write took longer than the patience.
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
                // `Lasting` never fails.
                let _ = to.write_all(&bytes);
                if done.send(()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { bytes, written, is_busy: false, has_blocked: false, left_out: 0 })
    }

    /// Writes a line, or leaves it out. Without a patience it waits until the line is written.
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
        // A thread that ended counts as one that blocks for ever.
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
