//! The source of changes: the rings of the kernel programs, or fanotify.
//!
//! In: a backend. Out: a descriptor that becomes readable when there are changes. It owns the rings or the fanotify group. `receive`
//! reads the changes.

use crate::fanotify::FanotifyBackend;
use crate::kernel::maps::Rings;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// The source from which the loop reads changes.
pub(super) enum Changes {
    Ring(Box<Rings>),
    Fanotify(Box<FanotifyBackend>),
    /// A test calls the loop's methods itself. These records arrive before the next verdict.
    #[cfg(test)]
    Test(Vec<(sensor_model::protocol::ThingId, super::episode::AttributedChange)>),
}

impl Changes {
    /// The descriptor that becomes readable when the ring of alarms has records. Fanotify has none.
    pub(super) fn alarms(&self) -> io::Result<Option<OwnedFd>> {
        match self {
            Self::Ring(ring) => ring.alarms().map(Some),
            Self::Fanotify(_) => Ok(None),
            #[cfg(test)]
            Self::Test(_) => Ok(None),
        }
    }
}

impl AsRawFd for Changes {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Ring(ring) => ring.as_raw_fd(),
            Self::Fanotify(backend) => backend.as_raw_fd(),
            #[cfg(test)]
            Self::Test(_) => -1,
        }
    }
}
