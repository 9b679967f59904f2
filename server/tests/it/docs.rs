//! What `docs/operations.md` says of this crate is so.

use std::path::Path;

use pontoon_server::{EXIT_CODES, FLAGS, Flag, GATES, Meaning};

fn operations() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    std::fs::read_to_string(path).unwrap()
}

/// The rows of the first table below a heading, without its head.
pub(crate) fn table(text: &str, heading: &str) -> Vec<String> {
    let (_, below) = text
        .split_once(&format!("\n{heading}\n"))
        .unwrap_or_else(|| panic!("there is no heading {heading:?}"));
    let rows = below.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|')).skip(2);
    rows.map(str::to_owned).collect()
}

#[track_caller]
pub(crate) fn same(documented: &[String], expected: &[String]) {
    for row in documented {
        assert!(expected.contains(row), "the document has\n{row}");
    }
    let all = expected.join("\n");
    assert_eq!(documented, expected, "it should be\n{all}");
}

fn newest(flag: &Flag) -> &Flag {
    match flag.meaning {
        Meaning::Older(newer) => FLAGS.iter().find(|flag| flag.name == newer).unwrap(),
        _ => flag,
    }
}

fn row(flag: &Flag) -> String {
    let state = match newest(flag).meaning {
        Meaning::Sets(_) | Meaning::File => "honoured",
        Meaning::Ignored => "no effect",
        Meaning::Refused(_) => "refused",
        Meaning::Older(_) => unreachable!(),
    };
    let words = match flag.meaning {
        Meaning::Older(newer) => format!("older name of `--{newer}`"),
        Meaning::Refused(harmless) => {
            let harmless = harmless.iter().filter(|value| !value.is_empty());
            let harmless: Vec<_> = harmless.map(|value| format!("`{value}`")).collect();
            match harmless.is_empty() {
                true => flag.help.to_owned(),
                false => format!("{} (accepted as {})", flag.help, harmless.join(" or ")),
            }
        }
        _ => flag.help.to_owned(),
    };
    format!("| `--{}` | {state} | {words} |", flag.name)
}

#[test]
fn every_flag_is_documented() {
    let expected: Vec<_> = FLAGS.iter().map(row).collect();
    same(&table(&operations(), "## Flags"), &expected);
}

#[test]
fn every_feature_gate_is_documented() {
    let rows = GATES.iter().map(|gate| {
        let default = if gate.default { "on" } else { "off" };
        format!("| `{}` | {default} | {} |", gate.name, gate.reason)
    });
    let expected: Vec<_> = rows.collect();
    same(&table(&operations(), "### Feature gates"), &expected);
}

#[test]
fn every_exit_code_is_documented() {
    let rows = EXIT_CODES.map(|(code, meaning)| format!("| {code} | {meaning} |"));
    same(&table(&operations(), "### Exit codes"), &rows);
}
