//! What the running systemd says about units.
//!
//! In: a unit's expectation. Out: its observation with the state that the manager itself reports, so
//! that presets, generators and newer rules than ours are in it. Where no manager can be asked (a bare
//! guest, a container without the bus, a manager that hangs) the links on the disk tell, as
//! [`crate::observation`] reads them. It only asks; it never starts, stops or enables anything.

#[cfg(test)]
mod tests;

use crate::observation::{Observed, Observer, Served, worker};
use sensor_model::{
    expectation::{Expectation, Thing},
    observation::Observation,
};
use std::{
    collections::HashSet,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::time::{Instant, timeout};
use zbus::{Connection, connection::Builder, fdo};
use zbus_systemd::systemd1::ManagerProxy;

/// systemd's own socket: it works before and without a bus, for root.
const PRIVATE_SOCKET: &str = "run/systemd/private";

/// The system bus.
const BUS_SOCKET: &str = "run/dbus/system_bus_socket";

/// A manager that does not answer by then is not waited for: detection goes on without it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Pause after a failed attempt to reach the manager.
const RETRY: Duration = Duration::from_secs(30);

/// Who told the states of units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitSource {
    /// The manager, over its socket or the bus.
    Manager,
    /// The links on the disk.
    Links,
}

/// Asks for states of units, over a connection that is kept.
#[derive(Debug)]
pub struct UnitStates {
    observer: Arc<Observer>,
    root: PathBuf,
    manager: Option<ManagerProxy<'static>>,
    /// When reaching the manager may be tried again.
    retry_at: Option<Instant>,
    /// File systems that did not answer, while it is waited for those that a server answers for.
    hung: Option<HashSet<Served>>,
}

impl UnitStates {
    /// Units of the host at `root`. Nothing is connected before the first question.
    pub fn new(observer: Arc<Observer>, root: &Path) -> Self {
        Self { observer, root: root.to_owned(), manager: None, retry_at: None, hung: None }
    }

    /// From now on it waits for file systems that a server answers for, a few seconds for each.
    pub fn wait_for_servers(&mut self) {
        self.hung.get_or_insert_default();
    }

    /// Has a process look at what the observer may not touch.
    fn ask(&mut self, served: Served, expectation: &Expectation) -> Observation {
        let hung = self.hung.get_or_insert_default();
        let path = expectation.thing.path();
        let asked = if hung.contains(&served) {
            Err(io::ErrorKind::TimedOut.into())
        } else {
            worker::ask(&self.root, expectation, worker::patience(expectation))
        };
        asked.unwrap_or_else(|error| {
            hung.insert(served);
            let reason = match error.kind() {
                io::ErrorKind::TimedOut => "its file system does not answer".to_owned(),
                _ => format!("the process that looks at it failed: {error}"),
            };
            Observation::Unreadable { error: format!("{}: {reason}", path.display()) }
        })
    }

    /// Looks at a unit: links through the observer, and the state from the manager where it answers.
    /// Things that are no units are left to the observer altogether.
    pub async fn observe(&mut self, expectation: &Expectation) -> (Observed, UnitSource) {
        let mut observed = self.observer.observe(expectation);
        if let (Some(served), Some(_)) = (observed.served, &self.hung) {
            observed.observation = self.ask(served, expectation);
        }
        let mut source = UnitSource::Links;
        if let (Thing::Unit { name }, Observation::Unit(unit)) =
            (&expectation.thing, &mut observed.observation)
            && let Some(state) = self.state(name).await
        {
            unit.file_state = state;
            source = UnitSource::Manager;
        }
        (observed, source)
    }

    /// The manager's state of a unit file: `Some(None)` when it knows no such unit, `None` when the
    /// manager could not be asked.
    pub async fn state(&mut self, name: &str) -> Option<Option<String>> {
        loop {
            let was_connected = self.manager.is_some();
            let manager = self.asked().await?;
            match timeout(PATIENCE, manager.get_unit_file_state(name.to_owned())).await {
                Ok(Ok(state)) => return Some(Some(state).filter(|state| !state.is_empty())),
                Ok(Err(error)) if is_no_such_unit(&error) => return Some(None),
                // It answered, but not for this unit (a loop of links, say): the links are told as they are.
                Ok(Err(error)) if is_about_the_unit(&error) => return None,
                // A connection that was kept may have ended since; a new one that ends at once is no use.
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

    /// The manager for those who want something done. Over the bus where there is one: once systemd reads its units
    /// again it says so on its own socket, as a sender that zbus takes for no name, and that ends the connection.
    pub(crate) async fn manager(&mut self) -> Option<ManagerProxy<'static>> {
        let address = format!("unix:path={}", self.root.join(BUS_SOCKET).display());
        let on_the_bus = async { ManagerProxy::new(&bus(&address).await?).await };
        if let Ok(Ok(manager)) = timeout(PATIENCE, on_the_bus).await {
            return Some(manager);
        }
        self.asked().await
    }

    /// The manager for questions, over a connection that is kept.
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
        tracing::info!(reason, "systemd cannot be asked; unit states come from links");
        self.manager = None;
        self.retry_at = Some(Instant::now() + RETRY);
    }
}

/// Whether the manager says that it has no such unit file.
fn is_no_such_unit(error: &zbus::Error) -> bool {
    match error {
        zbus::Error::FDO(error) => matches!(**error, fdo::Error::FileNotFound(_)),
        zbus::Error::MethodError(name, _, _) => name.as_str() == "org.freedesktop.systemd1.NoSuchUnit",
        _ => false,
    }
}

/// Whether the manager itself answered, so that asking it for other units may go on.
fn is_about_the_unit(error: &zbus::Error) -> bool {
    match error {
        zbus::Error::MethodError(..) => true,
        zbus::Error::FDO(error) => {
            matches!(**error, fdo::Error::Failed(_) | fdo::Error::InvalidArgs(_) | fdo::Error::IOError(_))
        }
        _ => false,
    }
}

/// The bus first: on its own socket systemd tells of every job, as a sender that zbus takes for no name, and that ends
/// the connection. Early in a boot there is no bus yet, and one that hangs is not waited for.
async fn connect(root: &Path) -> zbus::Result<ManagerProxy<'static>> {
    let address = |socket: &str| format!("unix:path={}", root.join(socket).display());
    let connection = match timeout(PATIENCE / 2, bus(&address(BUS_SOCKET))).await {
        Ok(Ok(connection)) => connection,
        // That socket talks peer to peer: there is no bus that would answer a greeting.
        Ok(Err(_)) | Err(_) => Builder::address(address(PRIVATE_SOCKET).as_str()).p2p().build().await?,
    };
    ManagerProxy::new(&connection).await
}

async fn bus(address: &str) -> zbus::Result<Connection> {
    Builder::address(address).build().await
}
