//! Whether the Machine Config Operator's daemon manages the host. It writes the same files, and two writers would undo each other's
//! work.
//!
//! In: the host's processes and files. Out: whether Holdfast may write.

use super::request::{ApplyOptions, OperatorRule};
use crate::bounded;
use sensor_model::host::stat::{is_in_nested_pid_namespace, users};
use std::{fs, io::Read as _, os::unix::fs::MetadataExt as _, path::Path};

/// The program of the Machine Config Operator's daemon.
const MCO_DAEMON: &str = "machine-config-daemon";

/// Where that daemon keeps the config of its node.
const MCO_CONFIG: &str = "/etc/machine-config-daemon/currentconfig";

/// How many bytes of a process's command line are read.
const PROGRAM_BYTES: u64 = 4096;

/// The Machine Config Operator's daemon manages the host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OperatorDaemon {
    /// It runs.
    #[error(
        "{MCO_DAEMON} runs here (process {0}) and manages this node; Holdfast writes beside it only with --beside-mco"
    )]
    Runs(String),
    /// It may start at any time.
    #[error(
        "{MCO_CONFIG} exists: {MCO_DAEMON} manages this node and may start at any time, although it does not run now; if it \
         was removed for good, move that file away or apply with --beside-mco"
    )]
    MayStart,
}

/// The number of the process of the Machine Config Operator's daemon; `None` if it does not run on the host at `root`.
pub(super) fn running_operator(root: &Path) -> Option<String> {
    Mco { root, rule: OperatorRule::TakeOver }.running()
}

/// The check of one host.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mco<'a> {
    root: &'a Path,
    rule: OperatorRule,
}

impl<'a> Mco<'a> {
    /// For the host of the options, which may allow writing beside that daemon.
    pub(super) fn of(options: &'a ApplyOptions) -> Self {
        Self { root: &options.root, rule: options.operator }
    }

    /// Also allowed if the interrupted apply was allowed to.
    pub(super) fn or_allowed(self, is_allowed: bool) -> Self {
        Self { rule: if is_allowed { OperatorRule::Beside } else { self.rule }, ..self }
    }

    /// Checks that Holdfast may write now. Callers check again before each apply, because that daemon may start at any time.
    pub(super) fn check(self) -> Result<(), OperatorDaemon> {
        if self.rule == OperatorRule::Beside {
            return Ok(());
        }
        match self.running() {
            Some(process) => Err(OperatorDaemon::Runs(process)),
            None if self.rule == OperatorRule::Never && self.may_start() => Err(OperatorDaemon::MayStart),
            None => Ok(()),
        }
    }

