//! Processes that still exist, read from procfs.
//!
//! In: a thread group id and the start time that the process must have. Out: what procfs shows of that process. It reads every file
//! below one handle of the process's directory, which becomes invalid when the process ends. So it never reads files of a later
//! process with the same number.

use nix::{
    errno::Errno,
    fcntl::{OFlag, openat, readlinkat},
    sys::stat::Mode,
    unistd::{SysconfVar, geteuid, read, sysconf},
};
use rustix::fs::{AtFlags, StatxFlags, makedev, statx};
use sensor_model::{
    host::stat::{Stat, groups, users},
    record::FileIdentity,
};
use std::{
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

/// Most bytes that it reads of one file. The longest is `cmdline`, of which it keeps 1 KiB, as much as the map of executions.
const READ_BYTES: usize = 4096;

/// Most arguments that it keeps, because each takes more memory than its bytes.
const ARGUMENTS: usize = 128;

/// A mounted procfs.
#[derive(Debug)]
pub(super) struct Procfs {
    directory: OwnedFd,
    nanoseconds_per_tick: u64,
}

/// An existing process with the wanted number and start.
#[derive(Debug)]
pub(super) struct Live {
    directory: OwnedFd,
    pub(super) stat: Stat,
}

impl Procfs {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = nix::fcntl::open(path, flags, Mode::empty())?;
        let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().and_then(|ticks| u64::try_from(ticks).ok());
        Ok(Self {
            directory,
            nanoseconds_per_tick: 1_000_000_000 / ticks.filter(|ticks| *ticks > 0).unwrap_or(100),
        })
    }

    /// The process with this number, whatever its start time.
    pub(super) fn process(&self, tgid: u32) -> Option<Live> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = openat(&self.directory, tgid.to_string().as_str(), flags, Mode::empty()).ok()?;
        let text = read_file(&directory, "stat").ok()?;
        Some(Live { stat: Stat::parse(&text)?, directory })
    }

    /// The process with this number, if it started at this time (boot-time nanoseconds).
    pub(super) fn started_at(&self, tgid: u32, start_ns: u64) -> Option<Live> {
        self.process(tgid).filter(|live| self.started_in_tick(live, start_ns))
    }

    /// Whether the process started in the tick of that nanosecond.
    pub(super) fn started_in_tick(&self, live: &Live, start_ns: u64) -> bool {
        live.stat.start == self.ticks(start_ns)
    }

    /// Boot-time nanoseconds as procfs shows them.
    pub(super) fn ticks(&self, start_ns: u64) -> u64 {
        start_ns / self.nanoseconds_per_tick
    }

    /// The start in boot-time nanoseconds, rounded down to a tick.
    pub(super) fn start_ns(&self, live: &Live) -> u64 {
        live.stat.start.saturating_mul(self.nanoseconds_per_tick)
    }
}

impl Live {
    /// Path of the executable. For a removed file it keeps the kernel's suffix ` (deleted)`.
    pub(super) fn exe(&self) -> Option<String> {
        let path = readlinkat(&self.directory, "exe").ok()?;
        Some(String::from_utf8_lossy(path.as_bytes()).into_owned())
    }

    /// The identity of the executable, whatever its path leads to now. The call asks no server of a file system, which might never
    /// answer.
    pub(super) fn exe_file(&self) -> Option<FileIdentity> {
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let found = statx(&self.directory, "exe", flags, StatxFlags::INO).ok()?;
        let device = makedev(found.stx_dev_major, found.stx_dev_minor);
        Some(FileIdentity { device, inode: found.stx_ino, volume: 0, generation: None })
    }

    /// The arguments in the first KiB, and whether the process has more. None for a process of another user: the kernel reads them from the
    /// memory of the process, and a user can make a page of that memory one that a program has to deliver, which never does (FUSE,
    /// userfaultfd). The reader would wait for ever.
    pub(super) fn argv(&self) -> (Vec<String>, bool) {
        if !self.is_of_this_user() {
            return (Vec::new(), false);
        }
        let text = read_file(&self.directory, "cmdline").unwrap_or_default();
        let length = text.len().min(sensor_common::limits::ARGV_BYTES);
        let (argv, cut) = split_arguments(&text[..length]);
        (argv, cut || length < text.len())
    }

    /// Whether the process has no other user than this one. The owner of its directory does not tell: any process can have root as its owner
    /// there (`PR_SET_DUMPABLE`).
    fn is_of_this_user(&self) -> bool {
        let users = read_file(&self.directory, "status").ok().and_then(|text| users(&text));
        users.is_some_and(|users| users.iter().all(|user| *user == geteuid().as_raw()))
    }

    /// File system uid and gid.
    pub(super) fn owner(&self) -> Option<(u32, u32)> {
        let text = read_file(&self.directory, "status").ok()?;
        parse_owner(&text)
    }

    /// Audit login uid, unless it is unset.
    pub(super) fn login_uid(&self) -> Option<u32> {
        self.number("loginuid")
    }

    /// Audit session, unless it is unset.
    pub(super) fn session(&self) -> Option<u32> {
        self.number("sessionid")
    }

    /// Name of the controlling terminal.
    pub(super) fn terminal(&self) -> Option<String> {
        terminal_name(self.stat.terminal)
    }

