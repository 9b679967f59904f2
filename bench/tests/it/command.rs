//! `pontoon-bench` as people run it: what it says and how it ends.

use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::store::Store;

pub(crate) fn bench() -> Command {
    Command::new(env!("CARGO_BIN_EXE_pontoon-bench"))
}

/// Runs words of a command line on a store.
pub(crate) fn at(store: &Store, line: &str) -> Output {
    let words = line.split_whitespace();
    let mut command = bench();
    command.args(words).arg("--endpoints").arg(&store.endpoint);
    command.output().unwrap()
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

pub(crate) fn said(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    format!("{out}{}", String::from_utf8_lossy(&output.stderr))
}

fn json(output: &Output) -> Value {
    assert_eq!(code(output), 0, "{}", said(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

const SMALL: &str = "--count 300 --key-space 200 --clients 8 --connections 2 --warm-up 0s --json";

#[test]
fn every_workload_asks_and_is_answered() {
    let store = Store::start();
    for workload in [
        "put",
        "cas",
        "get",
        "get-serializable",
        "range",
        "pages",
        "range-old",
        "mixed --read-percent 50 --spread zipf",
        "watch --watchers 3",
        "lease",
        "compaction",
        "put --value-bytes 10..400",
        "cas --value-bytes k8s",
        "put --threads 2",
    ] {
        let report = json(&at(&store, &format!("run {workload} {SMALL}")));
        assert_eq!(report["requests"], 300, "{workload}");
        assert_eq!(report["errors"], serde_json::json!({}), "{workload}");
        assert!(report["latency_ms"]["p99_99"].as_f64().unwrap() > 0.0);
        if workload.starts_with("watch") {
            assert!(report["events"]["count"].as_u64().unwrap() > 0);
        }
        if workload.starts_with("mixed") {
            let of = |class: usize| report["classes"][class]["requests"].as_u64().unwrap();
            assert_eq!(of(0) + of(1), 300);
            assert!(of(0) > 50 && of(1) > 50, "half of each");
        }
    }
}

#[test]
fn an_open_loop_asks_at_its_rate_and_counts_from_when_it_was_due() {
    let store = Store::start();
    let line = "run put --rate 500 --duration 1s --warm-up 0s --key-space 100 --json";
    let report = json(&at(&store, line));
    assert_eq!(report["open"]["rate"], 500.0);
    // However fast this machine is, no more are due, and none is forgotten.
    let asked = report["requests"].as_u64().unwrap();
    let unsent = report["open"]["unsent"].as_u64().unwrap();
    assert!(asked > 0 && asked <= 501, "{report}");
    assert!((400..=510).contains(&(asked + unsent)), "{report}");
    // One client with 100,000 due per second can't keep up: latency grows with
    // the load, though no answer takes long.
    let line = "run put --rate 100k --clients 1 --duration 1s --warm-up 0s --key-space 100 --json";
    let report = json(&at(&store, line));
    assert_eq!(report["open"]["held"], false);
    assert!(report["open"]["late"].as_u64().unwrap() > 0);
    assert!(report["open"]["unsent"].as_u64().unwrap() > 0);
    assert!(
        report["latency_ms"]["max"].as_f64().unwrap() > 100.0,
        "{report}"
    );
}

#[test]
fn leases_that_are_left_are_seen_to_expire() {
    let store = Store::start();
    let line = "run lease --lease-ttl 1 --rate 100 --clients 4 --duration 5s --warm-up 0s --json";
    let output = at(&store, line);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let events = &report["events"];
    let (expired, deletes) = (&events["expired"], &events["deletes"]);
    assert!(expired.as_u64().unwrap() > 0, "{events}");
    // The others were revoked.
    assert!(expired.as_u64() < deletes.as_u64(), "{events}");
    let late = |at: &str| events["expired_late_ms"][at].as_f64().unwrap();
    assert!(late("p50") > 0.0 && late("p50") <= late("max"), "{events}");
}

#[test]
fn a_target_is_held_or_not_and_the_code_says_so() {
    let store = Store::start();
    let few = "--duration 500ms --warm-up 0s --key-space 100";
    // On a machine that does much else it may take more than one try.
    let tries = (0..20).map(|_| at(&store, &format!("target 50 {few}")));
    let held = tries.into_iter().find(|held| code(held) == 0);
    let held = held.expect("50 writes per second are held");
    assert!(said(&held).contains("50 durable writes/s: HELD"));
    let not = at(&store, &format!("target 1M --clients 1 {few} --json"));
    let verdict: Value = serde_json::from_slice(&not.stdout).unwrap();
    assert_ne!(verdict["judgement"], "held");
    assert!([1, 2].contains(&code(&not)));
    store.refuse();
    let refused = at(&store, &format!("target 50 {few}"));
    assert_eq!(code(&refused), 1, "{}", said(&refused));
    assert!(said(&refused).contains("requests failed"));
}

#[test]
fn a_control_plane_is_simulated_and_a_ramp_ends() {
    let store = Store::start();
    let few =
        "--nodes 40 --pod-churn 900 --pods-per-node 2 --list-every 300ms --compact-every 200ms";
    let line = format!("k8s {few} --duration 2s --warm-up 0s --p99-max 60s --json");
    // Whether they are carried is about the machine.
    let output = at(&store, &line);
    let step: Value = serde_json::from_slice(&output.stdout).unwrap();
    let report = &step["report"];
    assert_eq!(report["errors"], serde_json::json!({}), "{report}");
    assert_eq!(report["conflicts"], 0, "{report}");
    for class in report["classes"].as_array().unwrap() {
        let rare = ["node status", "lease grant"].contains(&class["name"].as_str().unwrap());
        assert!(rare || class["requests"].as_u64().unwrap() > 0, "{class}");
    }
    assert!(report["events"]["count"].as_u64().unwrap() > 0);
    assert!(store.keys() >= 40 * 4);
    let line = "k8s --ramp --nodes 5 --nodes-max 20 --duration 200ms --warm-up 0s --p99-max 60s";
    let ramp = at(&store, line);
    assert_eq!(code(&ramp), 0, "{}", said(&ramp));
    assert!(said(&ramp).contains("At least 20 nodes are carried"));
}

/// Of a ramp against a store that carries so many nodes. So little is due that
/// any of it makes a rate that is held, however busy this machine is.
fn ramp(capacity: usize, more: &str) -> Output {
    let store = Store::start();
    store.carries(capacity);
    let times = "--duration 4s --warm-up 0s --list-every 2s --p99-max 60s";
    let few = "--nodes 2 --pods-per-node 1 --pod-churn 0";
    at(&store, &format!("k8s --ramp {few} {times} {more}"))
}

#[test]
fn a_ramp_finds_the_knee() {
    let (knee, lines, none) = std::thread::scope(|scope| {
        let knee = scope.spawn(|| ramp(3, ""));
        let lines = scope.spawn(|| ramp(3, "--json"));
        let none = scope.spawn(|| ramp(0, ""));
        let done = (knee.join(), lines.join(), none.join());
        (done.0.unwrap(), done.1.unwrap(), done.2.unwrap())
    });
    assert_eq!(code(&knee), 0, "{}", said(&knee));
    let text = String::from_utf8_lossy(&knee.stdout).into_owned();
    assert_eq!(text, "3 nodes are carried, 4 are not.\n", "{}", said(&knee));
    for part in [
        "2 nodes: carried",
        "4 nodes: NOT CARRIED",
        "3 nodes: carried",
    ] {
        assert!(said(&knee).contains(part), "{part}: {}", said(&knee));
    }
    assert_eq!(code(&lines), 0, "{}", said(&lines));
    let text = String::from_utf8_lossy(&lines.stdout).into_owned();
    let steps: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let tried: Vec<_> = steps
        .iter()
        .map(|step| (step["nodes"].as_u64().unwrap(), step["refused"].is_null()))
        .collect();
    assert_eq!(tried, [(2, true), (4, false), (3, true)], "{text}");
    let why = steps[1]["refused"].as_str().unwrap();
    assert!(why.contains("requests failed"), "{why}");
    assert_eq!(code(&none), 1, "{}", said(&none));
    assert!(said(&none).contains("Not even 1 nodes are carried."));
}

#[test]
fn servers_are_compared_with_intervals() {
    let (one, other) = (Store::start(), Store::start());
    let mut command = bench();
    command.args(["compare", "--workloads", "put", "--rounds", "3"]);
    command.args([
        "--duration",
        "150ms",
        "--warm-up",
        "0s",
        "--json",
        "--endpoint",
    ]);
    command.arg(format!("a={}", one.endpoint));
    command
        .arg("--endpoint")
        .arg(format!("b={}", other.endpoint));
    let output = command.output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[0]["name"], "put-rate");
    let (low, high) = (&lines[0]["interval"][0], &lines[0]["interval"][1]);
    let ratio = lines[0]["ratio"].as_f64().unwrap();
    assert!(low.as_f64().unwrap() <= ratio && ratio <= high.as_f64().unwrap());
}

#[test]
fn bad_wishes_and_bad_places_are_told() {
    let store = Store::start();
    for (line, text) in [
        ("run nothing", "invalid value"),
        ("run put --clients 0", "there must be clients"),
        ("run put --rate 0", "above 0"),
        ("run put --value-bytes lots", "say it as"),
        ("run put --duration soon", "say it as 10s"),
        ("run put --key-space 0", "number of keys"),
        ("run put --user root", "NAME:PASSWORD"),
        ("run put --cacert /nowhere/ca.pem", "/nowhere/ca.pem"),
        ("run mixed --read-percent 101", "0 to 100"),
        ("target fast", "10k"),
        ("target 10k --workload get", "a target is of writes"),
        ("k8s --nodes 0", "nodes"),
        ("k8s --prefix /", "must not be all keys"),
        (
            "run put --report /nowhere/report.html",
            "can't write the report to /nowhere/report.html",
        ),
        ("run put --report /", "can't write the report to /"),
    ] {
        let output = at(&store, line);
        assert_eq!(code(&output), 2, "{line}: {}", said(&output));
        assert!(said(&output).contains(text), "{line}: {}", said(&output));
    }
    assert_eq!(store.keys(), 0, "nothing was begun");
    let nobody = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    for line in ["run put", "target 10k", "k8s"] {
        let mut command = bench();
        command.args(line.split_whitespace());
        let output = command
            .arg("--endpoints")
            .arg(nobody.to_string())
            .output()
            .unwrap();
        assert_eq!(code(&output), 2);
        let text = format!("can't connect to http://{nobody}: ");
        assert!(said(&output).contains(&text), "{}", said(&output));
    }
    let secure = bench()
        .args(["run", "put", "--endpoints", "https://127.0.0.1:1"])
        .output();
    assert!(said(&secure.unwrap()).contains("https needs --cacert"));
}

#[test]
fn ctrl_c_tells_what_is_known_and_leaves_only_the_report() {
    let store = Store::start();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut command = bench();
    command.args([
        "run",
        "put",
        "--duration",
        "600s",
        "--warm-up",
        "0s",
        "--report",
        "r.html",
    ]);
    command.arg("--endpoints").arg(&store.endpoint);
    command
        .current_dir(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Until it has begun.
    while store.keys() == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let mut text = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(
        text.contains("INTERRUPTED") && text.contains("answers"),
        "{text}"
    );
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1);
    let page = std::fs::read_to_string(dir.path().join("r.html")).unwrap();
    assert!(page.contains("Interrupted: this is what is known."));
}
