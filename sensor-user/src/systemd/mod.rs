//! States of units, from the running systemd.
//!
//! In: a unit's name. Out: its state from the manager, which applies presets, generators and the rules of its own version. `None` if no
//! manager answers (a bare guest, a container without the bus, a manager that hangs). It never starts, stops or enables a unit.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::{Instant, timeout};
use zbus::{Connection, connection::Builder, fdo};
use zbus_systemd::systemd1::ManagerProxy;

/// systemd's own socket. Root can use it before and without a bus.
pub(crate) const PRIVATE_SOCKET: &str = "run/systemd/private";

/// The system bus.
const BUS_SOCKET: &str = "run/dbus/system_bus_socket";

/// How long a question waits for the manager. Detection continues without an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Pause after a failed attempt to reach the manager.
const RETRY: Duration = Duration::from_secs(30);

/// Asks for states of units over one connection.
#[derive(Debug)]
pub struct UnitStates {
    root: PathBuf,
    manager: Option<ManagerProxy<'static>>,
    /// When the next attempt to connect may begin, after a failed one.
    retry_at: Option<Instant>,
}

impl UnitStates {
    /// The units of the host at `root`. It connects at the first question.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), manager: None, retry_at: None }
    }

    /// The manager's state of a unit file: `Some(None)` if the manager has no such unit, `None` if it gives no answer.
    pub async fn state(&mut self, name: &str) -> Option<Option<String>> {
        loop {
            let was_connected = self.manager.is_some();
            let manager = self.asked().await?;
            match timeout(PATIENCE, manager.get_unit_file_state(name.to_owned())).await {
                Ok(Ok(state)) => return Some(Some(state).filter(|state| !state.is_empty())),
                Ok(Err(error)) if is_no_such_unit(&error) => return Some(None),
                // The manager has no answer for this unit, for example because of a loop of links. The links show its state.
                Ok(Err(error)) if is_about_the_unit(&error) => return None,
                // An old connection may have ended since its last use. It does not retry a new one, which would end again.
                Ok(Err(_)) if was_connected => self.manager = None,
                Ok(Err(error)) => {
                    self.lose(&error.to_string());
                    return None;
                }
                Err(_) => {
                    self.lose("no answer in time");
                    return None;
                }
            }
        }
    }

    /// The manager, for changes; over the bus if one runs. On its own socket systemd signals a reload with a sender that zbus refuses
    /// as a name, which ends the connection.
    pub(crate) async fn manager(&mut self) -> Option<ManagerProxy<'static>> {
        let address = format!("unix:path={}", self.root.join(BUS_SOCKET).display());
        let on_the_bus = async { ManagerProxy::new(&bus(&address).await?).await };
        if let Ok(Ok(manager)) = timeout(PATIENCE, on_the_bus).await {
            return Some(manager);
        }
        self.asked().await
    }

    /// The manager, for questions over one connection.
    async fn asked(&mut self) -> Option<ManagerProxy<'static>> {
        if let Some(manager) = &self.manager {
            return Some(manager.clone());
        }
        if self.retry_at.is_some_and(|at| Instant::now() < at) {
            return None;
        }
        match timeout(PATIENCE, connect(&self.root)).await {
            Ok(Ok(manager)) => {
                self.retry_at = None;
                self.manager = Some(manager.clone());
                Some(manager)
            }
            Ok(Err(error)) => {
                self.lose(&error.to_string());
                None
            }
            Err(_) => {
                self.lose("no connection in time");
                None
            }
        }
    }

    fn lose(&mut self, reason: &str) {
        tracing::info!(reason, "systemd does not answer: states of units come from links.");
        self.manager = None;
        self.retry_at = Some(Instant::now() + RETRY);
    }
}

/// Whether the manager reports that it has no such unit file.
fn is_no_such_unit(error: &zbus::Error) -> bool {
    match error {
        zbus::Error::FDO(error) => matches!(**error, fdo::Error::FileNotFound(_)),
        zbus::Error::MethodError(name, _, _) => name.as_str() == "org.freedesktop.systemd1.NoSuchUnit",
        _ => false,
    }
}

/// Whether the manager itself answered, so that it can answer for other units.
fn is_about_the_unit(error: &zbus::Error) -> bool {
    match error {
        zbus::Error::MethodError(..) => true,
        zbus::Error::FDO(error) => {
            matches!(**error, fdo::Error::Failed(_) | fdo::Error::InvalidArgs(_) | fdo::Error::IOError(_))
        }
        _ => false,
    }
}

/// Connects over the bus if possible. On its own socket systemd signals every job with a sender that zbus refuses as a name.
/// This ends the connection. Early in a boot no bus runs, and a bus may hang.
async fn connect(root: &Path) -> zbus::Result<ManagerProxy<'static>> {
    let address = |socket: &str| format!("unix:path={}", root.join(socket).display());
    let connection = match timeout(PATIENCE / 2, bus(&address(BUS_SOCKET))).await {
        Ok(Ok(connection)) => connection,
        // This socket is peer to peer, so no bus answers the `Hello` of a client.
        Ok(Err(_)) | Err(_) => Builder::address(address(PRIVATE_SOCKET).as_str()).p2p().build().await?,
    };
    ManagerProxy::new(&connection).await
}

async fn bus(address: &str) -> zbus::Result<Connection> {
    Builder::address(address).build().await
}
