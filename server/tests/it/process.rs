//! The program itself: its flags, variables, words and signals.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use pontoon_api::etcdserverpb::MemberAddRequest;
use pontoon_api::etcdserverpb::cluster_client::ClusterClient;
use pontoon_api::etcdserverpb::kv_client::KvClient;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use rustix::pty;
use tonic::transport::Endpoint;

use crate::running::{SOON, free_ports, until};

fn pontoon(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pontoon"));
    command.current_dir(dir).env_clear().stdin(Stdio::null());
    command
}

fn run(dir: &Path, arguments: &[&str]) -> Output {
    pontoon(dir).args(arguments).output().unwrap()
}

/// Ended with the test.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Ending {
    fn terminate(&self) {
        let id = self.0.id().to_string();
        let told = Command::new("kill").args(["-TERM", &id]).status().unwrap();
        assert!(told.success());
    }

    fn stop(self) -> bool {
        self.terminate();
        self.exit_code() == Some(0)
    }

    fn exit_code(mut self) -> Option<i32> {
        let since = Instant::now();
        while since.elapsed() < STOPPED_WITHIN {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it doesn't stop");
    }
}

/// Longer than any wait of a stop.
const STOPPED_WITHIN: Duration = Duration::from_secs(60);

#[test]
fn it_says_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let version = run(dir.path(), &["--version"]);
    assert!(version.status.success());
    let text = String::from_utf8(version.stdout).unwrap();
    assert!(text.starts_with("etcd Version: 3."), "{text}");
    assert_eq!(text.lines().count(), 4);
    let help = run(dir.path(), &["-h"]);
    assert!(help.status.success());
    assert!(
        String::from_utf8(help.stdout)
            .unwrap()
            .contains("--initial-cluster\n")
    );
    let unknown = run(dir.path(), &["--no-such-flag"]);
    assert_eq!(unknown.status.code(), Some(2));
    let text = String::from_utf8(unknown.stderr).unwrap();
    assert!(
        text.starts_with("flag provided but not defined: --no-such-flag"),
        "{text}"
    );
}

#[test]
fn what_is_refused_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let refused = [
        (&["--cert-file=server.crt"][..], "TLS is not served yet"),
        (&["--listen-peer-urls=https://127.0.0.1:0"], "only http"),
        (&["--force-new-cluster"], "can't be cut down"),
        (&["--discovery-token=x"], "--discovery-srv"),
        (&["--auth-token=jwt,pub-key=x"], "users and roles"),
        (&["--io-backend=fast"], "neither auto, uring nor syscalls"),
        (&["--config-file=missing.yml"], "can't be read"),
        (&["--log-outputs=no/such/dir/log"], "--log-outputs"),
    ];
    for (arguments, words) in refused {
        let ended = run(dir.path(), arguments);
        assert_eq!(ended.status.code(), Some(1), "{arguments:?}");
        let text = String::from_utf8(ended.stderr).unwrap();
        assert!(text.contains(words), "{arguments:?}: {text}");
    }
    assert!(dir.path().read_dir().unwrap().next().is_none());
}

