//! The connections of a listening socket.
//!
//! In: the socket, and what to do with a connection. Out: a task for each connection. Every pod of the cluster may connect. So a connection
//! beyond the limit ends the oldest one of the peer that has most, and a peer with many idle connections keeps no other peer from its answer.

use std::collections::VecDeque;
use std::future::Future;
use std::net::IpAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::sleep;

/// Pause after a connection that cannot be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections for as long as it is polled, and has `most` of them served at once.
pub(crate) async fn serve<F>(listener: TcpListener, most: usize, mut serve: impl FnMut(TcpStream) -> F)
where
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
                    peers.add(peer.ip(), connections.spawn(serve(stream)));
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection was not accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Open connections by their peers, the oldest first.
#[derive(Debug, Default)]
struct Peers(VecDeque<(IpAddr, AbortHandle)>);

impl Peers {
    fn add(&mut self, peer: IpAddr, connection: AbortHandle) {
        self.0.push_back((peer, connection));
    }

    fn remove(&mut self, id: Id) {
        self.0.retain(|(_, connection)| connection.id() != id);
    }

    /// Ends a connection if there is no room for one more: the oldest of the peer that has most. Of several such peers it takes the one that
    /// connected first.
    fn make_room(&mut self, most: usize) {
        if self.0.len() < most {
            return;
        }
        let count = |peer: &IpAddr| self.0.iter().filter(|(other, _)| other == peer).count();
        let with_most = self.0.iter().rev().map(|(peer, _)| *peer).max_by_key(count);
        if let Some(at) = self.0.iter().position(|(peer, _)| Some(*peer) == with_most)
            && let Some((_, connection)) = self.0.remove(at)
        {
            connection.abort();
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
        tokio::spawn(serve(listener, MOST, |mut stream| async move {
            while let Ok(byte) = stream.read_u8().await {
                stream.write_u8(byte).await.unwrap();
            }
        }));
        address
    }

    async fn is_answered(stream: &mut TcpStream) -> bool {
        stream.write_u8(7).await.is_ok() && stream.read_u8().await.is_ok_and(|byte| byte == 7)
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
