//! Answers from a forensic log that is not sound, or that cannot be read.

use super::{
    exit::{BadInput, IN_SYNC},
    output::Screen,
};
use crate::report::forensic;
use std::io;

/// Ends an answer from a log that is not sound: the answer was given, and need not be true.
///
/// # Errors
/// Those of the writer.
pub(super) fn doubted(doubt: Option<String>, screen: &mut Screen) -> anyhow::Result<u8> {
    let Some(doubt) = doubt else { return Ok(IN_SYNC) };
    screen.flush()?;
    anyhow::bail!("the log is not sound, so this answer may be false or not all of it: {doubt}")
}

/// A log that cannot be read; without a log, `--log` is wrong.
pub(super) fn unreadable(error: forensic::ReadError) -> anyhow::Error {
    if error.source.kind() == io::ErrorKind::NotFound {
        return BadInput::wrap(anyhow::Error::from(error).context("--log"));
    }
    error.into()
}
