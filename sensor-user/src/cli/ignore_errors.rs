//! A writer without errors.

use std::io::{self, Write};

/// A writer that ignores errors: a closed pipe or a full disk must not stop an apply. The print macros of the standard library
/// panic instead.
#[derive(Debug)]
pub(super) struct IgnoreErrors<W>(pub(super) W);

impl<W: Write> Write for IgnoreErrors<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            written => Ok(written.unwrap_or(bytes.len())),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}
