//! Who made a change.
//!
//! In: a ring record, which names a process by number and start time, and the table of processes and executions that the kernel
//! programs fill. Out: the actor with up to eight ancestors, each checked by its start time. It also works after the process has ended;
//! procfs adds details while the process exists. It never guesses: an unknown field of an actor stays empty.

mod cache;
pub(crate) mod cgroup;
mod live;
mod table;

#[cfg(test)]
mod tests;

use crate::clock::Clock;
use cache::Cache;
use cgroup::{Cgroups, GroupPath};
use live::{Live, Procfs, split_arguments};
use sensor_common::{
    map::{Execution, Process, UNKNOWN_EXECUTION},
    record::ChangeRecord,
};
use sensor_model::{
    cgroup::Placement,
    host::stat::Stat,
    record::{Actor, FileIdentity},
};
use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};
pub use table::{NoTable, ProcessTable};

/// Most ancestors of an actor.
pub const MAXIMUM_ANCESTORS: usize = 8;

/// Most processes with a cached description.
const CACHED_PROCESSES: usize = 2048;

/// Most processes of Holdfast that it remembers. One writes at a time, and the records of its changes arrive at once.
const OWN_PROCESSES: usize = 64;

/// The user or group id of an ancestor that is known only by its process number.
pub const UNKNOWN_ID: u32 = u32::MAX;

/// Names of the host's users. `observation::Observer` implements it.
pub trait Users: std::fmt::Debug + Send + Sync {
    /// The name of a user; `None` if the host has none for the number.
    fn user(&self, uid: u32) -> Option<String>;
}

/// Procfs could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open procfs at {}: {source}", path.display())]
pub struct ProcfsError {
    /// The expected path.
    pub path: PathBuf,
    /// Why not.
    pub source: io::Error,
}

/// A process at a moment, with the facts from the record itself.
#[derive(Debug, Clone, Copy)]
struct Asked<'a> {
    tgid: u32,
    /// Boot-time nanoseconds; `None` for the process that has the number now.
    start_ns: Option<u64>,
    /// The moment, in boot-time nanoseconds.
    at_ns: u64,
    /// Its execution at that moment, if the record has it.
    exec_id: Option<u64>,
    /// The number of its control group at that moment.
    cgroup: Option<u64>,
    /// Its `task_struct.comm` at that moment.
    comm: Option<&'a [u8; 16]>,
}

/// An actor without ancestors, and its parent.
#[derive(Debug, Clone)]
struct Described {
    actor: Arc<Actor>,
    parent: Option<Parent>,
    /// Boot-time nanoseconds from which another search may find the actor's control group; `None` if nothing is missing.
    retry_ns: Option<u64>,
}

/// The parent of a process.
#[derive(Debug, Clone, Copy)]
struct Parent {
    tgid: u32,
    start_ns: Option<u64>,
    /// The parent's execution at the fork.
    exec_id: Option<u64>,
}

/// Thread group, start and control group of a process that is not in the table.
type UntabledKey = (u32, Option<u64>, Option<u64>);

/// Turns records into actors.
#[derive(Debug)]
pub struct Attributor {
    users: Arc<dyn Users>,
    procfs: Procfs,
    /// Boxed, because the agent that has it is held in futures.
    cgroups: Box<Cgroups>,
    own_tgid: u32,
    /// The daemon's start in ticks; `None` if procfs does not show the daemon. An earlier process may have had its number.
    own_start: Option<u64>,
    /// Holdfast's other processes, by number and start. No two processes of a boot have the same pair.
    own_processes: Vec<(u32, u64)>,
    /// Descriptions by thread group, start, execution and control group. They stay valid, except those that lack the control group.
    described: Cache<(u32, u64, u64, Option<u64>), Described>,
    /// Descriptions of processes that are not in the table, each with the process's `stat`. A description is valid while procfs shows
    /// the same `stat`, which changes at each exec.
    untabled: Cache<UntabledKey, (Stat, Described)>,
}

