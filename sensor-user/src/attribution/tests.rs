//! Actors from a table of ended processes, and from procfs.

use super::*;
use crate::clock::SystemClock;
use crate::observation::Observer;
use sensor_common::{
    limits::{ARGV_BYTES, FILENAME_BYTES, NAME_BYTES},
    map::{InodeKey, UNKNOWN_EXECUTION},
};
use std::{collections::HashMap, fs};
use tempfile::TempDir;

/// Larger than any process number of Linux, so no process has it.
pub(super) const DEAD: u32 = 1 << 30;

#[derive(Default)]
pub(super) struct Table {
    processes: HashMap<u32, Process>,
    executions: HashMap<u64, Execution>,
    groups: HashMap<u64, String>,
}

impl ProcessTable for Table {
    fn process(&self, tgid: u32) -> Option<Process> {
        self.processes.get(&tgid).copied()
    }
    fn execution(&self, exec_id: u64) -> Option<Execution> {
        self.executions.get(&exec_id).copied()
    }
    fn group(&self, id: u64) -> Option<String> {
        self.groups.get(&id).cloned()
    }
}

impl Table {
    /// One process that has ended.
    pub(super) fn one() -> Self {
        let mut table = Self::default();
        table.fork(0, DEAD, 10);
        table.exec(DEAD, 11, &["sh"]);
        table
    }

    fn fork(&mut self, parent: u32, child: u32, start_ns: u64) {
        let (parent_start_ns, exec_id) =
            self.processes.get(&parent).map_or((0, 0), |process| (process.start_ns, process.exec_id));
        let process = Process {
            start_ns,
            parent_start_ns,
            exec_id,
            parent_exec_id: exec_id,
            parent_tgid: parent,
            executions: 0,
        };
        self.processes.insert(child, process);
    }

    fn exec(&mut self, tgid: u32, at_ns: u64, argv: &[&str]) {
        let id = self.executions.len() as u64 + 1;
        let mut execution = Execution {
            id,
            at_ns,
            file: InodeKey::default(),
            generation: 0,
            padding: 0,
            cgroup: 0,
            mount_namespace: 0,
            pid_namespace: 0,
            uid: 0,
            gid: 0,
            login_uid: 1000,
            session: 3,
            tty: [0; 16],
            argv_length: 0,
            argv_cut: 0,
            filename: [0; FILENAME_BYTES],
            argv: [0; ARGV_BYTES],
        };
        let filename = format!("/usr/bin/{}", argv[0]);
        execution.filename[..filename.len()].copy_from_slice(filename.as_bytes());
        execution.tty[..4].copy_from_slice(b"pts0");
        let joined = format!("{}\0", argv.join("\0"));
        execution.argv[..joined.len()].copy_from_slice(joined.as_bytes());
        execution.argv_length = u32::try_from(joined.len()).unwrap();
        self.executions.insert(id, execution);
        self.processes.get_mut(&tgid).unwrap().exec_id = id;
    }
}

pub(super) fn record(tgid: u32, start_ns: u64, time_ns: u64) -> ChangeRecord {
    let mut comm = [0; 16];
    comm[..4].copy_from_slice(b"comm");
    ChangeRecord {
        time_ns,
        counter: 1,
        start_ns,
        cgroup: 0,
        detail: 0,
        ino: 1,
        exec_id: 0,
        id: 1,
        tgid,
        tid: tgid,
        uid: 0,
        gid: 0,
        login_uid: 1000,
        session: 3,
        mount_namespace: 0,
        dev: 1,
        volume: 0,
        generation: 1,
        operation: 2,
        flags: 0,
        name_length: 0,
        padding: 0,
        comm,
        name: [0; NAME_BYTES],
    }
}

struct Host {
    _root: TempDir,
    attributor: Attributor,
}

