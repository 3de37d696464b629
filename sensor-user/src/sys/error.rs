//! Why a call to the kernel failed.

use nix::errno::Errno;
use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// The kernel refused an operation on a path.
#[derive(Debug)]
pub struct CallError {
    path: PathBuf,
    operation: &'static str,
    cause: io::Error,
}

impl CallError {
    /// `operation` completes the sentence: it could not … the path.
    pub(crate) fn new(path: &Path, operation: &'static str, cause: impl Into<io::Error>) -> Self {
        Self { path: path.to_owned(), operation, cause: cause.into() }
    }

    /// The kernel's number of the error; `None` where the standard library refused the operation itself.
    pub(crate) fn errno(&self) -> Option<Errno> {
        self.cause.raw_os_error().map(Errno::from_raw)
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: ", self.path.display(), self.operation)?;
        match self.errno() {
            Some(errno) => f.write_str(errno.desc()),
            None => self.cause.fmt(f),
        }
    }
}

impl std::error::Error for CallError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_path_operation_and_reason_and_no_number() {
        let refused = CallError::new(Path::new("/etc/a"), "open", Errno::EACCES);
        assert_eq!(refused.to_string(), "/etc/a: open: Permission denied");
        assert_eq!(refused.errno(), Some(Errno::EACCES));
        let other = CallError::new(Path::new("/etc/a"), "read", io::Error::other("no text"));
        assert_eq!((other.to_string().as_str(), other.errno()), ("/etc/a: read: no text", None));
    }
}
