//! The end of a process whose member has failed.
//!
//! Kept true: the process closes all its TCP sockets and exits within
//! [`TELL_WITHIN`] + [`GRACE`] of the failure, whatever hangs. The log may be on
//! the failed disk, and a thread in an uninterruptible write keeps the process
//! and its open files alive after `exit`: so what may hang runs on a thread that
//! nobody waits for, and sockets are shut down before the exit.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::Duration;
use std::{fs, io, thread};

use pontoon_server::{EXIT_DISK, FailureWatch, Fault, notify};
use rustix::net::{AddressFamily, Shutdown, sockopt};

/// How long the log and systemd have to take the news.
const TELL_WITHIN: Duration = Duration::from_secs(1);
/// How long clients have to read the last that was sent to them.
const GRACE: Duration = Duration::from_millis(200);

/// Waits for the failure on a thread with a runtime of its own: that of the
/// groups may hang with the disk.
pub(crate) fn watch(watch: FailureWatch) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let run = move || {
        let fault = runtime.block_on(watch.failed());
        end(fault, move || watch.stop_serving());
    };
    let thread = thread::Builder::new().name("fail-stop".to_owned());
    thread.spawn(run).map(drop)
}

/// Ends the process; `stop_serving` may hang. Only the first call counts.
pub(crate) fn end(fault: Fault, stop_serving: impl FnOnce() + Send + 'static) -> ! {
    static ENDING: AtomicBool = AtomicBool::new(false);
    if ENDING.swap(true, Relaxed) {
        loop {
            thread::park();
        }
    }
    shut_down(Sockets::Listening);
    let (told, wait) = mpsc::channel();
    let tell = move || {
        stop_serving();
        tracing::error!(error = %fault, exit_code = EXIT_DISK, "member failed, exiting");
        let line = fault.to_string().replace('\n', " ");
        notify(&format!("STOPPING=1\nSTATUS=failed: {line}"));
        let _ = told.send(());
    };
    // Without a thread nobody is told, but the process ends.
    if thread::Builder::new().spawn(tell).is_ok() {
        let _ = wait.recv_timeout(TELL_WITHIN);
        thread::sleep(GRACE);
    }
    shut_down(Sockets::All);
    std::process::exit(EXIT_DISK.into())
}

/// Which of the process's TCP sockets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sockets {
    Listening,
    All,
}

/// Shuts TCP sockets down: those of clients, of metrics and of other members.
/// Their owners may be on threads that hang, so none of them is asked.
fn shut_down(which: Sockets) {
    let Ok(open) = fs::read_dir("/proc/self/fd") else {
        return;
    };
    for file in open.flatten() {
        let number = file.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(number) = number {
            shut_down_one(number, which);
        }
    }
}

#[allow(unsafe_code, reason = "the owner of the socket can't be asked")]
fn shut_down_one(number: RawFd, which: Sockets) {
    if number < 0 {
        return;
    }
    // SAFETY: a descriptor must be open while it is borrowed. Another thread may
    // close this one meanwhile: then the calls below fail, or find another socket
    // of this process, which is to be shut down too. Nothing is read or written.
    let socket = unsafe { BorrowedFd::borrow_raw(number) };
    let family = sockopt::socket_domain(socket);
    if !matches!(family, Ok(AddressFamily::INET | AddressFamily::INET6)) {
        return;
    }
    let listens = sockopt::socket_acceptconn(socket).unwrap_or(false);
    if listens || which == Sockets::All {
        // One that is not connected any more needs nothing.
        let _ = rustix::net::shutdown(socket, Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use super::*;

    /// How long something may take that takes no time.
    const SOON: Duration = Duration::from_secs(30);

    /// Everything hangs: the sockets close, and the process ends in spite of it.
    #[test]
    fn a_failed_process_closes_its_sockets_and_exits() {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "fail_stop::tests::a_process_that_fails",
                "--ignored",
                "--nocapture",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut next = |name: &str| loop {
            let mut line = String::new();
            assert!(said.read_line(&mut line).unwrap() > 0, "it said no {name}");
            if let Some((_, value)) = line.trim().split_once(name) {
                break value.parse::<u32>().unwrap();
            }
        };
        let port: u16 = next("port=").try_into().unwrap();
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.set_read_timeout(Some(SOON)).unwrap();
        let keeper = next("keeper=").to_string();
        // It fails now.
        drop(child.stdin.take());
        assert_eq!(
            client.read(&mut [0]).unwrap(),
            0,
            "the connection is closed"
        );
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
        let since = Instant::now();
        let code = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status.code();
            }
            if since.elapsed() > SOON {
                child.kill().unwrap();
                panic!("it doesn't end");
            }
            thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(code, Some(EXIT_DISK.into()));
        let keeper = Command::new("kill").arg(keeper).status().unwrap();
        assert!(keeper.success(), "the sockets were closed by the exit");
    }

    #[test]
    #[ignore = "started by the test above, in a process of its own"]
    fn a_process_that_fails() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        println!("port={}", listener.local_addr().unwrap().port());
        let (client, _) = listener.accept().unwrap();
        // It has the sockets too, and keeps them when this process has ended, as
        // a thread in an uninterruptible write would.
        let keeper = Command::new("sleep")
            .arg((4 * SOON).as_secs().to_string())
            .stdin(OwnedFd::from(client.try_clone().unwrap()))
            .stdout(OwnedFd::from(listener.try_clone().unwrap()))
            .stderr(Stdio::null())
            .spawn();
        println!("keeper={}", keeper.unwrap().id());
        let _ = io::stdin().read(&mut [0]);
        let fault = Fault("wal/1.seg: write: EIO".to_owned());
        let hang = || loop {
            thread::park();
        };
        // A second failure is none.
        thread::spawn({
            let fault = fault.clone();
            move || end(fault, hang)
        });
        end(fault, hang)
    }
}