fn host() -> Host {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("etc")).unwrap();
    fs::write(root.path().join("etc/passwd"), "root:x:0:0::/:\nalice:x:1000:1000::/:\n").unwrap();
    let observer = Arc::new(Observer::new(root.path()).unwrap());
    let attributor =
        Attributor::new(observer, root.path(), Path::new("/proc"), std::process::id(), Arc::new(SystemClock))
            .unwrap();
    Host { _root: root, attributor }
}

fn exes(actor: &Actor) -> Vec<&str> {
    actor.ancestors.iter().map(|ancestor| ancestor.exe.as_deref().unwrap_or("?")).collect()
}

#[test]
fn an_ended_process_has_its_program_arguments_login_and_ancestors() {
    let mut table = Table::default();
    for (n, argv) in
        [&["sshd", "-D"][..], &["bash"], &["sudo", "tee", "/etc/x"], &["tee", "/etc/x"]].iter().enumerate()
    {
        let (tgid, start) = (DEAD + u32::try_from(n).unwrap(), 10 * (n as u64 + 1));
        table.fork(tgid - 1, tgid, start);
        table.exec(tgid, start + 1, argv);
    }
    let actor = host().attributor.attribute(&record(DEAD + 3, 40, 50), &table);
    assert_eq!(actor.exe.as_deref(), Some("/usr/bin/tee"));
    assert_eq!(actor.argv, ["tee", "/etc/x"]);
    assert_eq!((actor.pid, actor.start_ns), (DEAD + 3, 40));
    assert_eq!(
        (actor.login_uid, actor.login_user.as_deref(), actor.session),
        (Some(1000), Some("alice"), Some(3))
    );
    assert_eq!(actor.tty.as_deref(), Some("pts/0"));
    assert_eq!(exes(&actor)[..3], ["/usr/bin/sudo", "/usr/bin/bash", "/usr/bin/sshd"]);
    assert!(actor.ancestors.iter().all(|ancestor| ancestor.ancestors.is_empty() && !ancestor.holdfast));
}

#[test]
fn a_double_fork_resolves_to_the_program_that_forked() {
    let mut table = Table::default();
    table.fork(0, DEAD, 10);
    table.exec(DEAD, 11, &["daemonise"]);
    table.fork(DEAD, DEAD + 1, 20);
    table.fork(DEAD + 1, DEAD + 2, 30);
    let actor = host().attributor.attribute(&record(DEAD + 2, 30, 40), &table);
    assert_eq!(actor.exe.as_deref(), Some("/usr/bin/daemonise"));
    let pids: Vec<u32> = actor.ancestors.iter().map(|ancestor| ancestor.pid).collect();
    assert_eq!(pids, [DEAD + 1, DEAD]);
}

#[test]
fn a_change_made_before_an_exec_is_that_of_the_program_before_it() {
    // `cat x > managed`: the shell's child opens the file and only then becomes cat.
    let mut table = Table::default();
    table.fork(0, DEAD, 10);
    table.exec(DEAD, 11, &["bash"]);
    table.fork(DEAD, DEAD + 1, 20);
    table.exec(DEAD + 1, 40, &["cat", "x"]);
    let mut host = host();
    let before = host.attributor.attribute(&record(DEAD + 1, 20, 30), &table);
    assert_eq!(
        (before.exe.as_deref(), before.argv.as_slice()),
        (Some("/usr/bin/bash"), &["bash".to_owned()][..])
    );
    let after = host.attributor.attribute(&record(DEAD + 1, 20, 50), &table);
    assert_eq!(after.exe.as_deref(), Some("/usr/bin/cat"));
    // Also in the other order: the cache must not mix up the two.
    let before = host.attributor.attribute(&record(DEAD + 1, 20, 30), &table);
    assert_eq!(before.exe.as_deref(), Some("/usr/bin/bash"));
}

