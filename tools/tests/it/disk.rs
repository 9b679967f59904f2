//! `pontoonctl disk`, on the real disk under the temporary directory. How fast
//! that is decides nothing here; what is rehearsed does.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::{TempDir, tempdir};

use crate::{Answer, BINARY, answer, json, start};

fn qualify(dir: &Path) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["disk", "qualify", "--dir"]).arg(dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

fn asked(dir: &Path, args: &[&str]) -> Answer {
    answer(qualify(dir).args(args))
}

#[track_caller]
fn is_empty(dir: &Path) {
    let names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(names.is_empty(), "{names:?} were left behind");
}

/// A whole quick run, on a disk whose commits are made to take 40 ms longer.
#[test]
fn a_slow_disk_is_unfit_and_the_constraint_is_named() {
    let (dir, out) = (tempdir().unwrap(), tempdir().unwrap());
    let (page, profile) = (
        out.path().join("report.html"),
        out.path().join("profile.json"),
    );
    let began = Instant::now();
    let found = answer(
        qualify(dir.path())
            .args(["--quick", "--json", "--rehearse-delay", "40ms"])
            .args(["--max-bytes", "512M", "--time-scale", "0.2"])
            .arg("--report")
            .arg(&page)
            .arg("--profile")
            .arg(&profile),
    );
    let report = json(&found.expect(1));
    let verdict = &report["verdict"];
    assert_eq!(verdict["fitness"], "unfit", "{verdict}");
    let constraint = verdict["constraint"].as_str().unwrap();
    // A busy machine may stall for real on top of it.
    assert!(
        ["latency", "stalls", "durability"].contains(&constraint),
        "{verdict}"
    );
    assert!(report["idle"]["commit"]["p50_ns"].as_u64().unwrap() > 40_000_000);
    assert!(report["io"].as_str().unwrap().contains("on purpose"));
    assert!(!verdict["fixes"].as_array().unwrap().is_empty());
    for part in ["sweep", "mixed", "sustained", "recovery", "tuning"] {
        assert!(report[part].is_object(), "{part} is missing");
    }
    is_empty(dir.path());
    // The promise is 30 s; a machine that does other things gets a little more.
    assert!(began.elapsed() < Duration::from_secs(90));

    let html = fs::read_to_string(&page).unwrap();
    assert!(html.matches("<svg").count() >= 5, "figures are missing");
    let profile = json(&fs::read_to_string(&profile).unwrap());
    assert_eq!(profile["kind"], "pontoon disk profile");
    loads_in_a_browser(&page, out.path());
}

/// If a Chromium is there, it draws the page without a complaint.
fn loads_in_a_browser(page: &Path, scratch: &Path) {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let there = |name: &&&str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
    };
    let Some(browser) = names.iter().find(there) else {
        return;
    };
    let shown = Command::new("timeout")
        .args(["60", browser])
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
        ])
        .args(["--disable-sync", "--no-first-run"])
        .arg(format!(
            "--user-data-dir={}",
            scratch.join("browser").display()
        ))
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    if !shown.status.success() {
        // The machine is too busy for a browser.
        return;
    }
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("How long a commit took"), "{shown}");
    assert!(shown.contains("</svg>"), "{shown}");
}

#[test]
fn the_classic_recipe_prints_what_fio_would() {
    let dir = tempdir().unwrap();
    let found = asked(dir.path(), &["--compat", "ibm", "--fio-json"]);
    let fio = json(&found.out);
    let job = &fio["jobs"][0];
    let sync = &job["sync"]["lat_ns"];
    assert_eq!(job["write"]["total_ios"], 10_029);
    assert_eq!(sync["N"], 10_029);
    let at = |percent: &str| sync["percentile"][percent].as_u64().unwrap();
    assert!(at("50.000000") > 0 && at("50.000000") <= at("99.000000"));
    let fit = at("99.000000") < 10_000_000;
    assert_eq!(found.code, i32::from(!fit));
    is_empty(dir.path());
}