/// One that is set up by variables and a file, as systemd would run it.
#[test]
fn it_runs_as_a_service() {
    let dir = tempfile::tempdir().unwrap();
    let ports = free_ports(2);
    let (client, peer) = (ports[0], ports[1]);
    let settings = format!(
        "name: m1\n\
         data-dir: data\n\
         listen-client-urls: http://127.0.0.1:{client}\n\
         advertise-client-urls: http://127.0.0.1:{client}\n\
         listen-peer-urls: http://127.0.0.1:{peer}\n\
         initial-advertise-peer-urls: http://127.0.0.1:{peer}\n\
         initial-cluster: m1=http://127.0.0.1:{peer}\n\
         warning-unary-request-duration: 1\n\
         logger: zap\n\
         max-wals: 5\n\
         log-format: json\n\
         log-outputs: [stdout, log]\n"
    );
    fs::write(dir.path().join("settings.yml"), settings).unwrap();
    let notify = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    notify.set_read_timeout(Some(SOON)).unwrap();
    let child = pontoon(dir.path())
        .env("ETCD_CONFIG_FILE", "settings.yml")
        .env("NOTIFY_SOCKET", dir.path().join("notify"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let child = Ending(child);
    let told = || {
        let mut told = [0; 64];
        let bytes = notify.recv(&mut told).unwrap();
        String::from_utf8(told[..bytes].to_vec()).unwrap()
    };
    assert_eq!(told(), "READY=1");
    put(client);
    assert!(child.stop());
    assert_eq!(told(), "STOPPING=1");

    let log = fs::read_to_string(dir.path().join("log")).unwrap();
    for line in log.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|_| panic!("{line}"));
    }
    for words in [
        "--max-wals has no effect",
        "ready to serve client requests",
        "Put took",
        "told to stop",
    ] {
        let said = log.lines().filter(|line| line.contains(words)).count();
        assert_eq!(said, 1, "{words}: {log}");
    }
}

/// Called as etcd is, without a word about the log: each line on stdout and
/// stderr is an object with etcd's keys, from the first to the last.
#[test]
fn called_etcd_it_logs_as_etcd_does() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("etcd");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_pontoon"), &program).unwrap();
    let (client, arguments) = alone();
    let start = |more: &[&str]| {
        let mut command = Command::new(&program);
        command.current_dir(dir.path()).env_clear();
        command.args(&arguments).args(more).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let notify = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    notify.set_read_timeout(Some(SOON)).unwrap();
    let mut command = start(&["--log-level=debug"]);
    let mut child = command
        .env("NOTIFY_SOCKET", dir.path().join("notify"))
        .spawn()
        .unwrap();
    let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let err = std::thread::spawn(move || std::io::read_to_string(err).unwrap());
    let child = Ending(child);
    let mut told = [0; 64];
    let bytes = notify.recv(&mut told).unwrap();
    assert_eq!(&told[..bytes], b"READY=1");
    put(client);
    assert!(child.stop());
    assert_eq!(std::io::read_to_string(out).unwrap(), "");
    let log = err.join().unwrap();
    for words in [
        "ready to serve client requests",
        "\"msg\":\"serving client traffic\"",
        "\"snapshot-catchup-entries\":5000",
        "told to stop",
    ] {
        assert!(log.contains(words), "{words}: {log}");
    }
    let refused = [
        start(&["--max-txn-ops=many"]),
        start(&[
            "--data-dir=new",
            "--initial-cluster=other=http://127.0.0.1:1",
        ]),
    ];
    let mut logs = vec![log];
    for mut command in refused {
        let ended = command.output().unwrap();
        assert_eq!(ended.status.code(), Some(1));
        assert_eq!(ended.stdout, b"");
        let log = String::from_utf8(ended.stderr).unwrap();
        assert!(log.lines().last().unwrap().contains("\"error\":"), "{log}");
        logs.push(log);
    }
    for line in logs.iter().flat_map(|log| log.lines()) {
        let entry: serde_json::Map<_, _> =
            serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        for key in ["level", "ts", "caller", "msg"] {
            let text = entry.get(key).and_then(|value| value.as_str());
            assert!(text.is_some_and(|text| !text.is_empty()), "{key}: {line}");
        }
    }
}