#[test]
fn a_program_that_no_kernel_program_stored_is_not_named_as_the_one_before_it() {
    let mut table = Table::default();
    table.fork(0, DEAD, 10);
    table.exec(DEAD, 11, &["bash"]);
    table.fork(DEAD, DEAD + 1, 20);
    let of = |comm: &[u8; 2]| {
        let mut record = ChangeRecord { exec_id: UNKNOWN_EXECUTION, ..record(DEAD + 1, 20, 50) };
        record.comm[..2].copy_from_slice(comm);
        record.comm[2..].fill(0);
        record
    };
    let mut host = host();
    for comm in [b"cp", b"mv"] {
        let actor = host.attributor.attribute(&of(comm), &table);
        let name = format!("[{}]", std::str::from_utf8(comm).unwrap());
        assert_eq!((actor.exe.as_deref(), actor.argv.as_slice()), (None, &[name][..]));
        assert_eq!(exes(&actor)[0], "/usr/bin/bash", "the parent is known");
    }
}

#[test]
fn a_later_process_with_the_same_number_is_not_the_actor() {
    let mut table = Table::default();
    table.fork(0, DEAD + 1, 5);
    table.fork(DEAD + 1, DEAD, 1000);
    table.exec(DEAD, 1001, &["innocent"]);
    let actor = host().attributor.attribute(&record(DEAD, 10, 20), &table);
    assert_eq!((actor.exe.as_deref(), actor.argv.as_slice()), (None, &["[comm]".to_owned()][..]));
    assert_eq!(actor.start_ns, 10);
    assert!(actor.ancestors.is_empty(), "the parent of another process: {:?}", actor.ancestors);
}

#[test]
fn of_a_parent_whose_number_another_process_has_only_the_number_is_known() {
    let mut table = Table::default();
    table.fork(0, DEAD, 10);
    table.fork(DEAD, DEAD + 1, 20);
    table.fork(0, DEAD, 500);
    table.exec(DEAD, 501, &["innocent"]);
    let actor = host().attributor.attribute(&record(DEAD + 1, 20, 30), &table);
    assert_eq!(actor.ancestors.len(), 1);
    let parent = &actor.ancestors[0];
    assert_eq!(
        (parent.pid, parent.start_ns, parent.exe.as_deref(), parent.uid),
        (DEAD, 10, None, UNKNOWN_ID)
    );
}

#[test]
fn an_overwritten_execution_is_not_in_the_actor() {
    let mut table = Table::default();
    table.fork(0, DEAD, 10);
    table.exec(DEAD, 11, &["gone"]);
    let mut later = table.executions[&1];
    later.id = 4097;
    table.executions.insert(1, later);
    let actor = host().attributor.attribute(&record(DEAD, 10, 20), &table);
    assert_eq!(actor.exe, None);
}

#[test]
fn an_actor_has_at_most_eight_ancestors_and_a_circle_ends() {
    let mut table = Table::default();
    table.fork(0, DEAD, 1);
    for n in 1..20 {
        table.fork(DEAD + n - 1, DEAD + n, u64::from(n) + 1);
    }
    let mut host = host();
    let actor = host.attributor.attribute(&record(DEAD + 19, 20, 30), &table);
    assert_eq!(actor.ancestors.len(), MAXIMUM_ANCESTORS);
    assert_eq!(actor.ancestors[0].pid, DEAD + 18);
    table.processes.get_mut(&DEAD).unwrap().parent_tgid = DEAD;
    table.processes.get_mut(&DEAD).unwrap().parent_start_ns = 1;
    let actor = host.attributor.attribute(&record(DEAD, 1, 30), &table);
    assert!(actor.ancestors.len() <= MAXIMUM_ANCESTORS);
}