    /// The number of the daemon's process.
    fn running(self) -> Option<String> {
        let processes = self.root.join("proc");
        // Any user can start a process with this name. The daemon runs as root, as process 1 does.
        let root_user = fs::metadata(processes.join("1")).ok().map(|first| first.uid());
        for entry in fs::read_dir(processes).ok()?.flatten() {
            let pid = entry.file_name();
            if !pid.to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()) {
                continue;
            }
            let is_of_root = |user| entry.metadata().is_ok_and(|process| process.uid() == user);
            if !root_user.is_none_or(is_of_root) {
                continue;
            }
            // A user can own the directory of a process to root, and make a reader of its arguments wait for ever.
            let status = bounded::read(&entry.path().join("status"), bounded::UNIT).unwrap_or_default();
            if users(&status).is_some_and(|users| users.iter().any(|user| Some(*user) != root_user)) {
                continue;
            }
            // The daemon's pod has `hostPID`. Root of another container can start a program of any name.
            if is_in_nested_pid_namespace(&status) == Some(true) {
                continue;
            }
            // Only the program's path: a user can make the arguments as long as they like.
            let mut command = Vec::new();
            let opened = fs::File::open(entry.path().join("cmdline"));
            let _ = opened.and_then(|file| file.take(PROGRAM_BYTES).read_to_end(&mut command));
            let program = command.split(|byte| *byte == 0).next().unwrap_or_default();
            let program = String::from_utf8_lossy(program);
            let name = Path::new(program.as_ref()).file_name().and_then(|name| name.to_str());
            // Its image has one program for each release of RHEL: `machine-config-daemon.rhel9`.
            if name.is_some_and(|name| name.split('.').next() == Some(MCO_DAEMON)) {
                return Some(pid.to_string_lossy().into_owned());
            }
        }
        None
    }

    /// Whether the daemon may start. A host that it managed in the past may still have its file.
    fn may_start(self) -> bool {
        self.root.join(MCO_CONFIG.trim_start_matches('/')).symlink_metadata().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn options(root: &Path, operator: OperatorRule) -> ApplyOptions {
        ApplyOptions { root: root.to_owned(), state: PathBuf::new(), operator, asks_daemon: false }
    }

    fn check(root: &Path, rule: OperatorRule) -> Result<(), OperatorDaemon> {
        Mco::of(&options(root, rule)).check()
    }

    /// A root in which these processes run.
    fn running(commands: &[&[u8]]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (number, command) in commands.iter().enumerate() {
            let process = root.path().join(format!("proc/{}", number + 7));
            fs::create_dir_all(&process).unwrap();
            fs::write(process.join("cmdline"), command).unwrap();
        }
        fs::create_dir_all(root.path().join("proc/sys")).unwrap();
        root
    }

    #[test]
    fn the_operators_daemon_is_recognised_by_its_program_alone() {
        for (command, is_it) in [
            (&b"/usr/bin/machine-config-daemon\0start\0"[..], true),
            (b"/run/bin/machine-config-daemon\0start", true),
            (b"machine-config-daemon", true),
            (b"/usr/bin/machine-config-daemon.rhel9\0start\0", true),
            (b"/usr/bin/machine-config-daemon-pull\0", false),
            (b"/usr/bin/vi\0/usr/bin/machine-config-daemon\0", false),
            (b"/srv/machine-config-daemon/other\0", false),
            (b"", false),
        ] {
            let root = running(&[b"/sbin/init\0", command]);
            let checked = check(root.path(), OperatorRule::Never);
            let command = String::from_utf8_lossy(command);
            let wanted = if is_it { Err(OperatorDaemon::Runs("8".to_owned())) } else { Ok(()) };
            assert_eq!(checked, wanted, "{command:?}");
            assert_eq!(check(root.path(), OperatorRule::Beside), Ok(()), "{command:?}");
        }
    }

    #[test]
    fn a_process_of_another_user_is_not_the_operators_daemon() {
        // Only root can make a file of another user.
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let root = running(&[b"/usr/bin/machine-config-daemon\0start\0"]);
        fs::create_dir_all(root.path().join("proc/1")).unwrap();
        assert_eq!(running_operator(root.path()).as_deref(), Some("7"));
        let status = root.path().join("proc/7/status");
        for (users, found) in [("0\t0\t0\t0", Some("7")), ("0\t1000\t0\t0", None), ("1000\t0\t0\t0", None)] {
            fs::write(&status, format!("Name:\tx\nUid:\t{users}\nGid:\t0\t0\t0\t0\n")).unwrap();
            assert_eq!(running_operator(root.path()).as_deref(), found, "{users}");
        }
        fs::remove_file(status).unwrap();
        std::os::unix::fs::chown(root.path().join("proc/7"), Some(1000), None).unwrap();
        assert_eq!(running_operator(root.path()), None);
    }

    #[test]
    fn a_process_in_a_nested_process_id_namespace_is_not_the_operators_daemon() {
        let root = running(&[b"/usr/bin/machine-config-daemon\0start\0"]);
        for (numbers, found) in [("7", Some("7")), ("7\t1", None)] {
            let status = format!("Name:\tx\nNSpid:\t{numbers}\nNSpgid:\t{numbers}\n");
            fs::write(root.path().join("proc/7/status"), status).unwrap();
            assert_eq!(running_operator(root.path()).as_deref(), found, "{numbers}");
        }
    }

    #[test]
    fn a_daemon_between_two_starts_is_recognised_by_its_config() {
        let root = running(&[b"/sbin/init\0"]);
        fs::create_dir_all(root.path().join("etc/machine-config-daemon/orig")).unwrap();
        assert_eq!(check(root.path(), OperatorRule::Never), Ok(()), "its directory alone is no sign of it");
        fs::write(root.path().join("etc/machine-config-daemon/currentconfig"), "{}").unwrap();
        let refused = check(root.path(), OperatorRule::Never).unwrap_err();
        assert_eq!(refused, OperatorDaemon::MayStart);
        let text = refused.to_string();
        for part in ["/etc/machine-config-daemon/currentconfig", "move that file away", "--beside-mco"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(check(root.path(), OperatorRule::Beside), Ok(()));
    }

    #[test]
    fn who_takes_over_the_node_needs_only_that_the_operators_daemon_does_not_run() {
        let root = running(&[b"/sbin/init\0"]);
        fs::create_dir_all(root.path().join("etc/machine-config-daemon")).unwrap();
        fs::write(root.path().join("etc/machine-config-daemon/currentconfig"), "{}").unwrap();
        assert_eq!(check(root.path(), OperatorRule::TakeOver), Ok(()));
        let root = running(&[b"/usr/bin/machine-config-daemon\0start\0"]);
        let refused = check(root.path(), OperatorRule::TakeOver);
        assert_eq!(refused, Err(OperatorDaemon::Runs("7".to_owned())));
    }

    #[test]
    fn in_a_root_without_processes_the_operators_daemon_does_not_run() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(check(root.path(), OperatorRule::Never), Ok(()));
    }
}
