//! Standard error that does not block an apply.
//!
//! In: lines for a writer that may block: a terminal stopped with Ctrl-S, or a full pipe without a reader. Out: a thread writes
//! them. The command waits for each write, so that lines keep their order, but only for [`PATIENCE`]. While the writer still
//! blocks, the command leaves lines out. It prints their number with the next line that is written.

use super::{ignore_errors::IgnoreErrors, text::count};
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
static ERRORS: Mutex<Option<WriterThread>> = Mutex::new(None);

/// Starts the thread. From now on standard error does not block this process.
pub(super) fn begin() {
    let mut errors = ERRORS.lock().unwrap_or_else(PoisonError::into_inner);
    if errors.is_none() {
        // Without a thread, a write may block.
        *errors = WriterThread::new(io::stderr()).ok();
    }
}

/// Writes to standard error; with `to_end` it waits until everything is written.
pub(super) fn write(bytes: &[u8], to_end: bool) {
    let mut errors = ERRORS.lock().unwrap_or_else(PoisonError::into_inner);
    match errors.as_mut() {
        Some(writer) if to_end => writer.write(bytes, None),
        Some(writer) => {
            let patience = if writer.has_blocked { LESS_PATIENCE } else { PATIENCE };
            writer.write(bytes, Some(patience));
        }
        None => {
            // `IgnoreErrors` never fails.
            let _ = IgnoreErrors(io::stderr()).write_all(bytes);
        }
    }
}

/// A writer on a thread of its own.
#[derive(Debug)]
struct WriterThread {
    bytes: Sender<Vec<u8>>,
    written: Receiver<()>,
    /// The thread still writes the last line.
    is_busy: bool,
    /// A write took longer than the patience.
    has_blocked: bool,
    left_out: usize,
}

impl WriterThread {
    fn new(to: impl Write + Send + 'static) -> io::Result<Self> {
        let (bytes, given) = mpsc::channel::<Vec<u8>>();
        let (done, written) = mpsc::channel();
        thread::Builder::new().name("output".to_owned()).spawn(move || {
            let mut to = IgnoreErrors(to);
            for bytes in given {
                // `IgnoreErrors` never fails.
                let _ = to.write_all(&bytes);
                if done.send(()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { bytes, written, is_busy: false, has_blocked: false, left_out: 0 })
    }

    /// Writes a line, or leaves it out. Without a `patience` it waits until the line is written.
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
            bytes.extend(format!("{lines} left out: the reader was too slow\n").into_bytes());
        }
        bytes.extend_from_slice(line);
        self.left_out = 0;
        // If the thread ended, the writer counts as blocked.
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

    /// Blocks in each write until the test sends something.
    struct Stopped {
        go_on: Receiver<()>,
        text: Arc<Mutex<String>>,
    }

    impl Write for Stopped {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // Once the test drops the sender, it does not block any more.
            let _ = self.go_on.recv();
            self.text.lock().unwrap().push_str(std::str::from_utf8(bytes).unwrap());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_blocked_writer_does_not_block_the_command_and_left_out_lines_are_counted() {
        let (sender, go_on) = mpsc::channel();
        let text = Arc::new(Mutex::new(String::new()));
        let mut writer = WriterThread::new(Stopped { go_on, text: Arc::clone(&text) }).unwrap();
        for line in ["a\n", "b\n", "c\n"] {
            writer.write(line.as_bytes(), Some(Duration::ZERO));
        }
        assert_eq!(*text.lock().unwrap(), "");
        drop(sender);
        writer.write(b"d\n", None);
        writer.write(b"e\n", None);
        assert_eq!(*text.lock().unwrap(), "a\n2 lines left out: the reader was too slow\nd\ne\n");
    }

    #[test]
    fn each_line_is_written_before_the_command_continues() {
        let (sender, go_on) = mpsc::channel();
        drop(sender);
        let text = Arc::new(Mutex::new(String::new()));
        let mut writer = WriterThread::new(Stopped { go_on, text: Arc::clone(&text) }).unwrap();
        let mut wanted = String::new();
        for number in 0..1000 {
            let line = format!("{number}\n");
            writer.write(line.as_bytes(), Some(PATIENCE));
            wanted.push_str(&line);
            assert_eq!(*text.lock().unwrap(), wanted);
        }
    }

    /// A pipe without a reader.
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
    fn a_pipe_without_a_reader_does_not_block_the_command() {
        let mut writer = WriterThread::new(Broken).unwrap();
        writer.write(b"a\n", None);
        writer.write(b"b\n", None);
        assert_eq!((writer.is_busy, writer.left_out), (false, 0));
    }
}