#[test]
fn a_live_process_is_read_from_procfs_and_the_daemon_is_holdfast() {
    let mut host = host();
    let own = host.attributor.attribute_pid(std::process::id(), u64::MAX, &NoTable).unwrap();
    assert!(own.holdfast);
    assert_eq!(own.exe.as_deref(), std::env::current_exe().unwrap().to_str());
    assert_eq!(own.argv[0], std::env::args().next().unwrap());
    assert_eq!(own.uid, nix::unistd::geteuid().as_raw());
    assert_eq!(own.ancestors[0].pid, nix::unistd::getppid().as_raw().cast_unsigned());
    assert!(own.ancestors.iter().all(|ancestor| !ancestor.holdfast));
    let again = host.attributor.attribute(&record(own.pid, own.start_ns, u64::MAX), &NoTable);
    assert_eq!(again.exe, own.exe);
    let other = host.attributor.attribute(&record(own.pid, own.start_ns + 1_000_000_000, u64::MAX), &NoTable);
    assert_eq!(other.exe, None, "another start is another process");
}

#[test]
fn an_earlier_process_with_the_daemons_number_is_not_holdfast() {
    let mut host = host();
    let own = host.attributor.attribute_pid(std::process::id(), u64::MAX, &NoTable).unwrap();
    let mut table = Table::default();
    table.fork(1, own.pid, 1);
    table.exec(own.pid, 2, &["writer"]);
    let before = record(own.pid, 1, 3);
    assert!(!host.attributor.is_ours(&before));
    assert!(!host.attributor.attribute(&before, &table).holdfast);
    assert!(host.attributor.is_ours(&record(own.pid, own.start_ns, 3)));
}

#[test]
fn an_ended_process_in_no_table_gives_no_actor() {
    assert_eq!(host().attributor.attribute_pid(DEAD, 1, &NoTable), None);
}

#[test]
fn cut_and_empty_arguments_are_kept_and_marked() {
    let mut table = Table::default();
    table.fork(0, DEAD, 10);
    table.exec(DEAD, 11, &["sh", "-c", "", "x"]);
    let actor = host().attributor.attribute(&record(DEAD, 10, 20), &table);
    assert_eq!(actor.argv, ["sh", "-c", "", "x"]);
    assert!(!actor.argv_cut);
    let length = std::mem::replace(&mut table.executions.get_mut(&1).unwrap().argv_length, u32::MAX);
    let actor = host().attributor.attribute(&record(DEAD, 10, 20), &table);
    assert_eq!(actor.argv[..4], ["sh", "-c", "", "x"]);
    assert!(actor.argv_cut && actor.argv.len() < 1000, "as many as are kept");
    table.executions.get_mut(&1).unwrap().argv_length = length;
    table.executions.get_mut(&1).unwrap().argv_cut = 1;
    assert!(host().attributor.attribute(&record(DEAD, 10, 20), &table).argv_cut);
}

#[test]
fn the_records_group_gives_unit_container_and_pod() {
    use std::os::unix::fs::MetadataExt as _;
    const ID: &str = "4d1a5b0f3c2e9d8776655443322110ffeeddccbbaa99887766554433221100aa";
    const UID: &str = "2b6f1d3e-8c47-4d0a-9e51-7a3c5b8d9f10";
    let root = tempfile::tempdir().unwrap();
    let pod = format!("kubepods.slice/kubepods-pod{}.slice/crio-{ID}.scope", UID.replace('-', "_"));
    let group = root.path().join("sys/fs/cgroup").join(&pod);
    fs::create_dir_all(&group).unwrap();
    // A mount table that shows the hierarchy below the root, as in an agent's container.
    let table = root.path().join("proc/self");
    fs::create_dir_all(&table).unwrap();
    let point = root.path().join("sys/fs/cgroup");
    fs::write(table.join("mountinfo"), format!("31 30 0:27 / {} rw - cgroup2 cgroup2 rw\n", point.display()))
        .unwrap();
    let observer = Arc::new(Observer::new(root.path()).unwrap());
    let mut attributor =
        Attributor::new(observer, root.path(), &root.path().join("proc"), 1, Arc::new(SystemClock)).unwrap();
    let mut record = record(DEAD, 10, 20);
    record.cgroup = fs::metadata(&group).unwrap().ino();
    let actor = attributor.attribute(&record, &NoTable);
    assert_eq!(actor.container_id.as_deref(), Some(ID));
    assert_eq!(actor.pod_uid.as_deref(), Some(UID));
    assert_eq!(actor.unit, Some(format!("crio-{ID}.scope")));
    // The same after the container's end.
    fs::remove_dir(&group).unwrap();
    assert_eq!(attributor.attribute(&record, &NoTable).container_id.as_deref(), Some(ID));
}

