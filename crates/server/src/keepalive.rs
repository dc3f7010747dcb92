//! TCP keepalive: detects that the peer of an idle connection is gone.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// Maximum number of unanswered probes.
const PROBES: u32 = 3;
/// Shortest interval: the system counts in seconds.
const LEAST: Duration = Duration::from_secs(1);

/// Makes the system probe a connection after `time` without traffic, and close it after three unanswered probes, each a
/// sixth of `time` apart. Zero changes nothing. Errors are ignored.
pub(crate) fn set(stream: impl AsFd, time: Duration) {
    if time.is_zero() {
        return;
    }
    let stream = stream.as_fd();
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, time.max(LEAST));
    let _ = sockopt::set_tcp_keepintvl(stream, interval(time));
    let _ = sockopt::set_tcp_keepcnt(stream, PROBES);
}

/// Like [`set`], and also closes the connection if sent data stays unacknowledged for as long as the probes take, or
/// for `write_time` if that is longer. By default, Linux keeps retransmitting for about a quarter of an hour.
pub(crate) fn set_with_timeout(stream: impl AsFd, time: Duration, write_time: Duration) {
    if time.is_zero() {
        return;
    }
    let stream = stream.as_fd();
    set(stream, time);
    let timeout = (time.max(LEAST) + interval(time) * PROBES).max(write_time);
    #[cfg(target_os = "linux")]
    let _ = sockopt::set_tcp_user_timeout(stream, u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX));
    #[cfg(not(target_os = "linux"))]
    let _ = timeout;
}

fn interval(time: Duration) -> Duration {
    (time / 6).max(LEAST)
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn the_system_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        set(&stream, Duration::ZERO);
        assert!(!sockopt::socket_keepalive(&stream).unwrap());
        set_with_timeout(&stream, Duration::from_secs(60), Duration::from_secs(30));
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), Duration::from_secs(60));
        assert_eq!(sockopt::tcp_keepintvl(&stream).unwrap(), Duration::from_secs(10));
        assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), 3);
        #[cfg(target_os = "linux")]
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 90_000);
        set_with_timeout(&stream, Duration::from_millis(10), Duration::from_secs(300));
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), Duration::from_secs(1));
        #[cfg(target_os = "linux")]
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 300_000);
    }
}
