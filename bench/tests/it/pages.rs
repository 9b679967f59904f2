//! The pages, as a browser sees them.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::command::bench;
use super::store::Store;

/// The browser, if there is one.
fn browser() -> Option<PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome", "chrome"];
    let path = std::env::var_os("PATH")?;
    let places = std::env::split_paths(&path);
    let mut all = places.flat_map(|place| names.map(|name| place.join(name)));
    all.find(|path| path.is_file())
}

/// What the page is after a browser has read it; none without a browser, or
/// if the machine is too busy for one.
fn read_by_browser(page: &Path, dir: &Path) -> Option<String> {
    let output = Command::new("timeout")
        .arg("60")
        .arg(browser()?)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .args(["--enable-logging=stderr", "--disable-dev-shm-usage"])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
        ])
        .args(["--disable-sync", "--no-first-run"])
        .arg(format!("--user-data-dir={}", dir.join("profile").display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!errors.contains("CONSOLE"), "the page complains: {errors}");
    let seen = String::from_utf8(output.stdout).unwrap();
    output.status.success().then_some(seen)
}

/// Looks whether everything that begins ends, in order.
fn check_elements(html: &str) {
    let mut open = Vec::new();
    for part in html.split('<').skip(1) {
        let (tag, _) = part.split_once('>').expect("a tag ends");
        if tag.starts_with('!') || tag.ends_with('/') {
            continue;
        }
        let name = tag.split_whitespace().next().unwrap_or_default();
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None => open.push(name),
        }
    }
    assert_eq!(open, [""; 0]);
}

#[test]
fn pages_are_whole_and_their_figures_are_seen() {
    let (store, other) = (Store::start(), Store::start());
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let short = [
        "--duration",
        "300ms",
        "--warm-up",
        "0s",
        "--key-space",
        "100",
    ];
    let (a, b) = (
        format!("a={}", store.endpoint),
        format!("b={}", other.endpoint),
    );
    let loads: [(&str, Vec<&str>, usize); 4] = [
        (
            "run.html",
            vec!["run", "mixed", "--endpoints", &store.endpoint],
            4,
        ),
        (
            "target.html",
            vec!["target", "20", "--endpoints", &store.endpoint],
            4,
        ),
        (
            "compare.html",
            vec![
                "compare",
                "--endpoint",
                &a,
                "--endpoint",
                &b,
                "--workloads",
                "put,get",
                "--rounds",
                "2",
            ],
            8,
        ),
        (
            "ramp.html",
            vec![
                "k8s",
                "--ramp",
                "--nodes",
                "5",
                "--nodes-max",
                "10",
                "--p99-max",
                "60s",
                "--endpoints",
                &store.endpoint,
            ],
            8,
        ),
    ];
    for (name, words, figures) in loads {
        let page = dir.path().join(name);
        let mut command = bench();
        let short = if words[0] == "k8s" {
            &short[..4]
        } else {
            &short[..]
        };
        command.args(&words).args(short).arg("--report").arg(&page);
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        // On a busy machine a target may not be held; its page is there anyway.
        let ended = output.status.code();
        assert!(matches!(ended, Some(0 | 1)), "{name}: {errors}");
        let html = std::fs::read_to_string(&page).unwrap();
        check_elements(&html);
        assert_eq!(html.matches("<svg").count(), figures, "{name}");
        assert!(!html.contains("NaN") && !html.contains("<script"), "{name}");
        if let Some(seen) = read_by_browser(&page, dir.path()) {
            assert_eq!(seen.matches("<svg").count(), figures, "{name}");
            assert!(seen.contains("</html>"), "{name}");
        }
    }
}
