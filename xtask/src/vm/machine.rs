//! A running emulator, with its console, its message port and its monitor.
//!
//! In: a QEMU command line without the ports. Out: the lines of both serial ports, a way to send the guest a line, and the
//! monitor. Dropping the value ends the emulator, also after an error.

use std::io::Write as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::lines;
use super::qmp::Monitor;

/// Longest time until a started QEMU has connected its ports.
const CONNECT: Duration = Duration::from_mins(1);

/// A running emulator.
#[derive(Debug)]
pub(super) struct Emulator {
    pub(super) child: Child,
    pub(super) lines: Receiver<String>,
    messages: Incoming,
    monitor: Incoming,
    opened: Option<Monitor>,
    port: Option<UnixStream>,
}

impl Emulator {
    /// Starts the emulator, with its sockets in `folder`.
    pub(super) fn start(command: &mut Command, folder: &Path) -> Result<Self> {
        let (sender, received) = lines::lines();
        let messages = Incoming::listen(folder.join("messages"), Some(sender.clone()))?;
        let monitor = Incoming::listen(folder.join("monitor"), None)?;
        let mut child = command
            .args(["-nodefaults", "-display", "none", "-serial", "stdio", "-chardev"])
            .arg(format!("socket,id=messages,path={}", messages.path.display()))
            .args(["-serial", "chardev:messages", "-qmp"])
            .arg(format!("unix:{}", monitor.path.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start QEMU")?;
        lines::read_lines(child.stdout.take().context("stdout was asked for")?, sender.clone());
        lines::read_lines(child.stderr.take().context("stderr was asked for")?, sender);
        Ok(Self { child, lines: received, messages, monitor, opened: None, port: None })
    }

    /// Sends the guest a line.
    pub(super) fn send(&mut self, line: &str) -> Result<()> {
        let port = match &mut self.port {
            Some(port) => port,
            none => none.insert(self.messages.stream()?),
        };
        writeln!(port, "{line}").context("cannot write to the message port")
    }

    /// The monitor.
    pub(super) fn monitor(&mut self) -> Result<&mut Monitor> {
        Ok(match &mut self.opened {
            Some(monitor) => monitor,
            none => none.insert(Monitor::open(self.monitor.stream()?)?),
        })
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A socket to which QEMU connects once.
#[derive(Debug)]
struct Incoming {
    path: PathBuf,
    streams: Receiver<UnixStream>,
}

impl Incoming {
    /// Waits for the connection in a thread of its own, which then reads lines if there is a receiver for them.
    fn listen(path: PathBuf, lines: Option<Sender<String>>) -> Result<Self> {
        let listener =
            UnixListener::bind(&path).with_context(|| format!("cannot listen on {}", path.display()))?;
        let (sender, streams) = channel();
        std::thread::spawn(move || {
            let Ok((stream, _)) = listener.accept() else { return };
            if let (Some(lines), Ok(reader)) = (lines, stream.try_clone()) {
                lines::read_lines(reader, lines);
            }
            // The receiver is gone if the emulator ended first.
            let _ = sender.send(stream);
        });
        Ok(Self { path, streams })
    }

    fn stream(&self) -> Result<UnixStream> {
        self.streams.recv_timeout(CONNECT).context("QEMU does not connect")
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // Wakes the thread, if QEMU never connected.
        drop(UnixStream::connect(&self.path));
    }
}
