//! Entering the host's mount and control-group namespaces from a pod.
//!
//! In: procfs, while this process has one thread. Out: a process that sees the host's paths, mount table and control groups, or
//! why it cannot. It needs the host's process-id namespace (`hostPID: true`): process 1 must be the host's. It never leaves the
//! host's namespaces again, and creates none.
//!
//! A namespace belongs to a thread, so threads that exist before would stay in the pod's. The program's own file has no path in
//! the host's mount namespace. `/proc/self/exe` leads to it all the same, because the link holds the file and not a path.

use crate::bounded;
use nix::sched::{CloneFlags, setns};
use rustix::thread::{CapabilitySet, capabilities};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;

/// The inode number of the initial process-id namespace: `PROC_PID_INIT_INO` of the kernel.
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Most bytes of a file of procfs that is read here.
const PROC_BYTES: u64 = 64 << 10;

/// The namespaces to enter: the name in procfs, the kind, and the name for people.
const NAMESPACES: [(&str, CloneFlags, &str); 2] =
    [("cgroup", CloneFlags::CLONE_NEWCGROUP, "control-group"), ("mnt", CloneFlags::CLONE_NEWNS, "mount")];

/// The capabilities that entering needs.
const NEEDED: [(CapabilitySet, &str); 3] = [
    (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN"),
    (CapabilitySet::SYS_CHROOT, "CAP_SYS_CHROOT"),
    (CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE"),
];

/// Why the host's namespaces are not entered.
#[derive(Debug, thiserror::Error)]
pub enum HostNamespacesError {
    /// Process 1 is not the host's.
    #[error(
        "process 1 of this process-id namespace is not the host's: set `hostPID: true` in the pod's spec; a node that is itself a container, as \
         with kind, cannot run the sensor"
    )]
    NoHostPid,
    /// The process has more than one thread.
    #[error("a process with one thread only can enter the host's namespaces, and this one has {0}")]
    Threads(usize),
    /// The capabilities that entering needs are missing.
    #[error(
        "cannot enter the host's {namespace} namespace: {error}; the container lacks {missing}: add them to \
         `securityContext.capabilities`"
    )]
    Capabilities {
        /// The namespace.
        namespace: &'static str,
        /// The names of the missing ones.
        missing: String,
        /// The error of the kernel.
        error: io::Error,
    },
    /// The kernel refused, although the capabilities are there, and a profile of `AppArmor` confines the process.
    #[error(
        "cannot enter the host's {namespace} namespace: {error}; AppArmor confines this container by the profile `{profile}`: load \
         `deploy/apparmor/holdfast-sensor` of this version on the node and name that profile in `securityContext.appArmorProfile`, or \
         set `appArmorProfile: {{type: Unconfined}}` there"
    )]
    AppArmor {
        /// The namespace.
        namespace: &'static str,
        /// The profile.
        profile: String,
        /// The error of the kernel.
        error: io::Error,
    },
    /// The kernel refused, although the capabilities are there.
    #[error(
        "cannot enter the host's {namespace} namespace: {error}; a security module may refuse it: see \
         `securityContext.appArmorProfile` and `seLinuxOptions`"
    )]
    Refused {
        /// The namespace.
        namespace: &'static str,
        /// The error of the kernel.
        error: io::Error,
    },
    /// Procfs cannot be read.
    #[error("cannot read {path}: {error}")]
    Proc {
        /// The file.
        path: &'static str,
        /// Why not.
        error: io::Error,
    },
}

/// Enters the host's namespaces. A process that is in them already changes nothing.
///
/// # Errors
/// Why the process cannot enter them. It may have entered one of them then, so it has to end.
pub fn enter() -> Result<(), HostNamespacesError> {
    let status = "/proc/self/status";
    let text = bounded::read_text(status.as_ref(), PROC_BYTES)
        .map_err(|error| HostNamespacesError::Proc { path: status, error })?;
    let own = "/proc/self/ns/pid";
    let namespace = fs::metadata(own).map_err(|error| HostNamespacesError::Proc { path: own, error })?.ino();
    if !is_host(&text, namespace) {
        return Err(HostNamespacesError::NoHostPid);
    }
    let threads = threads(&text);
    if threads != 1 {
        return Err(HostNamespacesError::Threads(threads));
    }
    // Both are opened before one is entered: entering the mount namespace changes which procfs is at `/proc`.
    let mut opened = Vec::new();
    for (name, kind, namespace) in NAMESPACES {
        opened.extend(
            host(name).map_err(|error| refused(namespace, error))?.map(|file| (file, kind, namespace)),
        );
    }
    for (file, kind, namespace) in opened {
        setns(file, kind).map_err(|errno| refused(namespace, errno.into()))?;
    }
    std::env::set_current_dir("/").map_err(|error| HostNamespacesError::Proc { path: "/", error })
}

