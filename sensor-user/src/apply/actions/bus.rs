//! The system bus of the host.
//!
//! In: the host's root. Out: connections to the bus below that root, and to no other bus. So an apply to a mounted root never
//! restarts units of the host that it runs on. Each call has a limit.

use crate::apply::act_error::SystemdError;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{net::UnixStream, time::timeout};
use zbus::{Connection, connection::Builder};

/// The bus's socket, below the root.
const SOCKET: &str = "run/dbus/system_bus_socket";

/// The name that systemd owns on it.
pub(super) const SYSTEMD: &str = "org.freedesktop.systemd1";

fn socket(root: &Path) -> PathBuf {
    root.join(SOCKET)
}

/// The host has no system bus, so no act can run on it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the plan needs systemd, and the host at {} has no system bus ({} does not exist); if the root is not running, \
     `--no-acts` writes the files alone",
    root.display(),
    socket.display()
)]
pub(in crate::apply) struct NoBus {
    root: PathBuf,
    socket: PathBuf,
}

/// Checks that the host at `root` has a system bus.
pub(in crate::apply) fn check(root: &Path) -> Result<(), NoBus> {
    use std::os::unix::fs::FileTypeExt as _;
    let socket = socket(root);
    let exists = std::fs::metadata(&socket).is_ok_and(|found| found.file_type().is_socket());
    if exists { Ok(()) } else { Err(NoBus { root: root.to_owned(), socket }) }
}

/// Connects to the bus of the host at `root`. Neither this nor any call takes longer than `answer`.
///
/// # Errors
/// The bus does not exist, or does not answer in time.
pub(super) async fn connect(root: &Path, answer: Duration) -> Result<Connection, SystemdError> {
    let building = async {
        // A socket and no address: in an address some characters of a path have another meaning.
        let stream = UnixStream::connect(socket(root)).await.and_then(UnixStream::into_std);
        let stream = stream.map_err(SystemdError::Socket)?;
        Builder::unix_stream(stream).method_timeout(answer).build().await.map_err(SystemdError::Bus)
    };
    timeout(answer, building).await.unwrap_or(Err(SystemdError::BusTimeout(answer)))
}
