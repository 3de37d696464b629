//! The audit log of an API server on this machine, for a guest.
//!
//! In: what the log records. Out: the flags of the API server, and a port of the loopback at which the guest reads the log. The port
//! closes with its value.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::kube::installed::NAMESPACE;

/// The served log.
#[derive(Debug)]
pub(crate) struct AuditLog {
    /// The port at which the guest reads it.
    pub(crate) port: u16,
    /// The API server's flags.
    pub(crate) flags: [String; 2],
    is_over: Arc<AtomicBool>,
}

impl AuditLog {
    /// Serves a log of all requests of the reporters, each once.
    pub(crate) fn of_reporters(folder: &Path) -> Result<Self> {
        let user = format!("system:serviceaccount:{NAMESPACE}:holdfast-reporter");
        let stages = ["ResponseStarted", "ResponseComplete", "Panic"];
        Self::start(folder, &[json!({ "level": "Metadata", "users": [user], "omitStages": stages })])
    }

    /// Serves a log with its files in `folder`. Events that none of these rules of the audit policy names are not recorded.
    pub(crate) fn start(folder: &Path, recorded: &[Value]) -> Result<Self> {
        let path = folder.join("audit.log");
        let policy = folder.join("audit-policy.json");
        let rules = [recorded, &[json!({ "level": "None" })]].concat();
        let rules = json!({ "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules });
        fs::write(&policy, rules.to_string())
            .with_context(|| format!("cannot write {}", policy.display()))?;
        let flags = [
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", path.display()),
        ];
        let reader = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("the loopback has no free port")?;
        let port = reader.local_addr()?.port();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        thread::spawn(move || {
            for mut guest in reader.incoming().take_while(|_| !over.load(Ordering::SeqCst)).flatten() {
                // Without a log the guest reads nothing, and its check fails.
                let _ = File::open(&path).and_then(|mut log| io::copy(&mut log, &mut guest));
            }
        });
        Ok(Self { port, flags, is_over })
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // Wakes the thread.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_guest_reads_the_whole_log() {
        let folder = tempfile::tempdir().unwrap();
        let log = AuditLog::start(folder.path(), &[json!({ "level": "Metadata" })]).unwrap();
        fs::write(folder.path().join("audit.log"), "{}\n").unwrap();
        let mut read = String::new();
        TcpStream::connect((Ipv4Addr::LOCALHOST, log.port)).unwrap().read_to_string(&mut read).unwrap();
        assert_eq!(read, "{}\n");
    }
}
