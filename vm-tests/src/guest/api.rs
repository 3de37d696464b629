//! Objects of the API server, read through `kubectl proxy` on the host.
//!
//! In: a path of the API. Out: the object. A start of kubectl takes seconds in an emulated guest, and a wait that starts it again and again
//! slows kubelet and the containers. A request takes milliseconds.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// The host's loopback, from inside the guest.
pub const HOST: &str = "10.0.2.2";
/// The file with the port of `kubectl proxy` on the host's loopback.
pub const PROXY: &str = "/etc/kubernetes/proxy";
/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(30);

/// The object at a path of the API.
pub fn get(path: &str) -> Result<Value> {
    serde_json::from_str(&body(path)?).with_context(|| format!("no JSON at {path}"))
}

/// The changes that a watch gives, whose path has a limit of its time.
pub fn watch(path: &str) -> Result<Vec<Value>> {
    let body = body(path)?;
    let changes = body.lines().map(serde_json::from_str).collect::<Result<_, _>>();
    changes.with_context(|| format!("no JSON at {path}: {body}"))
}

/// The answer to a request for a path.
fn body(path: &str) -> Result<String> {
    let mut stream = connect(PROXY)?;
    stream.set_read_timeout(Some(LIMIT))?;
    // An answer in HTTP/1.0 is not in chunks, and ends with the connection.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\nAccept: application/json\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).with_context(|| format!("no answer to GET {path}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("GET {path}: {answer}"))?;
    ensure!(head.lines().next().is_some_and(|line| line.contains(" 200 ")), "GET {path}: {body}");
    Ok(body.to_owned())
}

/// A connection to the port in a file, on the host's loopback.
pub fn connect(file: &str) -> Result<TcpStream> {
    let port = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    let address = format!("{HOST}:{}", port.trim());
    TcpStream::connect(&address).with_context(|| format!("cannot connect to {address}"))
}
