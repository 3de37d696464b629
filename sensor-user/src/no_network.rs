//! Refuses network sockets to this process, for good.
//!
//! In: nothing. Out: a thread that can make sockets of the family `AF_UNIX` only, and so can the threads and processes that it
//! starts. The kernel answers `EPERM` for every other family, and for rings of `io_uring`, which make sockets past the filter.
//! No process can remove the filter.

use nix::libc::{AF_UNIX, EPERM, SYS_io_uring_setup, SYS_socket};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

/// The bit in the number of a system call of x32 (`__X32_SYSCALL_BIT` of `asm/unistd.h`). The kernel reports these calls as of x86-64. Other
/// processors have no such numbers.
const X32: i64 = 0x4000_0000;

/// The filter cannot be installed.
#[derive(Debug, thiserror::Error)]
pub enum NoNetworkError {
    /// This processor has no filter.
    #[error("cannot make the filter that refuses network sockets: {0}")]
    Filter(#[from] BackendError),
    /// The kernel refused it.
    #[error("cannot install the filter that refuses network sockets: {0}")]
    Install(#[from] seccompiler::Error),
}

/// Refuses network sockets to this thread, and to the threads and processes that it starts from now on. Also sets
/// `no_new_privs`.
///
/// # Errors
/// The kernel has no filters of system calls, or refuses this one.
pub fn forbid() -> Result<(), NoNetworkError> {
    // The kernel reads the family as 32 bits.
    let is_other = SeccompCondition::new(
        0,
        SeccompCmpArgLen::Dword,
        SeccompCmpOp::Ne,
        u64::from(AF_UNIX.unsigned_abs()),
    )?;
    let socket = vec![SeccompRule::new(vec![is_other])?];
    let rules = [
        (SYS_socket, socket.clone()),
        (X32 | SYS_socket, socket),
        (SYS_io_uring_setup, Vec::new()),
        (X32 | SYS_io_uring_setup, Vec::new()),
    ];
    let refuse = SeccompAction::Errno(EPERM.unsigned_abs());
    let processor: TargetArch = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules.into(), SeccompAction::Allow, refuse, processor)?;
    let program: BpfProgram = filter.try_into()?;
    apply_filter(&program)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::UnixStream;

    #[test]
    fn network_sockets_are_refused_to_a_thread_and_those_that_it_starts_and_others_are_not() {
        let attempts = || {
            let refused = [
                TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).err(),
                TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).err(),
                TcpStream::connect((Ipv4Addr::LOCALHOST, 9)).err(),
                UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).err(),
            ];
            UnixStream::pair().expect("sockets of this host are allowed");
            refused.map(|error| error.map(|error| error.kind()))
        };
        let forbidden = std::thread::spawn(move || {
            forbid().unwrap();
            (attempts(), std::thread::spawn(attempts).join().unwrap())
        });
        let denied = [Some(ErrorKind::PermissionDenied); 4];
        assert_eq!(forbidden.join().unwrap(), (denied, denied));
        assert_eq!(attempts()[0], None, "a thread without the filter");
    }
}
