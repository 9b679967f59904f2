//! Real servers, in this process or as processes, and `pontoonctl` against them.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pontoon_server::{Config, Parsed, Server, parse};
use tempfile::TempDir;
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::{Answer, BINARY};

/// How long something may take that takes no time.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Not a test: what this binary does when it is started as a server.
#[test]
#[ignore = "it is what `pontoonctl dev` runs here"]
fn as_pontoon() {
    let Ok(arguments) = std::env::var("SERVE") else {
        return;
    };
    let arguments = arguments.split_whitespace().map(str::to_owned);
    let Ok(Parsed::Run(config, _)) = parse(Config::default(), arguments, std::iter::empty()) else {
        panic!("it is not to be run");
    };
    Runtime::new().unwrap().block_on(async {
        let mut stop = signal(SignalKind::terminate()).unwrap();
        let server = Server::start(*config).await.unwrap();
        stop.recv().await;
        server.stop().await;
    });
}

/// Servers that end with the test.
pub(crate) struct Cluster {
    servers: Vec<Option<Server>>,
    pub(crate) endpoints: Vec<String>,
    runtime: Runtime,
    _dir: TempDir,
}

impl Cluster {
    pub(crate) fn one() -> Self {
        Self::start(1, &[])
    }

    /// `m1` and so on, with keys cut at `splits`.
    pub(crate) fn start(members: usize, splits: &[&'static str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let runtime = Runtime::new().unwrap();
        let ports = free_ports(2 * members as u16);
        let url = |at: usize| format!("http://127.0.0.1:{}", ports[at]);
        let cluster = (0..members).map(|at| format!("m{}={}", at + 1, url(members + at)));
        let cluster: Vec<_> = cluster.collect();
        let configs = (0..members).map(|at| Config {
            name: format!("m{}", at + 1),
            data_dir: Some(dir.path().join(at.to_string())),
            listen_client_urls: url(at),
            advertise_client_urls: Some(url(at)),
            listen_peer_urls: url(members + at),
            initial_advertise_peer_urls: url(members + at),
            initial_cluster: Some(cluster.join(",")),
            initial_splits: splits.iter().map(|key| (*key).into()).collect(),
            ..Config::default()
        });
        let starting = futures_util::future::join_all(configs.map(Server::start));
        let servers = runtime.block_on(starting).into_iter();
        Self {
            servers: servers.map(|server| Some(server.unwrap())).collect(),
            endpoints: ports[..members]
                .iter()
                .map(|port| format!("127.0.0.1:{port}"))
                .collect(),
            runtime,
            _dir: dir,
        }
    }

    pub(crate) fn stop(&mut self, at: usize) {
        let server = self.servers[at].take().unwrap();
        self.runtime.block_on(server.stop());
    }

    /// `pontoonctl`, to be run against it.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command
            .args(["--endpoints", &self.endpoints.join(",")])
            .args(arguments);
        command
    }

    pub(crate) fn ctl(&self, arguments: &[&str]) -> Answer {
        run(&mut self.command(arguments), b"")
    }

    /// What it prints when all is well.
    #[track_caller]
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let answer = self.ctl(arguments);
        assert_eq!(answer.err, "", "{arguments:?}");
        answer.expect(0)
    }

    /// What it says when it ends with this code: one line.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, arguments: &[&str]) -> String {
        says(self.ctl(arguments), code)
    }

    /// Asks until the answer is as it should be.
    #[track_caller]
    pub(crate) fn until(&self, arguments: &[&str], holds: impl Fn(&str) -> bool) -> String {
        let since = Instant::now();
        loop {
            let answer = self.ctl(arguments);
            if answer.code == 0 && holds(&answer.out) {
                return answer.out;
            }
            assert!(since.elapsed() < SOON, "{}\n{}", answer.out, answer.err);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The one line that it says when it ends with this code.
#[track_caller]
pub(crate) fn says(answer: Answer, code: i32) -> String {
    let Answer { out, err, .. } = &answer;
    assert_eq!(answer.code, code, "{out}\n{err}");
    assert!(err.starts_with("pontoonctl: "), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    err.clone()
}

/// Runs a command to its end, with this as its input.
pub(crate) fn run(command: &mut Command, input: &[u8]) -> Answer {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // Who doesn't read it may have ended: fine.
    let _ = stdin.write_all(input);
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    Answer {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Whether nobody listens there. It doesn't listen itself: a process that is
/// being started beside this would inherit the listener until it runs its
/// program, and the port would be taken meanwhile.
fn is_free(port: &u16) -> bool {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(([127, 0, 0, 1], *port).into()).is_ok()
}

/// Ports in a row that nobody has now, and that no other call returns. They are
/// below those that the system assigns, so no connection takes them meanwhile.
pub(crate) fn free_ports(count: u16) -> Vec<u16> {
    const FIRST: u16 = 10_000;
    const SPAN: u16 = 20_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Test binaries that run side by side begin at different places.
    let start = std::process::id().wrapping_mul(97);
    loop {
        let number = start.wrapping_add(NEXT.fetch_add(count.into(), Relaxed));
        let first = FIRST + (number % u32::from(SPAN)) as u16;
        let ports: Vec<_> = (first..first + count).collect();
        if ports.iter().all(is_free) {
            return ports;
        }
    }
}
