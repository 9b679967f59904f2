//! Tells systemd how far this server is (`Type=notify`).

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Tells it to the socket that the environment names, if it names one.
pub fn notify(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = tell(socket.to_string_lossy().as_ref(), state) {
        tracing::warn!("systemd is not told {state:?}: {error}");
    }
}

/// A name that begins with `@` is no file.
fn tell(socket: &str, state: &str) -> io::Result<()> {
    let address = match socket.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    sender.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_at_both_kinds_of_sockets() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let abstract_name = format!("pontoon-{}", std::process::id());
        let by_name = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let sockets = [
            (
                path.to_str().unwrap().to_owned(),
                UnixDatagram::bind(&path).unwrap(),
            ),
            (
                format!("@{abstract_name}"),
                UnixDatagram::bind_addr(&by_name).unwrap(),
            ),
        ];
        for (name, socket) in sockets {
            tell(&name, "READY=1").unwrap();
            let mut told = [0; 64];
            let bytes = socket.recv(&mut told).unwrap();
            assert_eq!(&told[..bytes], b"READY=1");
        }
        assert!(tell("/no/such/socket", "READY=1").is_err());
    }
}
