//! `pontoonctl dev`: a cluster of processes that comes and goes.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::asking::interrupt;
use crate::serving::{SOON, free_ports, run, says};
use crate::{Answer, BINARY, json};

fn dev(temporary: &Path, arguments: &[&str]) -> Command {
    let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/pontoon.sh");
    let mut command = Command::new(BINARY);
    command
        .env("TMPDIR", temporary)
        .env("PONTOONCTL_TESTS", std::env::current_exe().unwrap())
        .env("ETCD_LISTEN_CLIENT_URLS", "http://nowhere:1")
        .arg("dev")
        .args(["--server", server.to_str().unwrap()])
        .args(arguments);
    command
}

/// One that is ready.
struct Running {
    child: Child,
    _out: BufReader<ChildStdout>,
    said: String,
    endpoints: String,
    pids: Vec<i32>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        while !said.ends_with("Ctrl-C ends it.\n") {
            let bytes = out.read_line(&mut said).unwrap();
            assert!(bytes > 0, "it has ended:\n{said}");
        }
        let words: Vec<_> = said.split_whitespace().collect();
        let after = |word: &str| {
            let words = words.windows(2).filter(|pair| pair[0] == word);
            words.map(|pair| pair[1].to_owned()).collect::<Vec<_>>()
        };
        Self {
            child,
            _out: out,
            endpoints: after("--endpoints").remove(0),
            pids: after("pid")
                .iter()
                .map(|pid| pid.parse().unwrap())
                .collect(),
            said,
        }
    }

    fn ctl(&self, arguments: &[&str]) -> Answer {
        let mut command = Command::new(BINARY);
        command
            .args(["--endpoints", &self.endpoints])
            .args(arguments);
        run(&mut command, b"")
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        self.ctl(arguments).expect(0)
    }

    /// As long as there is no new leader, it is refused, or not known.
    #[track_caller]
    fn ok_soon(&self, arguments: &[&str]) {
        let since = Instant::now();
        while self.ctl(arguments).code != 0 {
            assert!(since.elapsed() < SOON, "{arguments:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Interrupts it; returns what it said.
    fn end(self) -> String {
        interrupt(&self.child);
        let ended = self.child.wait_with_output().unwrap();
        assert!(ended.status.success());
        for pid in &self.pids {
            let pid = Pid::from_raw(*pid).unwrap();
            assert!(test_kill_process(pid).is_err(), "{pid:?} is still there");
        }
        String::from_utf8(ended.stderr).unwrap()
    }
}

fn is_empty(dir: &Path) -> bool {
    dir.read_dir().unwrap().next().is_none()
}

#[test]
fn a_cluster_comes_survives_and_goes() {
    let temporary = tempfile::tempdir().unwrap();
    let running = Running::start(dev(
        temporary.path(),
        &["--nodes", "3", "--groups", "5", "--port", "0"],
    ));
    assert!(running.said.starts_with("3 members, 5 ranges, ready; in "));
    assert_eq!(running.pids.len(), 3);
    running.ok(&["put", "hello", "world"]);
    let ranges = json(&running.ok(&["ranges", "list", "--json"]));
    let cuts = ranges
        .as_array()
        .unwrap()
        .iter()
        .map(|range| &range["first_key"]);
    let cuts: Vec<_> = cuts.filter_map(|key| key.as_str()).collect();
    assert_eq!(cuts, ["f", "k", "p", "u"]);
    assert!(!is_empty(temporary.path()));

    let pid = Pid::from_raw(running.pids[2]).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    running.ok_soon(&["put", "hello", "again"]);
    assert_eq!(running.ok(&["get", "hello"]), "hello  again\n");
    // It was noticed: the child is waited for.
    let since = Instant::now();
    while test_kill_process(pid).is_ok() {
        assert!(since.elapsed() < SOON, "nobody waits for it");
        std::thread::sleep(Duration::from_millis(10));
    }
    let said = running.end();
    assert!(
        said.contains("m3 has ended (signal: 9 (SIGKILL))"),
        "{said}"
    );
    assert!(
        said.contains("to start it again: ") && said.contains("--name=m3"),
        "{said}"
    );
    assert!(is_empty(temporary.path()));
}

#[test]
fn a_directory_that_was_named_stays() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let port = free_ports(2)[0].to_string();
    let arguments = [
        "--nodes",
        "1",
        "--groups",
        "2",
        "--port",
        &port,
        "--dir",
        data.to_str().unwrap(),
    ];
    let running = Running::start(dev(dir.path(), &arguments));
    running.ok(&["put", "k", "v"]);
    running.end();
    let running = Running::start(dev(dir.path(), &arguments));
    assert_eq!(running.ok(&["get", "k"]), "k  v\n");
    running.end();
    assert!(data.join("m1").is_dir());
}

#[test]
fn a_cluster_that_does_not_start_says_why_and_leaves_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let start = |server: &str| {
        let mut command = Command::new(BINARY);
        command.env("TMPDIR", temporary.path());
        run(
            command.args(["dev", "--port", "0", "--server", server]),
            b"",
        )
    };
    let failed = says(start("/bin/false"), 1);
    assert!(
        failed.contains("has ended (exit status: 1), without a word"),
        "{failed}"
    );
    let missing = says(start("/no/such/server"), 2);
    assert!(missing.contains("/no/such/server"), "{missing}");
    // With its last words.
    let failed = start("/bin/ls");
    assert_eq!(failed.code, 1);
    assert!(failed.err.contains("its last words:") && failed.err.contains("--name"));
    assert!(is_empty(temporary.path()));
}
