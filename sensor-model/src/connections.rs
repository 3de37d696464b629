//! Which of too many open connections ends.
//!
//! In: the addresses of the peers, the oldest connection first. Out: the place of one. So a peer with many idle connections does not block peers of
//! other addresses.

use std::net::IpAddr;

/// The connection that ends: the oldest one of the address with most. Of several such addresses it is the one that connected first, since the last
/// one may be a monitor of the node. `None` without a connection.
pub fn to_end(connections: &[IpAddr]) -> Option<usize> {
    let count = |address: &&IpAddr| connections.iter().filter(|other| other == address).count();
    let most = connections.iter().rev().max_by_key(count)?;
    connections.iter().position(|address| address == most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn ends(addresses: &[u8]) -> Option<usize> {
        let addresses: Vec<IpAddr> =
            addresses.iter().map(|last| Ipv4Addr::new(192, 0, 2, *last).into()).collect();
        to_end(&addresses)
    }

    #[test]
    fn the_oldest_connection_of_the_address_with_most_ends() {
        assert_eq!(ends(&[1, 2, 3, 2, 3, 2]), Some(1));
        assert_eq!(ends(&[1, 1, 2]), Some(0));
    }

    #[test]
    fn of_addresses_with_as_many_the_first_one_loses_its_oldest_connection() {
        assert_eq!(ends(&[3, 1, 2, 1, 2]), Some(1));
        assert_eq!(ends(&[1, 2, 3]), Some(0));
        assert_eq!(ends(&[]), None);
    }
}
