//! Which addresses a notification is never sent to.
//!
//! The URL comes from the operator's own settings. But its name may be resolved by somebody else, and the operator may
//! reach what that person cannot. So each address is checked after the name is resolved, and the connection is made to the
//! checked address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses of the metadata services of clouds that are neither link-local nor loopback addresses.
const METADATA: [IpAddr; 4] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
];

/// Why nothing is sent to an address. `None`: it is allowed. `api_server`: the addresses of the API server.
pub fn refusal(address: IpAddr, api_server: &[IpAddr]) -> Option<&'static str> {
    let address = inner(address);
    let is_this_network = matches!(address, IpAddr::V4(v4) if v4.octets()[0] == 0);
    let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    if address.is_unspecified() || is_this_network {
        Some("it is an unspecified address")
    } else if address.is_loopback() {
        Some("it is a loopback address")
    } else if is_link_local(address) {
        Some("it is a link-local address")
    } else if address.is_multicast() || is_broadcast {
        Some("it is a multicast address")
    } else if METADATA.contains(&address) {
        Some("it is the address of a metadata service")
    } else if api_server.iter().any(|it| inner(*it) == address) {
        Some("it is an address of the API server")
    } else {
        None
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// The IPv4 address inside an IPv6 address that stands for one: mapped, compatible, NAT64 or 6to4.
fn inner(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    };
    match v6.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
        [0, 0, 0, 0, 0, 0, high, low] if (high, low) > (0, 1) => v4(high, low),
        [0x2002, high, low, ..] => v4(high, low),
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_refused(address: &str) -> bool {
        let api_server: Vec<IpAddr> = ["10.96.0.1", "2001:db8::6443"].map(|it| it.parse().unwrap()).into();
        refusal(address.parse().unwrap(), &api_server).is_some()
    }

    #[test]
    fn public_and_private_addresses_are_allowed() {
        for address in
            ["203.0.113.7", "10.0.0.9", "192.168.1.1", "2001:db8::1", "fd12::1", "64:ff9b::cb00:7107"]
        {
            assert!(!is_refused(address), "{address}");
        }
    }

    #[test]
    fn an_address_that_only_this_host_or_this_link_reaches_is_refused() {
        for address in [
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "169.254.169.254",
            "fe80::1",
            "224.0.0.1",
            "255.255.255.255",
            "ff02::1",
            "fd00:ec2::254",
            "168.63.129.16",
            "100.100.100.200",
            "192.0.0.192",
            "::ffff:168.63.129.16",
        ] {
            assert!(is_refused(address), "{address}");
        }
    }

    #[test]
    fn an_ipv4_address_is_found_inside_an_ipv6_address() {
        for address in [
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::1",
            "::ffff:10.96.0.1",
        ] {
            assert!(is_refused(address), "{address}");
        }
    }

    #[test]
    fn the_api_server_is_refused() {
        assert!(is_refused("10.96.0.1") && is_refused("2001:db8::6443"));
        assert!(!is_refused("10.96.0.2") && !is_refused("2001:db8::6444"));
    }
}