/// One WARN, when the second voter comes.
#[test]
fn an_even_number_of_voters_is_warned_of_once() {
    let dir = tempfile::tempdir().unwrap();
    let (client, arguments) = alone();
    let notify = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    notify.set_read_timeout(Some(SOON)).unwrap();
    let child = pontoon(dir.path())
        .args(&arguments)
        .arg("--log-outputs=log")
        .env("NOTIFY_SOCKET", dir.path().join("notify"))
        .stdout(Stdio::null())
        .spawn();
    let _child = Ending(child.unwrap());
    let bytes = notify.recv(&mut [0; 64]).unwrap();
    assert!(bytes > 0);
    let warnings = || {
        let log = fs::read_to_string(dir.path().join("log")).unwrap();
        log.matches("an even number of voters").count()
    };
    assert_eq!(warnings(), 0);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let at = format!("http://127.0.0.1:{client}");
        let channel = Endpoint::from_shared(at).unwrap().connect().await;
        let mut cluster = ClusterClient::new(channel.unwrap());
        let second = MemberAddRequest {
            peer_urls: vec!["http://127.0.0.1:1".to_owned()],
            is_learner: false,
        };
        cluster.member_add(second).await.unwrap();
        until(|| async { warnings() > 0 }).await;
    });
    assert_eq!(warnings(), 1);
}

fn put(port: u16) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let at = format!("http://127.0.0.1:{port}");
        let channel = Endpoint::from_shared(at).unwrap().connect().await;
        let mut client = KvClient::new(channel.unwrap());
        client.put(crate::running::put("k", "v")).await.unwrap();
    });
}

/// The program with a limit of file sizes (in blocks of 512 bytes): a write
/// beyond it fails as on a broken disk, also for root.
fn limited(dir: &Path, blocks: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let script = "trap '' XFSZ; ulimit -f \"$0\"; exec \"$@\"";
    command.args(["-c", script, blocks, env!("CARGO_BIN_EXE_pontoon")]);
    command.args(arguments);
    command.current_dir(dir).env_clear().stdin(Stdio::null());
    command
}

/// Where one server that is alone listens.
fn alone() -> (u16, [String; 5]) {
    let ports = free_ports(2);
    let (client, peer) = (ports[0], ports[1]);
    let arguments = [
        "--data-dir=data".to_owned(),
        format!("--listen-client-urls=http://127.0.0.1:{client}"),
        format!("--advertise-client-urls=http://127.0.0.1:{client}"),
        format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
        format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer}"),
    ];
    (client, arguments)
}

#[test]
fn a_start_on_a_failing_disk_has_its_own_exit_code() {
    let (_, arguments) = alone();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    // The identity can't be written, or the log.
    for (blocks, words) in [
        ("0", "can't write data/pontoon.json"),
        ("1024", "data/wal/"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let ended = limited(dir.path(), blocks, &arguments).output().unwrap();
        let text = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(74), "{text}");
        let last = text.lines().last().unwrap();
        assert!(last.starts_with("pontoon: "), "{text}");
        assert!(
            last.contains(words) && last.contains("(os error 27)"),
            "{text}"
        );
    }
    // A place that is none is a mistake.
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("data"), "").unwrap();
    let ended = run(dir.path(), &arguments);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
}

/// A running server whose disk fails: one ERROR, the exit code, and its port is
/// closed.
#[test]
fn a_disk_that_fails_ends_the_process() {
    let (client, arguments) = alone();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let dir = tempfile::tempdir().unwrap();
    let notify = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    notify.set_read_timeout(Some(SOON)).unwrap();
    let mut command = limited(dir.path(), "unlimited", &arguments);
    command.env("NOTIFY_SOCKET", dir.path().join("notify"));
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut log = child.stderr.take().unwrap();
    let child = Ending(child);
    let told = || {
        let mut told = [0; 1024];
        let bytes = notify.recv(&mut told).unwrap();
        String::from_utf8(told[..bytes].to_vec()).unwrap()
    };
    assert_eq!(told(), "READY=1");
    put(client);
    let pid = Pid::from_raw(child.0.id().try_into().unwrap());
    let nothing = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    prlimit(pid, Resource::Fsize, nothing).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let at = format!("http://127.0.0.1:{client}");
        let channel = Endpoint::from_shared(at).unwrap().connect_lazy();
        let mut client = KvClient::new(channel);
        let put = client.put(crate::running::put("k", "v2"));
        assert!(crate::running::soon(put).await.is_err());
    });
    let told = told();
    assert!(told.starts_with("STOPPING=1\nSTATUS=failed: "), "{told}");
    assert_eq!(child.exit_code(), Some(74));
    let mut text = String::new();
    log.read_to_string(&mut text).unwrap();
    let errors: Vec<_> = text.lines().filter(|line| line.contains("ERROR")).collect();
    assert_eq!(errors.len(), 1, "{text}");
    assert!(errors[0].contains("(os error 27)"), "{text}");
    assert!(std::net::TcpStream::connect(("127.0.0.1", client)).is_err());
}

