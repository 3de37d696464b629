//! The way from the API server on this machine to the kubelet of a guest.
//!
//! In: a port of the loopback that the emulator leads to the kubelet. Out: a proxy with which the API server connects instead of by the
//! node's address, which exists in the guest alone. `kubectl exec` and forwarded ports work with it. It ends with its value.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
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
    /// The API server's flag.
    pub(super) flag: String,
    is_over: Arc<AtomicBool>,
}

impl Egress {
    /// Starts the proxy to the kubelet at `kubelet`, with its files in `folder`.
    pub(super) fn start(folder: &Path, kubelet: u16) -> Result<Self> {
        let socket = folder.join("egress.sock");
        let transport = json!({ "uds": { "udsName": socket } });
        let connection = json!({ "proxyProtocol": "HTTPConnect", "transport": transport });
        let selector = json!({
            "apiVersion": "apiserver.k8s.io/v1beta1",
            "kind": "EgressSelectorConfiguration",
            "egressSelections": [{ "name": "cluster", "connection": connection }],
        });
        let config = folder.join("egress.json");
        fs::write(&config, selector.to_string())
            .with_context(|| format!("cannot write {}", config.display()))?;
        let flag = format!("--egress-selector-config-file={}", config.display());
        let is_over = Arc::new(AtomicBool::new(false));
        let proxy =
            UnixListener::bind(&socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
        let over = Arc::clone(&is_over);
        thread::spawn(move || {
            for client in proxy.incoming().take_while(|_| !over.load(Ordering::SeqCst)).flatten() {
                thread::spawn(move || lead(client, kubelet));
            }
        });
        Ok(Self { socket, flag, is_over })
    }
}

impl Drop for Egress {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // Wakes the thread.
        drop(UnixStream::connect(&self.socket));
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
    use std::net::TcpListener;

    #[test]
    fn a_connection_reaches_the_kubelet() {
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
    }
}
