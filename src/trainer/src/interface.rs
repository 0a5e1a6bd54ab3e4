//! Finds the network interface that a rank uses to reach the others.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use nix::ifaddrs::getifaddrs;

/// The environment variable that overrides the choice, as in PyTorch.
const VARIABLE: &str = "GLOO_SOCKET_IFNAME";

/// Returns the interface that routes to another node; `None` if it is unknown.
///
/// By default, gloo listens on the address of the node's host name, which on Debian is the loopback interface.
pub fn towards(address: &str, port: u16) -> Option<String> {
    if let Ok(named) = std::env::var(VARIABLE)
        && !named.is_empty()
    {
        return Some(named);
    }
    let mut peers: Vec<SocketAddr> = (address, port).to_socket_addrs().ok()?.collect();
    peers.sort_by_key(SocketAddr::is_ipv6);
    peers.into_iter().find_map(interface_to)
}

/// Returns the interface with the address from which this machine connects to a peer.
fn interface_to(peer: SocketAddr) -> Option<String> {
    let any: IpAddr = if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Connecting a UDP socket sends nothing: the kernel only chooses the route.
    socket.connect(peer).ok()?;
    let own = socket.local_addr().ok()?.ip();
    getifaddrs().ok()?.find_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|found| IpAddr::from(found.ip()));
        let found = v4.or_else(|| Some(address.as_sockaddr_in6()?.ip().into()))?;
        (found == own).then_some(interface.interface_name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interface_to_this_machine_is_loopback() {
        assert_eq!(towards("127.0.0.1", 29500).as_deref(), Some("lo"));
        assert_eq!(towards("nowhere.invalid", 29500), None);
        if UdpSocket::bind(("::1", 0)).is_err() {
            println!("skipped: this machine has no IPv6");
            return;
        }
        assert_eq!(towards("::1", 29500).as_deref(), Some("lo"));
    }
}
