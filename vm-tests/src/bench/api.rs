//! What the API server shows, as seen from the guest.
//!
//! In: ports on the host's loopback: that of `kubectl proxy`, and that of the audit log. Out: the objects of a watch, each with the
//! time at which the guest read it, and the requests of the reporter. The guest has one clock, and so has no difference of clocks to
//! subtract.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::guest::api::{PROXY, connect};
use crate::guest::kube::{AUDIT, HOST};
use crate::guest::shell;

/// The address of the guest, and its prefix.
const ADDRESS: &str = "10.0.2.15/24";

/// Gives the guest its address in the emulator's network.
pub(super) fn network() -> Result<()> {
    crate::guest::files::load_module("virtio_net")?;
    shell(&format!(
        "ip link set eth0 up && ip address add {ADDRESS} dev eth0 && ip route add default via {HOST}"
    ))
    .map(drop)
}

/// A watch on objects of one kind.
#[derive(Debug)]
pub(super) struct Watch {
    what: &'static str,
    objects: Receiver<(Instant, Value)>,
}

impl Watch {
    /// Starts a watch on the objects at a path of the API. The objects that are there come first. A watch that ends begins anew.
    pub(super) fn start(what: &'static str, path: &'static str) -> Result<Self> {
        let mut lines = watch(path)?;
        let (sender, objects) = channel();
        thread::spawn(move || {
            while let Some(why) = forward(lines, &sender) {
                eprintln!("the watch on {what} ended: {why}");
                lines = match watch(path) {
                    Ok(lines) => lines,
                    Err(error) => return eprintln!("{error:#}"),
                };
            }
        });
        Ok(Self { what, objects })
    }

    /// Waits for an object that is as wanted. Gives the time at which the guest read it.
    pub(super) fn until(&self, limit: Duration, is_so: impl Fn(&Value) -> bool) -> Result<Instant> {
        let end = Instant::now() + limit;
        let mut last = Value::Null;
        loop {
            match self.objects.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok((at, object)) if is_so(&object) => return Ok(at),
                Ok((_, object)) => last = object,
                Err(RecvTimeoutError::Disconnected) => bail!("the watch on {} ended", self.what),
                Err(RecvTimeoutError::Timeout) => bail!("gave up waiting for {}: {last}", self.what),
            }
        }
    }
}

/// A watch on the objects at a path of the API, after the first line of the answer.
fn watch(path: &str) -> Result<BufReader<TcpStream>> {
    let mut stream = connect(PROXY)?;
    // An answer in HTTP/1.0 is not in chunks.
    write!(stream, "GET {path}?watch=true HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut lines = BufReader::new(stream);
    let mut status = String::new();
    lines.read_line(&mut status)?;
    ensure!(status.contains(" 200 "), "{path}: {status}");
    Ok(lines)
}

/// Sends on the object of each line, and gives why the watch ended; `None` if nothing takes the objects any more.
fn forward(lines: BufReader<TcpStream>, objects: &Sender<(Instant, Value)>) -> Option<String> {
    for line in lines.lines().skip_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty())).skip(1) {
        let at = Instant::now();
        let event = line.map_err(|error| error.to_string());
        let event = event.and_then(|line| {
            serde_json::from_str::<Value>(&line).map_err(|error| format!("{error}: {line}"))
        });
        let mut event = match event {
            Ok(event) if event["type"] == "ERROR" => return Some(event.to_string()),
            Ok(event) => event,
            Err(error) => return Some(error),
        };
        if objects.send((at, event["object"].take())).is_err() {
            return None;
        }
    }
    Some("its connection was closed".to_owned())
}

/// The requests that the API server has received so far, by verb and resource. Its audit policy records those of the reporter alone.
pub(super) fn requests() -> Result<BTreeMap<String, u64>> {
    let mut log = String::new();
    connect(AUDIT)?.read_to_string(&mut log)?;
    let mut counted = BTreeMap::new();
    for line in log.lines() {
        let event: Value = serde_json::from_str(line).with_context(|| format!("audit log: {line}"))?;
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let object = &event["objectRef"];
        let parts = [word(&object["resource"]), word(&object["subresource"])];
        let resource = parts.join("/");
        let name = format!("{} {}", word(&event["verb"]), resource.trim_end_matches('/'));
        *counted.entry(name).or_insert(0) += 1;
    }
    Ok(counted)
}
