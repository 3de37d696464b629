//! The connections of a listening socket.
//!
//! In: the socket, and what to do with a connection. Out: a task for each connection. Every pod of the cluster may connect. A connection beyond the
//! limit ends another one, of the address with most: at first one without an answered request. So a peer with many idle connections does not block
//! peers of other addresses, and at its own address blocks at most those that have had no answer yet.

use sensor_model::connections::to_end;
use std::collections::VecDeque;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::sleep;

/// Pause after a connection that cannot be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Whether a connection has had an answer to a request that its client may make.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answered(Arc<AtomicBool>);

impl Answered {
    /// It has.
    pub(crate) fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_noted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Accepts connections for as long as it is polled, and has `most` of them served at once.
pub(crate) async fn serve<F>(
    listener: TcpListener,
    most: usize,
    mut serve: impl FnMut(TcpStream, Answered) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    let mut peers = Peers::default();
    loop {
        tokio::select! {
            Some(ended) = connections.join_next_with_id() => {
                peers.remove(ended.map_or_else(|error| error.id(), |(id, ())| id));
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    peers.make_room(most);
                    let answered = Answered::default();
                    let connection = connections.spawn(serve(stream, answered.clone()));
                    peers.0.push_back(Peer { address: peer.ip(), answered, connection });
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection was not accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// One open connection.
#[derive(Debug)]
struct Peer {
    address: IpAddr,
    answered: Answered,
    connection: AbortHandle,
}

/// Open connections, the oldest first.
#[derive(Debug, Default)]
struct Peers(VecDeque<Peer>);

impl Peers {
    fn remove(&mut self, id: Id) {
        self.0.retain(|peer| peer.connection.id() != id);
    }

    /// Ends a connection if there is no room for one more: one without an answer, if there is any.
    fn make_room(&mut self, most: usize) {
        if self.0.len() < most {
            return;
        }
        let any_silent = self.0.iter().any(|peer| !peer.answered.is_noted());
        let may_end = |peer: &Peer| !any_silent || !peer.answered.is_noted();
        let (places, addresses): (Vec<usize>, Vec<IpAddr>) = self
            .0
            .iter()
            .enumerate()
            .filter(|(_, peer)| may_end(peer))
            .map(|(at, peer)| (at, peer.address))
            .unzip();
        let ended = to_end(&addresses).map(|at| places[at]);
        if let Some(ended) = ended.and_then(|at| self.0.remove(at)) {
            ended.connection.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, SocketAddr};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpSocket;

    const MOST: usize = 4;
    /// A request, and a byte that shows only that the server has accepted the connection.
    const REQUEST: u8 = 7;
    const OTHER: u8 = 8;

    /// A connection from this address of the loopback.
    async fn connect(to: SocketAddr, from: u8) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 0, 0, from), 0).into()).unwrap();
        socket.connect(to).await.unwrap()
    }

    /// A server that answers each byte with the same.
    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, MOST, |mut stream, answered| async move {
            while let Ok(byte) = stream.read_u8().await {
                stream.write_u8(byte).await.unwrap();
                if byte == REQUEST {
                    answered.note();
                }
            }
        }));
        address
    }

    async fn sends(stream: &mut TcpStream, byte: u8) -> bool {
        stream.write_u8(byte).await.is_ok() && stream.read_u8().await.is_ok_and(|answer| answer == byte)
    }

    async fn is_answered(stream: &mut TcpStream) -> bool {
        sends(stream, REQUEST).await
    }

    #[tokio::test]
    async fn a_peer_with_many_idle_connections_ends_its_own_and_keeps_no_other_peer_away() {
        let server = echo().await;
        let mut first = connect(server, 2).await;
        assert!(is_answered(&mut first).await);
        let mut idle = Vec::new();
        for _ in 0..MOST * 8 {
            let mut connection = connect(server, 3).await;
            // After its answer the server has accepted it.
            assert!(is_answered(&mut connection).await);
            idle.push(connection);
        }
        let mut second = connect(server, 4).await;
        assert!(is_answered(&mut first).await && is_answered(&mut second).await);
        assert!(!is_answered(&mut idle[0]).await, "the oldest of the peer with most has ended");
        assert!(is_answered(idle.last_mut().unwrap()).await);
    }

    #[tokio::test]
    async fn idle_connections_of_the_same_address_end_before_one_that_had_an_answer() {
        let server = echo().await;
        let mut first = connect(server, 2).await;
        assert!(is_answered(&mut first).await);
        let mut idle = Vec::new();
        for _ in 0..MOST * 8 {
            let mut connection = connect(server, 2).await;
            assert!(sends(&mut connection, OTHER).await);
            idle.push(connection);
        }
        let mut last = connect(server, 2).await;
        assert!(is_answered(&mut first).await && is_answered(&mut last).await);
    }

    #[tokio::test]
    async fn a_connection_that_ended_makes_room() {
        let server = echo().await;
        let mut first = connect(server, 2).await;
        assert!(is_answered(&mut first).await);
        for _ in 0..MOST * 8 {
            let mut connection = connect(server, 2).await;
            assert!(is_answered(&mut connection).await);
            connection.shutdown().await.unwrap();
            assert_eq!(connection.read(&mut [0]).await.unwrap(), 0, "the server has ended it, too");
        }
        assert!(is_answered(&mut first).await);
    }
}
