//! The users of the API server behind changes that processes in pods made.
//!
//! In: changes of the forensic log; audit logs of the API servers, copied to this machine; the names of the kubelet's log files,
//! which tell a pod's name by its uid and a container's by its id. Out: for each change the users whose requests match. The audit
//! logs are read line by line, so their size does not matter.

use crate::report::forensic::PathChange;
use flate2::read::MultiGzDecoder;
use jiff::Timestamp;
use sensor_model::{
    audit::{AuditedRequests, PodName, PodProcess, UserMatch, entered_container, pod_of},
    record::Actor,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, BufRead, BufReader, Read as _, Seek as _},
    path::{Path, PathBuf},
};

/// Longest line that is read, in bytes. An event at the level `RequestResponse` has two objects, each up to 3 MiB in a request.
const MAXIMUM_LINE: u64 = 16 << 20;

/// The first bytes of a file that gzip compressed.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A text that each event about a pod has. Other lines are not parsed.
const ABOUT_PODS: &[u8] = b"\"pods\"";

/// A text that each event has.
const EVENT: &[u8] = b"audit.k8s.io/";

/// Where users are found.
#[derive(Debug, Clone, Copy)]
pub struct AuditLogs<'a> {
    /// The audit logs: one JSON event in each line, also compressed with gzip.
    pub files: &'a [PathBuf],
    /// The directory with the kubelet's `pods` and `containers`.
    pub pod_logs: &'a Path,
}

/// What the audit logs do not tell.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AuditNotes {
    /// Uids of pods whose name was not found.
    pub unnamed_pods: BTreeSet<String>,
    /// How many lines are no audit events.
    pub skipped: u64,
}

/// Why an audit log gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum AuditLogError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is a directory, a device or a pipe.
    #[error("{} is not a regular file; copy the audit log to this machine first", path.display())]
    NoFile {
        /// The path.
        path: PathBuf,
    },
    /// No line is an event.
    #[error("{} has no audit event; it must be the file of kube-apiserver's --audit-log-path, in the format json", path.display())]
    NoEvent {
        /// The file.
        path: PathBuf,
    },
}

/// A process in a pod, before the pod's name is known.
struct Inside<'a> {
    uid: &'a str,
    container_id: Option<&'a str>,
    started: Timestamp,
    changed: Timestamp,
}

impl AuditLogs<'_> {
    /// Sets the users of each change. A change outside pods gets none.
    ///
    /// # Errors
    /// A file that cannot be read, or has no audit event.
    pub fn name_users(&self, changes: &mut [PathChange]) -> Result<AuditNotes, AuditLogError> {
        let uids: BTreeSet<String> =
            changes.iter().flat_map(inside_pods).map(|process| process.uid.to_owned()).collect();
        let mut pods = pods_by_uid(&self.pod_logs.join("pods"));
        pods.retain(|uid, _| uids.contains(uid));
        if pods.len() < uids.len() {
            self.lines(&mut |line| {
                // Only lines with one of the uids are parsed.
                let has_uid = uids.iter().any(|uid| line.contains(uid));
                if let Some((uid, pod)) = has_uid.then(|| pod_of(line)).flatten()
                    && uids.contains(&uid)
                {
                    pods.entry(uid).or_insert(pod);
                }
                true
            })?;
        }
        let mut requests = AuditedRequests::about(pods.values().cloned());
        let skipped = self.lines(&mut |line| requests.read(line))?;
        let containers = containers_by_id(&self.pod_logs.join("containers"));
        for change in changes {
            let mut users: Vec<UserMatch> = Vec::new();
            for process in inside_pods(change) {
                let Some(pod) = pods.get(process.uid).cloned() else { continue };
                let container = process.container_id.and_then(|id| containers.get(id)).cloned();
                let found = requests.users(&PodProcess {
                    pod,
                    container,
                    started: process.started,
                    changed: process.changed,
                });
                for user in found {
                    if users.iter().all(|known| known.audit_id != user.audit_id) {
                        users.push(user);
                    }
                }
            }
            change.users = Some(users);
        }
        let unnamed_pods = uids.into_iter().filter(|uid| !pods.contains_key(uid)).collect();
        Ok(AuditNotes { unnamed_pods, skipped })
    }

    /// Calls `take` with each line about pods; it gives whether the line is an event. Gives the number of lines that are none.
    fn lines(&self, take: &mut dyn FnMut(&str) -> bool) -> Result<u64, AuditLogError> {
        let mut skipped = 0;
        for path in self.files {
            let failed = |source| AuditLogError::Read { path: path.clone(), source };
            let mut reader = open(path)?;
            let (mut line, mut has_event) = (Vec::new(), false);
            loop {
                line.clear();
                let read = reader.by_ref().take(MAXIMUM_LINE).read_until(b'\n', &mut line).map_err(failed)?;
                if read == 0 {
                    break;
                }
                if line.trim_ascii().is_empty() {
                    continue;
                }
                let is_event = if contains(&line, ABOUT_PODS) {
                    std::str::from_utf8(&line).is_ok_and(&mut *take)
                } else {
                    contains(&line, EVENT)
                };
                has_event |= is_event;
                skipped += u64::from(!is_event);
            }
            if !has_event {
                return Err(AuditLogError::NoEvent { path: path.clone() });
            }
        }
        Ok(skipped)
    }
}

