//! Finds the network interface that a rank uses to reach the others.

use std::net::{IpAddr, UdpSocket};

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
    let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    // Connecting a UDP socket sends nothing: the kernel only chooses the route.
    socket.connect((address, port)).ok()?;
    let own = socket.local_addr().ok()?.ip();
    getifaddrs().ok()?.find_map(|interface| {
        let found: IpAddr = interface.address?.as_sockaddr_in()?.ip().into();
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
    }
}
