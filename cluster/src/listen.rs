//! Listening sockets of the pages.
//!
//! In: an address, or only a port. Out: a socket. With only a port it takes IPv6 and IPv4, because the kubelet probes the pod's first
//! address, which is one of IPv6 in a cluster without IPv4. A kernel without IPv6 gets a socket for IPv4.

use socket2::{Domain, Socket, Type};
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::net::TcpListener;

/// The port of the health pages.
pub const PROBES_PORT: u16 = 9465;
/// The port of the pages over TLS.
pub const SECURE_PORT: u16 = 9466;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// Linux's number of the error about an address family that the kernel does not have.
const EAFNOSUPPORT: i32 = 97;

/// Where pages are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageAddress {
    /// At this address alone.
    Given(SocketAddr),
    /// At this port of all addresses.
    All {
        /// The port.
        port: u16,
    },
}

impl PageAddress {
    /// The address of an option, or this port of all addresses without one.
    pub fn of(given: Option<SocketAddr>, port: u16) -> Self {
        given.map_or(Self::All { port }, Self::Given)
    }
}

impl fmt::Display for PageAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given(address) => address.fmt(formatter),
            Self::All { port } => write!(formatter, "port {port} of all addresses"),
        }
    }
}

/// Listens at an address.
///
/// # Errors
/// Another process has the port, or the host does not have the address.
pub fn listen(address: PageAddress) -> io::Result<TcpListener> {
    match address {
        PageAddress::Given(address) => from_std(std::net::TcpListener::bind(address)?),
        PageAddress::All { port } => on_any(port, |address| from_std(bind(address)?)),
    }
}

/// Binds to the addresses of IPv6 and IPv4, or to those of IPv4 alone on a kernel without IPv6.
fn on_any<T>(port: u16, bind: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    match bind((Ipv6Addr::UNSPECIFIED, port).into()) {
        Err(error) if is_without_ipv6(&error) => bind((Ipv4Addr::UNSPECIFIED, port).into()),
        bound => bound,
    }
}

/// Whether the kernel has no IPv6, or has it switched off.
fn is_without_ipv6(error: &io::Error) -> bool {
    error.raw_os_error() == Some(EAFNOSUPPORT) || error.kind() == ErrorKind::AddrNotAvailable
}

fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        // The sysctl net.ipv6.bindv6only may exclude IPv4.
        socket.set_only_v6(false)?;
    }
    // A restarted container takes the port of the one before.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn from_std(listener: std::net::TcpListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;
    use tokio::net::TcpStream;

    /// Whether a client reaches the listener's port at this address.
    async fn is_reached(listener: &TcpListener, address: impl Into<IpAddr>) -> bool {
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((address.into(), port)).await.is_ok()
    }

    #[tokio::test]
    async fn without_an_address_pages_are_reached_over_ipv6_and_ipv4() {
        let listener = listen(PageAddress::of(None, 0)).unwrap();
        assert!(is_reached(&listener, Ipv4Addr::LOCALHOST).await);
        // A machine without IPv6 has no such address.
        if std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            assert!(is_reached(&listener, Ipv6Addr::LOCALHOST).await);
        }
    }

    #[tokio::test]
    async fn a_given_address_is_the_only_one() {
        let given: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let listener = listen(PageAddress::of(Some(given), PROBES_PORT)).unwrap();
        assert_eq!(listener.local_addr().unwrap().ip(), given.ip());
        assert!(!is_reached(&listener, Ipv6Addr::LOCALHOST).await);
        assert!(!is_reached(&listener, "127.0.0.2".parse::<IpAddr>().unwrap()).await);
    }

    #[test]
    fn only_a_kernel_without_ipv6_gets_a_socket_for_ipv4_alone() {
        let bound = |refusal: fn() -> io::Error| {
            on_any(7, |address| if address.is_ipv6() { Err(refusal()) } else { Ok(address) })
        };
        let ipv4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 7));
        assert_eq!(bound(|| io::Error::from_raw_os_error(EAFNOSUPPORT)).unwrap(), ipv4);
        assert_eq!(bound(|| ErrorKind::AddrNotAvailable.into()).unwrap(), ipv4);
        assert_eq!(bound(|| ErrorKind::AddrInUse.into()).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert!(on_any(7, Ok).unwrap().is_ipv6());
    }
}