#[test]
fn a_unit_without_a_group_of_version_1_comes_from_the_live_process_unless_that_has_moved() {
    let root = tempfile::tempdir().unwrap();
    let proc = root.path().join("proc");
    fs::create_dir_all(proc.join("self")).unwrap();
    let groups = "5:pids:/system.slice\n1:name=systemd:/system.slice/old.service\n";
    fs::write(proc.join("self/cgroup"), groups).unwrap();
    fs::write(proc.join("self/mountinfo"), "").unwrap();
    let process = proc.join(DEAD.to_string());
    fs::create_dir(&process).unwrap();
    fs::copy("/proc/self/stat", process.join("stat")).unwrap();
    let mut table = Table::default();
    table.groups.insert(1 << 40, "/system.slice".to_owned());
    table.groups.insert(1 << 41, "/system.slice/exact.service".to_owned());
    let unit = |live: &str, group| {
        fs::write(process.join("cgroup"), live).unwrap();
        let observer = Arc::new(Observer::new(root.path()).unwrap());
        let mut attributor = Attributor::new(observer, root.path(), &proc, 1, Arc::new(SystemClock)).unwrap();
        let start_ns = attributor.attribute_pid(DEAD, 1, &NoTable).unwrap().start_ns;
        let record = ChangeRecord { cgroup: group, ..record(DEAD, start_ns, start_ns + 1) };
        let actor = attributor.attribute(&record, &table);
        (actor.unit, actor.slice)
    };
    let slice = Some("system.slice".to_owned());
    assert_eq!(unit(groups, 1 << 40), (Some("old.service".to_owned()), slice.clone()));
    assert_eq!(unit(groups, 1 << 41), (Some("exact.service".to_owned()), slice.clone()));
    let moved = groups.replace("pids:/system.slice", "pids:/user.slice");
    assert_eq!(unit(&moved, 1 << 40), (None, slice));
}

#[test]
fn a_change_belongs_to_its_execution_however_many_follow() {
    let mut table = Table::default();
    table.fork(0, DEAD, 10);
    table.exec(DEAD, 11, &["first"]);
    let first = table.processes[&DEAD].exec_id;
    table.exec(DEAD, 30, &["second"]);
    table.exec(DEAD, 40, &["third"]);
    let mut host = host();
    let of_first = ChangeRecord { exec_id: first, ..record(DEAD, 10, 20) };
    assert_eq!(host.attributor.attribute(&of_first, &table).exe.as_deref(), Some("/usr/bin/first"));
    let third = ChangeRecord { exec_id: table.processes[&DEAD].exec_id, ..record(DEAD, 10, 50) };
    assert_eq!(host.attributor.attribute(&third, &table).exe.as_deref(), Some("/usr/bin/third"));
    // The cache does not mix up the two, and outlives the process.
    table.processes.clear();
    assert_eq!(host.attributor.attribute(&of_first, &table).exe.as_deref(), Some("/usr/bin/first"));
}

#[test]
fn the_executed_file_comes_from_the_execution_or_the_live_process() {
    use std::os::unix::fs::MetadataExt as _;
    let mut table = Table::default();
    table.fork(0, DEAD, 10);
    table.exec(DEAD, 11, &["sh"]);
    let execution = table.executions.get_mut(&1).unwrap();
    execution.file = InodeKey { ino: 7, dev: 8, volume: 6 };
    execution.generation = 9;
    let mut host = host();
    let of_execution = host.attributor.attribute(&record(DEAD, 10, 20), &table).exe_file;
    assert_eq!(of_execution, Some(FileIdentity { device: 8, inode: 7, volume: 6, generation: Some(9) }));
    let own = fs::metadata("/proc/self/exe").unwrap();
    let live = host.attributor.attribute_pid(std::process::id(), u64::MAX, &NoTable).unwrap().exe_file;
    assert_eq!(live, Some(FileIdentity { device: own.dev(), inode: own.ino(), volume: 0, generation: None }));
}

