//! Listens on an address of the machine.

use std::io::{Error, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::io::Errno;
use tokio::net::TcpListener;

/// Listens on `address`. `[::]` means all addresses of the machine: of IPv6 and IPv4, or of IPv4 only where the machine
/// has no IPv6.
///
/// # Errors
///
/// The address cannot be bound.
pub async fn listen(address: SocketAddr) -> Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    match fallback(address, bound.as_ref().err()) {
        Some(fallback) => TcpListener::bind(fallback).await,
        None => bound,
    }
}

/// The address to bind instead, if the machine has no IPv6.
fn fallback(address: SocketAddr, error: Option<&Error>) -> Option<SocketAddr> {
    let errno = Errno::from_raw_os_error(error?.raw_os_error()?);
    let has_no_ipv6 = matches!(errno, Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL);
    (has_no_ipv6 && address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED))
        .then(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn a_listener_on_all_addresses_is_reached_by_ipv4() {
        let listener = listen("[::]:0".parse().unwrap()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (_, accepted) = tokio::join!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)), listener.accept());
        accepted.unwrap();
    }

    #[test]
    fn only_all_addresses_fall_back_to_ipv4_and_only_without_ipv6() {
        let all = "[::]:8080".parse().unwrap();
        let no_ipv6 = Error::from(Errno::AFNOSUPPORT);
        assert_eq!(fallback(all, Some(&no_ipv6)), Some("0.0.0.0:8080".parse().unwrap()));
        assert_eq!(fallback("[::1]:8080".parse().unwrap(), Some(&no_ipv6)), None);
        assert_eq!(fallback(all, Some(&Error::from(Errno::ADDRINUSE))), None);
        assert_eq!(fallback(all, None), None);
    }
}
