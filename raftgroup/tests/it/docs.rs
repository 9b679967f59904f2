//! What the documents say of this crate is so.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All Rust files below a directory.
fn sources(dir: PathBuf, found: &mut String) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

/// Every rule of `docs/revisions.md` that is built has tests with its number.
#[test]
fn every_rule_has_a_test_with_its_number() {
    let text = read("../docs/revisions.md");
    let mut code = String::new();
    sources(root().join("src"), &mut code);
    sources(root().join("tests/rules"), &mut code);
    let rules = text.lines().filter_map(|line| {
        let number = line.strip_prefix("| ")?.split(" |").next()?;
        number.parse::<u32>().ok()
    });
    let mut rules: Vec<_> = rules.collect();
    rules.sort_unstable();
    rules.dedup();
    assert_eq!(rules, (1..=16).collect::<Vec<_>>());
    for rule in rules {
        // Those of a rule in parts are named after the part: 9a, 9b.
        let named = |part| code.contains(&format!("fn rule_{rule}{part}_"));
        assert!(named("") || named("a"), "rule {rule}");
    }
}

/// The files that the documents name are there.
#[test]
fn the_files_that_are_named_exist() {
    let revisions = read("../docs/revisions.md");
    let architecture = read("../ARCHITECTURE.md");
    let (_, architecture) = architecture.split_once("\n## raftgroup").unwrap();
    let (architecture, _) = architecture
        .split_once("\n## ")
        .unwrap_or((architecture, ""));
    let mut named = 0;
    for name in revisions.split('`').chain(architecture.split('`')) {
        let is_file = name.ends_with(".rs") || name.ends_with('/');
        if !is_file || name.contains(' ') {
            continue;
        }
        let place = match name.strip_prefix("raftgroup/") {
            Some(below) => root().join(below),
            None => root().join("src").join(name),
        };
        assert!(place.exists(), "{name}");
        named += 1;
    }
    assert!(named > 30, "{named}");
}