#[test]
fn in_the_middle_of_an_exec_the_program_is_the_one_before_it() {
    let own = host().attributor.attribute_pid(std::process::id(), u64::MAX, &NoTable).unwrap();
    let mut table = Table::default();
    table.fork(0, own.pid, own.start_ns);
    table.exec(own.pid, own.start_ns + 1, &["before"]);
    let mut exe_with = |ino| {
        table.executions.get_mut(&1).unwrap().file = InodeKey { ino, dev: 0, volume: 0 };
        host().attributor.attribute(&record(own.pid, own.start_ns, u64::MAX), &table).exe
    };
    // The table still has the execution before, and procfs shows the next program.
    assert_eq!(exe_with(7).as_deref(), Some("/usr/bin/before"));
    assert_eq!(exe_with(own.exe_file.as_ref().unwrap().inode), own.exe);
    let mut execution = Table::one().executions[&1];
    execution.file = InodeKey { ino: 7, dev: 8 << 20 | 1, volume: 0 };
    let on = |major, minor| FileIdentity {
        device: rustix::fs::makedev(major, minor),
        inode: 7,
        volume: 0,
        generation: None,
    };
    assert!(is_executed(&on(8, 1), &execution) && !is_executed(&on(8, 2), &execution));
    assert!(is_executed(&on(0, 44), &execution), "procfs shows a number of btrfs or overlayfs");
}

#[test]
fn an_ancestor_has_its_program_of_the_fork_however_many_it_executed_since() {
    let mut table = Table::default();
    table.fork(0, DEAD, 10);
    table.exec(DEAD, 11, &["sudo"]);
    table.fork(DEAD, DEAD + 1, 20);
    table.exec(DEAD, 30, &["second"]);
    table.exec(DEAD, 40, &["third"]);
    let actor = host().attributor.attribute(&record(DEAD + 1, 20, 25), &table);
    assert_eq!(exes(&actor)[..1], ["/usr/bin/sudo"]);
}

#[test]
fn an_ended_unit_is_named_and_a_process_that_moved_has_its_earlier_group() {
    let mut table = Table::default();
    table.fork(0, DEAD, 10);
    table.exec(DEAD, 11, &["once"]);
    table.groups.insert(1 << 40, "/system.slice/run-1.service".to_owned());
    table.groups.insert(1 << 41, "/system.slice/run-2.service".to_owned());
    let mut host = host();
    for (group, unit) in [(1 << 40, "run-1.service"), (1 << 41, "run-2.service")] {
        let record = ChangeRecord { cgroup: group, ..record(DEAD, 10, 20) };
        assert_eq!(host.attributor.attribute(&record, &table).unit.as_deref(), Some(unit));
    }
}

#[test]
fn a_process_that_is_not_in_the_table_is_cached_until_its_next_exec() {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Command, Stdio};
    let mut host = host();
    let mut child = Command::new("sh")
        .args(["-c", "echo; read line; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut into, mut from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    let mut ask = || host.attributor.attribute_pid(child.id(), u64::MAX, &NoTable).unwrap();
    let (first, second) = (ask(), ask());
    assert_eq!(first, second);
    assert_eq!(first.argv[..2], ["sh", "-c"]);
    // The shell has become `cat`, which sends the line back.
    into.write_all(b"go\nback\n").unwrap();
    from.read_line(&mut line).unwrap();
    let third = ask();
    drop(into);
    child.wait().unwrap();
    assert_eq!(third.argv, ["cat"]);
    assert_eq!(third.start_ns, first.start_ns);
}
