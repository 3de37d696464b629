//! The way from the API server on this machine to the kubelet of a guest, and the audit log for the guest.
//!
//! In: a port of the loopback that the emulator leads to the kubelet. Out: a proxy with which the API server connects instead of by the
//! node's address, which exists in the guest alone; a file of audit events, and a port at which the guest reads it. `kubectl exec`
//! and forwarded ports work with it. All of it ends with its value.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result};
use serde_json::json;

/// The files of a running proxy.
#[derive(Debug)]
pub(super) struct Egress {
    socket: PathBuf,
    /// The port at which the guest reads the audit log.
    pub(super) audit: u16,
    /// The API server's flags.
    pub(super) flags: Vec<String>,
    is_over: Arc<AtomicBool>,
}

impl Egress {
    /// Starts the proxy to the kubelet at `kubelet`, with its files in `folder`.
    pub(super) fn start(folder: &Path, kubelet: u16) -> Result<Self> {
        let (socket, log) = (folder.join("egress.sock"), folder.join("audit.log"));
        let transport = json!({ "uds": { "udsName": socket } });
        let connection = json!({ "proxyProtocol": "HTTPConnect", "transport": transport });
        let selector = json!({
            "apiVersion": "apiserver.k8s.io/v1beta1",
            "kind": "EgressSelectorConfiguration",
            "egressSelections": [{ "name": "cluster", "connection": connection }],
        });
        // What gives a user a process in a pod.
        let resources = ["pods/exec", "pods/attach", "pods/ephemeralcontainers"];
        let recorded = json!({ "level": "Metadata", "resources": [{ "group": "", "resources": resources }] });
        let policy = json!({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [recorded, { "level": "None" }],
        });
        let write = |name: &str, content: &serde_json::Value| -> Result<PathBuf> {
            let path = folder.join(name);
            fs::write(&path, content.to_string())
                .with_context(|| format!("cannot write {}", path.display()))?;
            Ok(path)
        };
        let flags = vec![
            format!("--egress-selector-config-file={}", write("egress.json", &selector)?.display()),
            format!("--audit-policy-file={}", write("audit-policy.json", &policy)?.display()),
            format!("--audit-log-path={}", log.display()),
        ];
        let is_over = Arc::new(AtomicBool::new(false));
        let proxy =
            UnixListener::bind(&socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
        let over = Arc::clone(&is_over);
        thread::spawn(move || {
            for client in proxy.incoming().take_while(|_| !over.load(Ordering::SeqCst)).flatten() {
                thread::spawn(move || lead(client, kubelet));
            }
        });
        let reader = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("the loopback has no free port")?;
        let audit = reader.local_addr()?.port();
        let over = Arc::clone(&is_over);
        thread::spawn(move || {
            for mut guest in reader.incoming().take_while(|_| !over.load(Ordering::SeqCst)).flatten() {
                // Without a log the guest reads nothing, and its check fails.
                let _ = File::open(&log).and_then(|mut log| io::copy(&mut log, &mut guest));
            }
        });
        Ok(Self { socket, audit, flags, is_over })
    }
}

impl Drop for Egress {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // Wakes both threads.
        drop(UnixStream::connect(&self.socket));
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.audit)));
    }
}

/// Answers one `CONNECT`, and copies in both directions until both ends are closed. Whatever the API server names is the one kubelet.
fn lead(client: UnixStream, kubelet: u16) -> io::Result<()> {
    let mut from_client = BufReader::new(client.try_clone()?);
    let mut line = String::new();
    while from_client.read_line(&mut line)? > 2 {
        line.clear();
    }
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, kubelet))?;
    let (mut to_client, mut to_server, mut from_server) = (client, server.try_clone()?, server);
    to_client.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    let up = thread::spawn(move || {
        // The end of one direction is the end of its stream, however it came.
        let _ = io::copy(&mut from_client, &mut to_server);
        to_server.shutdown(Shutdown::Write)
    });
    let copied = io::copy(&mut from_server, &mut to_client);
    to_client.shutdown(Shutdown::Write)?;
    drop(up.join());
    copied.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn a_connection_reaches_the_kubelet_and_the_guest_reads_the_audit_log() {
        let folder = tempfile::tempdir().unwrap();
        let kubelet = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let egress = Egress::start(folder.path(), kubelet.local_addr().unwrap().port()).unwrap();
        let mut client = UnixStream::connect(&egress.socket).unwrap();
        client.write_all(b"CONNECT node-1:10250 HTTP/1.1\r\nHost: node-1:10250\r\n\r\nhello").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let (mut server, _) = kubelet.accept().unwrap();
        let mut heard = String::new();
        server.read_to_string(&mut heard).unwrap();
        server.write_all(b"world").unwrap();
        drop(server);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!((heard.as_str(), answer.as_str()), ("hello", "HTTP/1.1 200 OK\r\n\r\nworld"));

        fs::write(folder.path().join("audit.log"), "{}\n").unwrap();
        let mut log = String::new();
        TcpStream::connect((Ipv4Addr::LOCALHOST, egress.audit)).unwrap().read_to_string(&mut log).unwrap();
        assert_eq!(log, "{}\n");
    }
}
