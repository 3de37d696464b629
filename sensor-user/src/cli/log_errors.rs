//! How a command ends if its forensic log is not sound or cannot be read.

use super::{
    exit::{BadInput, IN_SYNC},
    output::Screen,
};
use crate::report::forensic;

/// Ends a command after its answer. If the log is not sound, the answer may be false, so the command fails.
///
/// # Errors
/// A log that is not sound, and those of the writer.
pub(super) fn refuse_unsound(doubt: Option<String>, screen: &mut Screen) -> anyhow::Result<u8> {
    let Some(doubt) = doubt else { return Ok(IN_SYNC) };
    screen.flush()?;
    anyhow::bail!("the log is not sound, so this answer may be false or not all of it: {doubt}")
}

/// Why a log cannot be read. If there is no log, `--log` is wrong.
pub(super) fn unreadable(error: forensic::ReadError) -> anyhow::Error {
    if error.is_missing() {
        return BadInput::wrap(anyhow::Error::from(error).context("--log"));
    }
    error.into()
}
