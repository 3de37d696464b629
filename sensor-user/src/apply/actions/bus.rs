//! The system bus of the host.
//!
//! In: the host's root. Out: connections to the bus below that root, and to no other. An apply to a root that is mounted
//! somewhere must not restart units of the host that it runs on. Each call has a limit.

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

/// Why no act can be run on the host at `root`; `None` where it has a bus.
pub(in crate::apply) fn missing(root: &Path) -> Option<String> {
    use std::os::unix::fs::FileTypeExt as _;
    let socket = socket(root);
    let is_there = std::fs::metadata(&socket).is_ok_and(|found| found.file_type().is_socket());
    (!is_there).then(|| {
        format!(
            "the plan has systemd's part in it, and the host at {} has no system bus ({} is not there); \
             `--no-acts` writes without it, for a root that is not running",
            root.display(),
            socket.display()
        )
    })
}

/// Connects to the bus of the host at `root`; neither that nor any call takes longer than `answer`.
///
/// # Errors
/// What kept it from that.
pub(super) async fn connect(root: &Path, answer: Duration) -> Result<Connection, String> {
    let building = async {
        let text = |error: zbus::Error| error.to_string();
        // By a handle: an address would take some characters of a path for its own.
        let stream = UnixStream::connect(socket(root)).await.and_then(UnixStream::into_std);
        let stream = stream.map_err(|error| error.to_string())?;
        Builder::unix_stream(stream).method_timeout(answer).build().await.map_err(text)
    };
    match timeout(answer, building).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(reason)) => Err(format!("the system bus does not answer: {reason}")),
        Err(_) => Err(format!("the system bus gave no answer within {} s", answer.as_secs())),
    }
}