/// A cluster under load: its members stop one after the other.
#[test]
fn a_stop_logs_no_error_and_the_last_member_does_not_wait() {
    let dir = tempfile::tempdir().unwrap();
    let ports = free_ports(6);
    let (clients, peers) = ports.split_at(3);
    let cluster: Vec<_> = (0..3)
        .map(|at| format!("m{at}=http://127.0.0.1:{}", peers[at]))
        .collect();
    let start = |at: usize| {
        let (client, peer) = (clients[at], peers[at]);
        let child = pontoon(dir.path())
            .args([
                format!("--name=m{at}"),
                format!("--data-dir=data{at}"),
                format!("--listen-client-urls=http://127.0.0.1:{client}"),
                format!("--advertise-client-urls=http://127.0.0.1:{client}"),
                format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
                format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer}"),
                format!("--initial-cluster={}", cluster.join(",")),
                "--initial-splits=d,h,m,r".to_owned(),
                format!("--log-outputs=log{at}"),
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Ending(child.unwrap())
    };
    let members: Vec<_> = (0..3).map(start).collect();
    let log =
        |at: usize| fs::read_to_string(dir.path().join(format!("log{at}"))).unwrap_or_default();
    let since = Instant::now();
    while !(0..3).all(|at| log(at).contains("ready to serve")) {
        assert!(
            since.elapsed() < STOPPED_WITHIN,
            "they don't find each other"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    for port in clients {
        for key in ["a", "e", "i", "n", "s"] {
            let at = format!("http://127.0.0.1:{port}");
            runtime.spawn(async move {
                let channel = Endpoint::from_shared(at).unwrap().connect_lazy();
                let mut client = KvClient::new(channel);
                loop {
                    if client.put(crate::running::put(key, "v")).await.is_err() {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
            });
        }
    }
    for (at, member) in members.into_iter().enumerate() {
        assert!(member.stop(), "{}", log(at));
    }
    for at in 0..3 {
        let log = log(at);
        assert!(!log.contains("ERROR"), "m{at}: {log}");
        assert!(log.contains("told to stop"), "m{at}: {log}");
    }
    let last = log(2);
    assert!(!last.contains("not handed over in time"), "{last}");
}

/// On a terminal the log has neither colours nor complaints about them.
#[test]
fn the_log_on_a_terminal_is_plain() {
    let master = pty::openpt(pty::OpenptFlags::RDWR | pty::OpenptFlags::NOCTTY).unwrap();
    pty::grantpt(&master).unwrap();
    pty::unlockpt(&master).unwrap();
    let name = pty::ptsname(&master, Vec::new()).unwrap();
    let terminal = File::options()
        .read(true)
        .write(true)
        .open(name.to_str().unwrap())
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    // It warns of the first, and stops at the second.
    let status = pontoon(dir.path())
        .args(["--max-wals=5", "--initial-cluster=other=http://127.0.0.1:1"])
        .args(["--listen-client-urls=http://127.0.0.1:0"])
        .args(["--advertise-client-urls=http://127.0.0.1:1"])
        .stderr(terminal)
        .stdout(Stdio::null())
        .status();
    assert_eq!(status.unwrap().code(), Some(1));
    // Reading ends with an error when nobody has the terminal any more.
    let mut said = Vec::new();
    let _ = File::from(master).read_to_end(&mut said);
    let said = String::from_utf8(said).unwrap();
    assert!(
        said.contains("WARN") && said.contains("--max-wals has no effect"),
        "{said}"
    );
    assert!(!said.contains("ansi") && !said.contains('\x1b'), "{said}");
}