fn contains(line: &[u8], text: &[u8]) -> bool {
    line.windows(text.len()).any(|window| window == text)
}

/// Opens a file, and unpacks it if it is compressed.
fn open(path: &Path) -> Result<Box<dyn BufRead>, AuditLogError> {
    let failed = |source| AuditLogError::Read { path: path.to_owned(), source };
    // A pipe would block here, so the type is asked first.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(AuditLogError::NoFile { path: path.to_owned() });
    }
    let mut file = File::open(path).map_err(failed)?;
    let mut first = Vec::new();
    file.by_ref().take(GZIP.len() as u64).read_to_end(&mut first).map_err(failed)?;
    file.rewind().map_err(failed)?;
    Ok(if first == GZIP {
        Box::new(BufReader::new(MultiGzDecoder::new(BufReader::new(file))))
    } else {
        Box::new(BufReader::new(file))
    })
}

/// The processes in pods that made a change, the last one first.
fn inside_pods(change: &PathChange) -> impl Iterator<Item = Inside<'_>> {
    let changed: Option<Timestamp> = change.time.parse().ok();
    let is_last = |other: &&Actor| {
        change.actor.as_ref().is_none_or(|last| (last.pid, last.start_ns) != (other.pid, other.start_ns))
    };
    change.actor.iter().chain(change.actors.iter().filter(is_last)).filter_map(move |actor| {
        let changed = changed?;
        Some(Inside {
            uid: actor.pod_uid.as_deref()?,
            container_id: actor.container_id.as_deref(),
            started: entered_container(actor, changed, change.monotonic_ns),
            changed,
        })
    })
}

/// Names of pods by uid. The kubelet keeps a pod's logs in `NAMESPACE_NAME_UID`; none of the three has an underscore. A missing
/// directory names none.
fn pods_by_uid(directory: &Path) -> BTreeMap<String, PodName> {
    names_in(directory)
        .filter_map(|name| {
            let [namespace, name, uid] = name.split('_').collect::<Vec<_>>().try_into().ok()?;
            Some((uid.to_owned(), PodName { namespace: namespace.to_owned(), name: name.to_owned() }))
        })
        .collect()
}

/// Names of containers by id, from the kubelet's links `POD_NAMESPACE_CONTAINER-ID.log`.
fn containers_by_id(directory: &Path) -> BTreeMap<String, String> {
    names_in(directory)
        .filter_map(|link| {
            let (name, id) = link.strip_suffix(".log")?.rsplit_once('-')?;
            let (_, container) = name.rsplit_once('_')?;
            Some((id.to_owned(), container.to_owned()))
        })
        .collect()
}

fn names_in(directory: &Path) -> impl Iterator<Item = String> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
}