/// Waits until what a child does is seen in its directory.
fn until_begun(dir: &Path, child: &mut Child) {
    let until = Instant::now() + Duration::from_secs(60);
    while fs::read_dir(dir).unwrap().next().is_none() {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        assert!(Instant::now() < until, "it did not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}

/// Interrupts after so long; what it printed, and its exit code.
fn interrupted(args: &[&str], after: Duration) -> (TempDir, String, i32) {
    let dir = tempdir().unwrap();
    let mut child = start(qualify(dir.path()).args(args).stderr(Stdio::null()));
    until_begun(dir.path(), &mut child);
    std::thread::sleep(after);
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    let code = output.status.code().unwrap();
    (dir, String::from_utf8(output.stdout).unwrap(), code)
}

#[test]
fn ctrl_c_at_any_moment_leaves_no_files() {
    for millis in [0, 30, 400] {
        let (dir, _, code) = interrupted(&[], Duration::from_millis(millis));
        assert_eq!(code, 2, "after {millis} ms");
        is_empty(dir.path());
    }
    let (dir, _, code) = interrupted(&["--compat", "ibm"], Duration::ZERO);
    assert!(code <= 2);
    is_empty(dir.path());
}

#[test]
fn what_was_known_at_ctrl_c_is_printed() {
    // What is known once these are there: with a server and without one.
    for (args, begun) in [
        (&["--rehearse-delay", "5ms"][..], "tree"),
        (&[][..], "server"),
    ] {
        let dir = tempdir().unwrap();
        let child = start(
            qualify(dir.path())
                .args(["--quick", "--json"])
                .args(args)
                .stderr(Stdio::null()),
        );
        let has_begun = || {
            let entries = fs::read_dir(dir.path()).unwrap();
            entries
                .flatten()
                .any(|entry| entry.path().join(begun).is_dir())
        };
        let until = Instant::now() + Duration::from_secs(60);
        while !has_begun() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        interrupt(&child);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let report = json(&String::from_utf8(output.stdout).unwrap());
        assert_eq!(report["ended_early"], "interrupted");
        assert!(report["idle"]["commit"]["count"].as_u64().unwrap() > 0);
        assert_eq!(report["verdict"]["fitness"], "unknown");
        is_empty(dir.path());
    }
}

#[test]
fn writes_are_those_of_a_server_on_the_disk() {
    let dir = tempdir().unwrap();
    let args = ["--quick", "--json", "--clients", "8", "--time-scale", "0.1"];
    let report = json(&asked(dir.path(), &args).out);
    let server = &report["server"];
    let rate = server["puts_per_s"].as_f64().unwrap();
    assert!(server["clients"] == 8 && rate > 0.0, "{server}");
    // A busy machine may not get as far as a knee.
    if report["verdict"]["fitness"] != "unknown" {
        let writes = report["verdict"]["writes_per_s"].as_f64().unwrap();
        assert!(writes <= rate, "{report}");
    }
    is_empty(dir.path());
}

#[test]
fn what_can_not_be_used_is_refused() {
    let dir = tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "mine").unwrap();
    let refused = |dir: &Path, args: &[&str], word: &str| {
        let found = asked(dir, args);
        assert_eq!(found.code, 2, "{} {}", found.out, found.err);
        assert!(found.err.contains(word), "{word:?} is not in {}", found.err);
        assert!(found.out.is_empty(), "{}", found.out);
    };
    refused(&file, &[], "is not a directory");
    refused(&file, &["--compat", "ibm"], "is not a directory");
    refused(&dir.path().join("none"), &[], "No such file");
    refused(dir.path(), &["--quick", "--soak"], "cannot be used with");
    refused(dir.path(), &["--compat", "fast"], "fast");
    refused(dir.path(), &["--fio-json"], "--compat");
    refused(dir.path(), &["--max-bytes", "1K"], "16M");
    refused(dir.path(), &["--p99-max", "soon"], "a time is");
    refused(
        dir.path(),
        &["--report", "/none/at/all.html"],
        "/none/at/all.html",
    );
    refused(
        dir.path(),
        &["--powerfail-witness", "127.0.0.1:1"],
        "127.0.0.1:1",
    );
    refused(
        dir.path(),
        &["--verify", file.to_str().unwrap()],
        "was not written by",
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn no_permission_is_said() {
    // Root may write anywhere, except where nobody may.
    let found = asked(Path::new("/proc"), &["--quick"]);
    assert_eq!(found.code, 2);
    let words = "/proc is not on a disk";
    assert!(found.err.contains(words), "{}", found.err);
    assert!(found.out.is_empty(), "{}", found.out);
    let found = asked(Path::new("/proc"), &["--compat", "ibm"]);
    assert_eq!(found.code, 2);
    assert!(found.err.contains(words), "{}", found.err);
}

/// A disk that stands still for seconds, again and again, and one that doesn't
/// come back: neither makes a quick run a long one.
#[test]
fn a_disk_that_stands_still_is_not_waited_for() {
    let (slow, gone) = (tempdir().unwrap(), tempdir().unwrap());
    let began = Instant::now();
    let on =
        |dir: &Path, delay: &str| asked(dir, &["--quick", "--json", "--rehearse-delay", delay]);
    let (slow_found, gone_found) = std::thread::scope(|scope| {
        let slow = scope.spawn(|| on(slow.path(), "4s"));
        let gone = scope.spawn(|| on(gone.path(), "10m"));
        (slow.join().unwrap(), gone.join().unwrap())
    });
    // The promise is 30 s; a machine that does other things gets more.
    assert!(began.elapsed() < Duration::from_secs(90));
    let report = json(&slow_found.expect(1));
    assert_eq!(report["verdict"]["fitness"], "unfit", "{report}");
    assert!(report["stalls"]["over_election"].as_u64().unwrap() > 0);
    let report = json(&gone_found.expect(1));
    assert_eq!(report["verdict"]["fitness"], "unfit", "{report}");
    assert_eq!(report["verdict"]["constraint"], "stalls", "{report}");
    assert!(report["stalls"]["longest_ms"].as_f64().unwrap() > 1000.0);
    let notes = report["doubts"].to_string();
    assert!(notes.contains("the time was up"), "{notes}");
    is_empty(slow.path());
    is_empty(gone.path());
}

struct Witnessed {
    dir: TempDir,
    seen: std::path::PathBuf,
}

/// Writes under a witness for a moment, then dies without a word.
fn witnessed() -> Witnessed {
    let dir = tempdir().unwrap();
    let seen = dir.path().join("seen");
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let mut witness = start(
        Command::new(BINARY)
            .args(["disk", "witness", "--listen", &free, "--out"])
            .arg(&seen)
            .stderr(Stdio::piped()),
    );
    // It says when it listens.
    let mut byte = [0];
    witness
        .stderr
        .as_mut()
        .unwrap()
        .read_exact(&mut byte)
        .unwrap();
    let mut writer = start(
        qualify(dir.path())
            .args(["--powerfail-witness", &free])
            .stderr(Stdio::null()),
    );
    let until = Instant::now() + Duration::from_secs(60);
    let lines = || {
        fs::read_to_string(&seen)
            .unwrap_or_default()
            .lines()
            .count()
    };
    while lines() < 20 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    writer.kill().unwrap();
    writer.wait().unwrap();
    // Its other end is gone, so the witness ends by itself.
    assert!(witness.wait().unwrap().success());
    assert!(lines() >= 20, "the witness heard {} lines", lines());
    Witnessed { dir, seen }
}

impl Witnessed {
    fn verify(&self) -> (i32, Value) {
        let seen = self.seen.to_str().unwrap();
        let found = asked(self.dir.path(), &["--verify", seen, "--json"]);
        (found.code, json(&found.out))
    }
}

#[test]
fn what_a_witness_saw_is_there_after_a_kill() {
    let witnessed = witnessed();
    let (code, found) = witnessed.verify();
    assert_eq!((code, &found["lost"]), (0, &Value::Null));
    assert!(found["witnessed"].as_u64().unwrap() > 0);
    // A second look finds the same: looking loses nothing.
    assert_eq!(witnessed.verify().1["witnessed"], found["witnessed"]);
}

#[test]
fn a_disk_that_lied_is_found_out() {
    let witnessed = witnessed();
    let text = fs::read_to_string(&witnessed.seen).unwrap();
    // As if more had been called durable than is there.
    fs::write(&witnessed.seen, format!("{text}durable 99999999\n")).unwrap();
    let (code, found) = witnessed.verify();
    assert_eq!(code, 1);
    assert!(
        found["lost"].as_str().unwrap().contains("not there"),
        "{found}"
    );
}