impl Attributor {
    /// An attributor for the processes of the procfs at `proc`, which must be the host's. User names come from `users`, and
    /// `own_tgid` is the daemon's own number there. The `clock` limits how often it searches for control groups.
    pub fn new(
        users: Arc<impl Users + 'static>,
        root: &Path,
        proc: &Path,
        own_tgid: u32,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ProcfsError> {
        let procfs = Procfs::open(proc).map_err(|source| ProcfsError { path: proc.to_owned(), source })?;
        let cgroups = Box::new(Cgroups::new(root, proc, clock));
        let own_start = procfs.process(own_tgid).map(|live| live.stat.start);
        Ok(Self {
            users,
            procfs,
            cgroups,
            own_tgid,
            own_start,
            own_processes: Vec::new(),
            described: Cache::new(CACHED_PROCESSES),
            untabled: Cache::new(CACHED_PROCESSES),
        })
    }

    /// Adds a running process as one of Holdfast's, also for records that arrive after its end. It gives the process's start in the form
    /// of records; `None` if the process has ended or is not in the table.
    pub fn add_own_process(&mut self, tgid: u32, table: &dyn ProcessTable) -> Option<u64> {
        let live = self.procfs.process(tgid)?;
        let known = table.process(tgid).map(|process| process.start_ns);
        let start_ns = known.filter(|start_ns| self.procfs.started_in_tick(&live, *start_ns))?;
        if self.own_processes.len() == OWN_PROCESSES {
            self.own_processes.remove(0);
        }
        self.own_processes.push((tgid, start_ns));
        Some(start_ns)
    }

    /// Whether a process of Holdfast made the change of a record.
    pub fn is_ours(&self, record: &ChangeRecord) -> bool {
        self.is_daemon(record.tgid, Some(record.start_ns))
            || self.own_processes.contains(&(record.tgid, record.start_ns))
    }

    /// Whether a number and a start time are those of the daemon's own process. Without a start time the process that has the
    /// number now is compared.
    fn is_daemon(&self, tgid: u32, start_ns: Option<u64>) -> bool {
        let start = start_ns.map(|start_ns| self.procfs.ticks(start_ns));
        tgid == self.own_tgid && start.zip(self.own_start).is_none_or(|(start, own)| start == own)
    }

    /// The actor of a record.
    pub fn attribute(&mut self, record: &ChangeRecord, table: &dyn ProcessTable) -> Actor {
        let asked = Asked {
            tgid: record.tgid,
            start_ns: Some(record.start_ns),
            at_ns: record.time_ns,
            exec_id: Some(record.exec_id).filter(|id| *id != 0),
            cgroup: Some(record.cgroup).filter(|cgroup| *cgroup != 0),
            comm: Some(&record.comm),
        };
        let described = self.describe(asked, table);
        let mut actor = Actor {
            uid: record.uid,
            gid: record.gid,
            login_uid: set(record.login_uid),
            login_user: set(record.login_uid).and_then(|uid| self.users.user(uid)),
            session: set(record.session),
            ..Actor::clone(&described.actor)
        };
        actor.holdfast |= self.is_ours(record);
        actor.ancestors = self.ancestors(described.parent, record.start_ns, table);
        actor
    }

    /// The actor of a process of which only the number is known, as in fanotify's events. `None` if the process has ended and is not in
    /// the table.
    pub fn attribute_pid(&mut self, tgid: u32, at_ns: u64, table: &dyn ProcessTable) -> Option<Actor> {
        let start_ns = table.process(tgid).map(|process| process.start_ns);
        if start_ns.is_none() && self.procfs.process(tgid).is_none() {
            return None;
        }
        let described =
            self.describe(Asked { tgid, start_ns, at_ns, exec_id: None, cgroup: None, comm: None }, table);
        let mut actor = Actor::clone(&described.actor);
        actor.ancestors = self.ancestors(described.parent, actor.start_ns, table);
        Some(actor)
    }

    fn ancestors(
        &mut self,
        mut parent: Option<Parent>,
        mut child_start_ns: u64,
        table: &dyn ProcessTable,
    ) -> Vec<Actor> {
        let mut ancestors = Vec::new();
        while let Some(Parent { tgid, start_ns, exec_id }) = parent.filter(|parent| parent.tgid != 0) {
            if ancestors.len() == MAXIMUM_ANCESTORS {
                break;
            }
            // Its program at the fork of the child.
            let asked = Asked { tgid, start_ns, at_ns: child_start_ns, exec_id, cgroup: None, comm: None };
            let described = self.describe(asked, table);
            if described.actor.start_ns > child_start_ns {
                // It is younger than its child, so another process has the parent's number now.
                break;
            }
            child_start_ns = described.actor.start_ns;
            parent = described.parent;
            ancestors.push(Actor::clone(&described.actor));
        }
        ancestors
    }

    /// Describes a process, from the cache if possible. A process of the table is cached by its execution. Any other is cached by its
    /// `stat`, which changes at each exec.
    fn describe(&mut self, asked: Asked<'_>, table: &dyn ProcessTable) -> Described {
        let entry = table
            .process(asked.tgid)
            .filter(|process| asked.start_ns.is_none_or(|start_ns| process.start_ns == start_ns));
        let start_ns = asked.start_ns.or(entry.map(|entry| entry.start_ns));
        let program = Program::at(entry, &asked, table);
        let exec_id = asked.exec_id.or(entry.map(|entry| entry.exec_id).filter(|_| program.is_current));
        // An unknown execution is not always the same one.
        let exec_id = exec_id.filter(|id| *id != UNKNOWN_EXECUTION);
        let key = start_ns.zip(exec_id).map(|(start_ns, id)| (asked.tgid, start_ns, id, asked.cgroup));
        if let Some(key) = key
            && let Some(described) = self.described.get(key)
            && !self.cgroups.is_due(described.retry_ns)
        {
            return described;
        }
        let live = match start_ns {
            Some(start_ns) => self.procfs.started_at(asked.tgid, start_ns),
            None => self.procfs.process(asked.tgid),
        };
        // A description from procfs alone is invalid after the next exec, which the table does not show. One read of `stat` shows
        // it; the whole description takes many reads.
        let untabled = (asked.tgid, start_ns, asked.cgroup);
        let stat =
            live.as_ref().map(|live| &live.stat).filter(|stat| entry.is_none() && stat.shows_executions());
        if let (None, Some(stat)) = (key, stat)
            && let Some((_, described)) = self.untabled.get(untabled).filter(|(known, _)| known == stat)
            && !self.cgroups.is_due(described.retry_ns)
        {
            return described;
        }
        let described = self.put_together(asked, entry, start_ns, &program, live.as_ref(), table);
        match (key, stat) {
            (Some(key), _) => self.described.insert(key, described.clone()),
            (None, Some(stat)) => self.untabled.insert(untabled, (stat.clone(), described.clone())),
            (None, None) => {}
        }
        described
    }

    fn put_together(
        &mut self,
        asked: Asked<'_>,
        entry: Option<Process>,
        start_ns: Option<u64>,
        program: &Program,
        live: Option<&Live>,
        table: &dyn ProcessTable,
    ) -> Described {
        let execution = program.execution.as_ref();
        // If a live process has executed another program since, its procfs describes that one.
        let same = live.filter(|_| program.is_current);
        let owner = same.and_then(Live::owner).or(execution.map(|execution| (execution.uid, execution.gid)));
        let owner = owner.or(live.and_then(Live::owner));
        let (uid, gid) = owner.unwrap_or((UNKNOWN_ID, UNKNOWN_ID));
        let login_uid =
            live.and_then(Live::login_uid).or(execution.and_then(|execution| set(execution.login_uid)));
        let session = live.and_then(Live::session).or(execution.and_then(|execution| set(execution.session)));
        let (argv, argv_cut) = execution.map(arguments).or_else(|| same.map(Live::argv)).unwrap_or_default();
        let mut actor = Actor {
            pid: asked.tgid,
            start_ns: start_ns.or(live.map(|live| self.procfs.start_ns(live))).unwrap_or_default(),
            exe: same
                .and_then(|live| running(live, execution))
                .or(execution.and_then(|execution| text(&execution.filename))),
            exe_file: execution.map(executed).or_else(|| same.and_then(Live::exe_file)),
            argv,
            argv_cut,
            uid,
            gid,
            login_uid,
            login_user: login_uid.and_then(|uid| self.users.user(uid)),
            session,
            tty: execution.and_then(|execution| terminal(&execution.tty)).or(live.and_then(Live::terminal)),
            holdfast: self.is_daemon(asked.tgid, start_ns),
            ..Actor::default()
        };
        if actor.argv.is_empty() {
            // The same form as in ps: for a kernel thread, or a process of which only the name is known.
            let name = asked.comm.and_then(|comm| text(comm)).or(live.map(|live| live.stat.comm.clone()));
            actor.argv.extend(name.map(|name| format!("[{name}]")));
        }
        let retry_ns = self.place(&mut actor, asked.cgroup, execution, live, table);
        let parent = match entry {
            Some(entry) => Some(Parent {
                tgid: entry.parent_tgid,
                start_ns: Some(entry.parent_start_ns),
                exec_id: Some(entry.parent_exec_id).filter(|id| *id != 0),
            }),
            None => live.map(|live| Parent {
                tgid: live.stat.parent,
                start_ns: self.parent_start(live, table),
                exec_id: None,
            }),
        };
        Described { actor: Arc::new(actor), parent, retry_ns }
    }

    /// The start of a live process's parent; exact if the parent is in the table.
    fn parent_start(&self, live: &Live, table: &dyn ProcessTable) -> Option<u64> {
        let parent = self.procfs.process(live.stat.parent)?;
        let exact = table.process(live.stat.parent).map(|process| process.start_ns);
        exact
            .filter(|start_ns| self.procfs.started_in_tick(&parent, *start_ns))
            .or(Some(self.procfs.start_ns(&parent)))
    }

    /// Sets unit, slice, container and pod, by the control group. Gives the moment from which another search may find a group that it did
    /// not find.
    fn place(
        &mut self,
        actor: &mut Actor,
        cgroup: Option<u64>,
        execution: Option<&Execution>,
        live: Option<&Live>,
        table: &dyn ProcessTable,
    ) -> Option<u64> {
        let id = cgroup.or_else(|| execution.map(|execution| execution.cgroup)).unwrap_or_default();
        let GroupPath { path, retry_ns } = self.cgroups.path(id, live, table);
        let mut placement = path.as_deref().map(Placement::of_path).unwrap_or_default();
        // Another hierarchy may name the unit: systemd creates a unit's group only in hierarchies that need it. If a search is to come, the
        // process is in another group now.
        if !placement.is_specific()
            && retry_ns.is_none()
            && let Some(text) = live.and_then(Live::cgroup)
            && self.cgroups.may_be_in(&text, path.as_deref())
        {
            let other = Placement::of_proc(&text);
            if other.is_specific() || placement == Placement::default() {
                placement = other;
            }
        }
        actor.unit = placement.unit;
        actor.slice = placement.slice;
        actor.container_id = placement.container_id;
        actor.pod_uid = placement.pod_uid;
        retry_ns
    }
}

/// The last execution of a process before a moment.
#[derive(Debug)]
struct Program {
    execution: Option<Execution>,
    /// Whether the table shows no later execution.
    is_current: bool,
}

impl Program {
    fn at(entry: Option<Process>, asked: &Asked<'_>, table: &dyn ProcessTable) -> Self {
        let by_id = |id: u64| (id != 0).then(|| table.execution(id)).flatten().filter(|found| found.id == id);
        if let Some(id) = asked.exec_id {
            // The record names the execution, however many programs the process has executed since.
            return Self { execution: by_id(id), is_current: entry.is_some_and(|entry| entry.exec_id == id) };
        }
        let Some(entry) = entry else { return Self { execution: None, is_current: true } };
        match by_id(entry.exec_id) {
            Some(later) if later.at_ns > asked.at_ns => {
                // The process executed this one after the moment. Before that it ran its parent's program of the time of the fork.
                let parent =
                    table.process(entry.parent_tgid).filter(|it| it.start_ns == entry.parent_start_ns);
                let inherited = parent.and_then(|parent| by_id(parent.exec_id));
                let execution = inherited.filter(|inherited| inherited.at_ns <= entry.start_ns);
                Self { execution, is_current: false }
            }
            execution => Self { execution, is_current: true },
        }
    }
}

/// The path of a process's program, if it is the executed file. In the middle of an exec procfs shows the next program already, and the
/// table still the one before it.
fn running(live: &Live, execution: Option<&Execution>) -> Option<String> {
    // The path comes first: if the file is the executed one after that, no other program was there before.
    let path = live.exe()?;
    let Some(execution) = execution else { return Some(path) };
    live.exe_file().filter(|file| is_executed(file, execution)).map(|_| path)
}

/// Whether a file of procfs may be the executed one. The kernel program and procfs agree on the number of a device only for block devices:
/// btrfs and overlayfs show other numbers than `super_block.s_dev`.
fn is_executed(file: &FileIdentity, execution: &Execution) -> bool {
    // `MKDEV()`.
    let (major, minor) = (execution.file.dev >> 20, execution.file.dev & 0xf_ffff);
    let is_comparable = major != 0 && rustix::fs::major(file.device) != 0;
    file.inode == execution.file.ino && (!is_comparable || file.device == rustix::fs::makedev(major, minor))
}

/// The identity of the executed file.
fn executed(execution: &Execution) -> FileIdentity {
    FileIdentity {
        device: u64::from(execution.file.dev),
        inode: execution.file.ino,
        volume: execution.file.volume,
        generation: Some(execution.generation),
    }
}

/// The stored arguments, and whether there were more.
fn arguments(execution: &Execution) -> (Vec<String>, bool) {
    let length = usize::try_from(execution.argv_length).unwrap_or(usize::MAX).min(execution.argv.len());
    let (argv, cut) = split_arguments(&execution.argv[..length]);
    (argv, cut || execution.argv_cut != 0)
}

/// A terminal's name from the kernel, which calls the device `pts/0` by the name `pts0`.
fn terminal(bytes: &[u8]) -> Option<String> {
    let name = text(bytes)?;
    let number = name.strip_prefix("pts").filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    Some(number.map_or_else(|| name.clone(), |number| format!("pts/{number}")))
}

/// The text of a zero-padded field; `None` when it is empty.
fn text(bytes: &[u8]) -> Option<String> {
    let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    (length > 0).then(|| String::from_utf8_lossy(&bytes[..length]).into_owned())
}

/// An audit id, unless it is unset.
fn set(id: u32) -> Option<u32> {
    (id != u32::MAX).then_some(id)
}