    /// The text of `/proc/PID/cgroup`.
    pub(super) fn cgroup(&self) -> Option<String> {
        let text = read_file(&self.directory, "cgroup").ok()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    }

    fn number(&self, name: &str) -> Option<u32> {
        let text = read_file(&self.directory, name).ok()?;
        std::str::from_utf8(&text).ok()?.trim().parse().ok().filter(|number| *number != u32::MAX)
    }
}

/// The first arguments of a zero-separated list, and whether it has more.
pub(super) fn split_arguments(bytes: &[u8]) -> (Vec<String>, bool) {
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    if bytes.is_empty() {
        return (Vec::new(), false);
    }
    let mut arguments = bytes.split(|byte| *byte == 0);
    let text = |argument| String::from_utf8_lossy(argument).into_owned();
    let kept = arguments.by_ref().take(ARGUMENTS).map(text).collect();
    (kept, arguments.next().is_some())
}

fn read_file(directory: &OwnedFd, name: &str) -> Result<Vec<u8>, Errno> {
    let file = openat(directory.as_fd(), name, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    let mut bytes = vec![0; READ_BYTES];
    let mut length = 0;
    while length < bytes.len() {
        match read(&file, &mut bytes[length..]) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

fn parse_owner(text: &[u8]) -> Option<(u32, u32)> {
    let ([.., uid], [.., gid]) = (users(text)?, groups(text)?);
    Some((uid, gid))
}

/// The name of a terminal's device number, as `ps` shows it; other devices by their numbers.
fn terminal_name(device: u32) -> Option<String> {
    let major = (device >> 8) & 0xfff;
    let minor = (device & 0xff) | ((device >> 12) & 0xf_ff00);
    match (major, minor) {
        (0, 0) => None,
        (4, 0..64) => Some(format!("tty{minor}")),
        (4, _) => Some(format!("ttyS{}", minor - 64)),
        (5, 1) => Some("console".to_owned()),
        (136..144, _) => Some(format!("pts/{}", (major - 136) * 256 + minor)),
        (204, 64..80) => Some(format!("ttyAMA{}", minor - 64)),
        (229, _) => Some(format!("hvc{minor}")),
        _ => Some(format!("{major}:{minor}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_blanks_does_not_move_the_fields() {
        let text = b"42 (a) R 1 (b) S 7 42 42 34816 42 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987 0 0";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.comm.as_str(), stat.parent, stat.start), ("a) R 1 (b", 7, 987));
        assert_eq!(terminal_name(stat.terminal).as_deref(), Some("pts/0"));
    }

    #[test]
    fn a_cut_stat_is_refused() {
        assert_eq!(Stat::parse(b"42 (a) S 7 42"), None);
        assert_eq!(Stat::parse(b""), None);
    }

    #[test]
    fn terminals_have_the_names_that_ps_shows() {
        for (major, minor, name) in [
            (136, 3, "pts/3"),
            (137, 4, "pts/260"),
            (4, 1, "tty1"),
            (4, 64, "ttyS0"),
            (5, 1, "console"),
            (229, 0, "hvc0"),
            (250, 300, "250:300"),
        ] {
            let device = (major << 8) | (minor & 0xff) | ((minor & 0xf_ff00) << 12);
            assert_eq!(terminal_name(device).as_deref(), Some(name));
        }
        assert_eq!(terminal_name(0), None);
    }

    #[test]
    fn the_file_system_owner_is_the_fourth_of_status() {
        let text = b"Name:\tx\nUid:\t1000\t0\t0\t5\nGid:\t1000\t0\t0\t6\n";
        assert_eq!(parse_owner(text), Some((5, 6)));
    }

    #[test]
    fn a_process_is_found_only_with_its_own_start() {
        let procfs = Procfs::open(Path::new("/proc")).unwrap();
        let live = procfs.process(std::process::id()).unwrap();
        let start_ns = procfs.start_ns(&live);
        assert!(procfs.started_at(std::process::id(), start_ns).is_some());
        assert!(procfs.started_at(std::process::id(), start_ns + procfs.nanoseconds_per_tick).is_none());
        assert_eq!(live.exe().as_deref(), std::env::current_exe().unwrap().to_str());
        assert_eq!(live.argv().0[0], std::env::args().next().unwrap());
        assert!(live.owner().is_some());
    }

    #[test]
    fn the_handle_of_an_ended_process_gives_nothing() {
        let procfs = Procfs::open(Path::new("/proc")).unwrap();
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let live = procfs.process(child.id()).unwrap();
        assert!(live.owner().is_some());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(live.owner(), None);
        assert_eq!(live.argv(), (Vec::<String>::new(), false));
    }

    #[test]
    fn empty_arguments_in_the_middle_are_kept() {
        assert_eq!(split_arguments(b"sh\0-c\0\0x\0").0, ["sh", "-c", "", "x"]);
        assert_eq!(split_arguments(b""), (Vec::new(), false));
    }

    #[test]
    fn of_many_arguments_the_first_are_kept_and_marked_as_cut() {
        assert_eq!(split_arguments(&b"a\0".repeat(ARGUMENTS)), (vec!["a".to_owned(); ARGUMENTS], false));
        assert_eq!(split_arguments(&b"a\0".repeat(1024)), (vec!["a".to_owned(); ARGUMENTS], true));
    }
}
