//! Notifications to the service manager: readiness, and the main process.
//!
//! The protocol is that of `sd_notify(3)`: datagrams to the socket in the variable `NOTIFY_SOCKET`.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The variable with the path of the socket, or with a name after `@`, which has no path.
const VARIABLE: &str = "NOTIFY_SOCKET";
/// Timeout for sending to a manager that reads nothing.
const SEND_TIME: Duration = Duration::from_secs(1);

/// A service manager such as systemd, if one started the process and asked for notifications.
#[derive(Debug)]
pub(crate) struct ServiceManager(Option<OsString>);

/// A state that the service manager is notified of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceState {
    /// The server is up, or has reloaded its configuration.
    Ready,
    /// The server is reloading its configuration.
    Reloading,
    /// The server stops.
    Stopping,
    /// The process with this id is the main process of the service.
    MainProcess(u32),
}

impl ServiceManager {
    /// The manager in the environment.
    pub(crate) fn of_environment() -> ServiceManager {
        ServiceManager(std::env::var_os(VARIABLE).filter(|name| !name.is_empty()))
    }

    /// Notifies the manager. Does nothing without one.
    pub(crate) fn notify(&self, state: ServiceState) {
        let Some(name) = &self.0 else { return };
        let message = match state {
            ServiceState::Ready => "READY=1".to_owned(),
            ServiceState::Reloading => "RELOADING=1".to_owned(),
            ServiceState::Stopping => "STOPPING=1".to_owned(),
            ServiceState::MainProcess(process) => format!("MAINPID={process}"),
        };
        if let Err(error) = send(name.as_bytes(), message.as_bytes()) {
            tracing::warn!(%error, message, "the service manager cannot be notified");
        }
    }
}

fn send(name: &[u8], message: &[u8]) -> io::Result<()> {
    let address = match name.strip_prefix(b"@") {
        Some(name) => abstract_address(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(SEND_TIME))?;
    socket.send_to_addr(message, &address).map(|_| ())
}

#[cfg(target_os = "linux")]
fn abstract_address(name: &[u8]) -> io::Result<SocketAddr> {
    <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
fn abstract_address(_: &[u8]) -> io::Result<SocketAddr> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 256];
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    #[test]
    fn messages_arrive_at_a_path_and_at_a_name_without_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let at_path = UnixDatagram::bind(&path).unwrap();
        let manager = ServiceManager(Some(path.into_os_string()));
        manager.notify(ServiceState::Ready);
        manager.notify(ServiceState::MainProcess(4_711));
        assert_eq!(received(&at_path), "READY=1");
        assert_eq!(received(&at_path), "MAINPID=4711");

        let name = format!("tidegate-test-{}", std::process::id());
        let at_name = UnixDatagram::bind_addr(&abstract_address(name.as_bytes()).unwrap()).unwrap();
        ServiceManager(Some(format!("@{name}").into())).notify(ServiceState::Stopping);
        assert_eq!(received(&at_name), "STOPPING=1");
    }

    #[test]
    fn a_manager_that_is_gone_is_no_error() {
        ServiceManager(None).notify(ServiceState::Ready);
        ServiceManager(Some("/nowhere/notify".into())).notify(ServiceState::Ready);
    }
}