/// The host's namespace, opened; `None` if this process is in it, or if the kernel has none of this kind.
fn host(name: &str) -> io::Result<Option<File>> {
    let of = |process: &str| format!("/proc/{process}/ns/{name}");
    let own = match fs::metadata(of("self")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let file = File::open(of("1"))?;
    let host = file.metadata()?;
    Ok((host.ino() != own.ino() || host.dev() != own.dev()).then_some(file))
}

fn refused(namespace: &'static str, error: io::Error) -> HostNamespacesError {
    let has = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let missing: Vec<&str> =
        NEEDED.iter().filter(|(needed, _)| !has.contains(*needed)).map(|(_, name)| *name).collect();
    if missing.is_empty() {
        return match confining_profile() {
            Some(profile) => HostNamespacesError::AppArmor { namespace, profile, error },
            None => HostNamespacesError::Refused { namespace, error },
        };
    }
    HostNamespacesError::Capabilities { namespace, missing: missing.join(", "), error }
}

/// The profile of `AppArmor` that refuses what this process may not do; `None` if there is none.
fn confining_profile() -> Option<String> {
    // Kernels with several such modules have a directory for each. In the file of all, another module may have its own label.
    let files = ["/proc/self/attr/apparmor/current", "/proc/self/attr/current"];
    let text = files.iter().find_map(|file| bounded::read_text(file.as_ref(), PROC_BYTES).ok())?;
    enforced_profile(&text).map(str::to_owned)
}

/// The name of the profile in the form of `AppArmor`, `NAME (MODE)`, if the mode refuses anything.
fn enforced_profile(label: &str) -> Option<&str> {
    let (name, mode) = label.trim_matches(['\0', '\n']).rsplit_once(" (")?;
    // Profiles that are stacked may have modes of their own, which `mixed` stands for.
    matches!(mode, "enforce)" | "kill)" | "mixed)").then_some(name)
}

/// Whether process 1 is the host's, by the text of `/proc/self/status` and the number of the own process-id namespace.
fn is_host(status: &str, namespace: u64) -> bool {
    // A procfs of an outer namespace shows one number for each namespace on the way.
    field(status, "NSpid").is_some_and(|numbers| numbers.split_whitespace().count() == 1)
        && namespace == INITIAL_PID_NAMESPACE
}

fn threads(status: &str) -> usize {
    field(status, "Threads").and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tholdfast\nNSpid:\t4242\nThreads:\t1\n";

    #[test]
    fn process_1_is_the_hosts_only_in_the_initial_process_id_namespace() {
        assert!(is_host(STATUS, INITIAL_PID_NAMESPACE));
        assert!(!is_host(STATUS, INITIAL_PID_NAMESPACE + 1), "a pod without hostPID");
        assert!(!is_host("NSpid:\t4242\t7\n", INITIAL_PID_NAMESPACE), "a procfs of an outer namespace");
        assert!(!is_host("", INITIAL_PID_NAMESPACE));
    }

    #[test]
    fn the_number_of_threads_is_read_and_an_unknown_one_is_none() {
        assert_eq!(threads(STATUS), 1);
        assert_eq!(threads("Threads:\t12\n"), 12);
        assert_eq!(threads("Threads:\tx\n"), 0);
    }

    #[test]
    fn a_process_with_threads_or_outside_the_hosts_process_ids_enters_nothing() {
        // Tests run in threads.
        let error = enter().unwrap_err();
        assert!(matches!(error, HostNamespacesError::Threads(_) | HostNamespacesError::NoHostPid), "{error}");
    }

    #[test]
    fn a_profile_of_app_armor_is_the_reason_only_if_it_refuses_and_a_label_of_selinux_is_none() {
        assert_eq!(
            enforced_profile("cri-containerd.apparmor.d (enforce)\n"),
            Some("cri-containerd.apparmor.d")
        );
        assert_eq!(enforced_profile("my (own) profile (kill)\n"), Some("my (own) profile"));
        for label in
            ["unconfined\n", "holdfast-sensor (complain)\n", "system_u:system_r:container_t:s0:c1,c2\0", ""]
        {
            assert_eq!(enforced_profile(label), None, "{label}");
        }
    }

    #[test]
    fn the_error_names_missing_capabilities_or_the_security_module() {
        let error = refused("mount", io::Error::from_raw_os_error(nix::libc::EPERM)).to_string();
        assert!(error.starts_with("cannot enter the host's mount namespace: "), "{error}");
        assert!(error.contains("securityContext"), "{error}");
    }
}
