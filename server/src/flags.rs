//! etcd's flags, variables and file of settings, and ours, from one table.
//!
//! Kept true: every flag has one row, which says what it means here. A flag
//! about safety that can't be honoured stops the start; others that have no
//! meaning here are accepted, and said so.

mod file;
mod gates;
mod table;
mod values;

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::config::Config;

pub use gates::{GATES, Gate};
pub use table::FLAGS;
use values::truth;

/// Puts the text of a flag where it belongs.
pub type Set = fn(&mut Config, &str) -> Result<(), String>;

/// What a flag does.
#[derive(Clone, Copy, Debug)]
pub enum Meaning {
    /// It sets something.
    Sets(Set),
    /// It names a file that says everything.
    File,
    /// It is the older name of this flag.
    Older(&'static str),
    /// It has no meaning here.
    Ignored,
    /// It can't be honoured: only these values are accepted, which ask for
    /// nothing.
    Refused(&'static [&'static str]),
}

/// How a flag is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// With a value.
    Value,
    /// Can stand without a value, for `true`.
    Switch,
    /// With a time like `5s`; in a file, a number of nanoseconds.
    Time,
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Without dashes.
    pub name: &'static str,
    /// How it is written.
    pub form: Form,
    /// What it does.
    pub meaning: Meaning,
    /// The same in a few words, or why it does nothing.
    pub help: &'static str,
}

/// What came of the arguments and variables.
#[derive(Debug)]
pub enum Parsed {
    /// Run like this, and log these lines.
    Run(Box<Config>, Vec<String>),
    /// Only show the help.
    Help,
    /// Only show the version.
    Version,
}

/// Why not.
#[derive(Debug, PartialEq, Eq)]
pub enum Usage {
    /// There is no such flag.
    Unknown(String),
    /// Something about a flag is wrong.
    Wrong(String),
}

/// Flags and their texts.
type Given = BTreeMap<&'static str, String>;

/// Reads arguments (without the program's name), the environment, and the
/// file that they name; what they don't say is as in `defaults`.
pub fn parse(
    defaults: Config,
    arguments: impl IntoIterator<Item = String>,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Parsed, Usage> {
    let mut said = Vec::new();
    let mut given = match read_arguments(arguments.into_iter())? {
        Ok(given) => given,
        Err(instead) => return Ok(instead),
    };
    read_environment(&mut given, environment, &mut said)?;
    if let Some(path) = given.remove("config-file").filter(|path| !path.is_empty()) {
        if !given.is_empty() {
            let others: Vec<_> = given.keys().copied().collect();
            said.push(format!(
                "only --config-file counts, not what is set besides it: {}",
                others.join(", ")
            ));
        }
        given = file::read(&path, &mut said).map_err(Usage::Wrong)?;
    }
    let config = apply(defaults, given, &mut said).map_err(Usage::Wrong)?;
    Ok(Parsed::Run(Box::new(config), said))
}

fn read_arguments(
    mut arguments: impl Iterator<Item = String>,
) -> Result<Result<Given, Parsed>, Usage> {
    let mut given = Given::new();
    while let Some(argument) = arguments.next() {
        let dashed = argument.strip_prefix("--");
        let Some(named) = dashed.or_else(|| argument.strip_prefix('-')) else {
            return Err(Usage::Wrong(match argument.as_str() {
                "gateway" | "grpc-proxy" => {
                    format!("there is no {argument} here: clients can ask the members themselves")
                }
                _ => format!("{argument:?} is not a valid flag"),
            }));
        };
        let (name, value) = match named.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (named, None),
        };
        match name {
            "help" | "h" => return Ok(Err(Parsed::Help)),
            "version" => return Ok(Err(Parsed::Version)),
            _ => {}
        }
        let flag = find(name).ok_or_else(|| Usage::Unknown(argument.clone()))?;
        let value = match value {
            Some(value) => value,
            None if flag.form == Form::Switch => "true".to_owned(),
            None => arguments
                .next()
                .ok_or_else(|| Usage::Wrong(format!("flag needs an argument: {argument}")))?,
        };
        // The last one counts.
        given.insert(flag.name, value);
    }
    Ok(Ok(given))
}

/// Of `PONTOON_X` and `ETCD_X` the first counts.
fn read_environment(
    given: &mut Given,
    environment: impl IntoIterator<Item = (String, String)>,
    said: &mut Vec<String>,
) -> Result<(), Usage> {
    let mut variables: BTreeMap<&str, (bool, String)> = BTreeMap::new();
    for (variable, value) in environment {
        let own = variable.strip_prefix("PONTOON_");
        let Some(name) = own.or_else(|| variable.strip_prefix("ETCD_")) else {
            continue;
        };
        if value.is_empty() {
            continue;
        }
        let name = name.to_ascii_lowercase().replace('_', "-");
        let Some(flag) = find(&name) else {
            said.push(format!("the variable {variable} is not known, and ignored"));
            continue;
        };
        if given.contains_key(flag.name) {
            return Err(Usage::Wrong(format!(
                "conflicting environment variable {variable:?} is shadowed by corresponding \
                 command-line flag (either unset environment variable or disable flag)"
            )));
        }
        let known = variables.get(flag.name);
        if own.is_some() || known.is_none_or(|(known_own, _)| !known_own) {
            variables.insert(flag.name, (own.is_some(), value));
        }
    }
    for (name, (_, value)) in variables {
        given.insert(name, value);
    }
    Ok(())
}

fn apply(mut config: Config, given: Given, said: &mut Vec<String>) -> Result<Config, String> {
    for (name, value) in given {
        let flag = newest(find(name).expect("only flags that were found are given"));
        match flag.meaning {
            Meaning::Sets(set) => {
                set(&mut config, &value)
                    .map_err(|reason| format!("--{name} {value:?}: {reason}"))?;
            }
            Meaning::Ignored => said.push(format!("--{name} has no effect: {}", flag.help)),
            Meaning::Refused(harmless) => {
                let is_off = flag.form == Form::Switch && truth(&value) == Some(false);
                if !is_off && !harmless.contains(&value.as_str()) {
                    return Err(format!(
                        "--{name} {value:?} can't be honoured: {}. Nothing was started, because \
                         it would not be what was asked for",
                        flag.help
                    ));
                }
            }
            Meaning::File => return Err("a file can't name another --config-file".to_owned()),
            Meaning::Older(_) => unreachable!("the newest is no older one"),
        }
    }
    for gate in GATES {
        if config
            .feature_gates
            .get(gate.name)
            .is_some_and(|on| *on != gate.default)
        {
            said.push(format!(
                "the feature gate {} has no effect: {}",
                gate.name, gate.reason
            ));
        }
    }
    Ok(config)
}

/// The help.
#[must_use]
pub fn usage() -> String {
    let mut text = "Usage:\n\n  pontoon [flags]\n      Start a member of a cluster.\n\n  \
                    pontoon --version\n      Show the version.\n\n  pontoon --help\n      \
                    Show this.\n\nEvery flag `--foo-bar` can be given as the variable \
                    PONTOON_FOO_BAR or ETCD_FOO_BAR too.\n\nFlags:\n"
        .to_owned();
    for flag in FLAGS {
        if let Meaning::Sets(_) | Meaning::File = flag.meaning {
            let _ = writeln!(text, "  --{}\n      {}", flag.name, flag.help);
        }
    }
    text.push_str(
        "\nEtcd's other flags are accepted and change nothing, or are refused; \
         docs/operations.md says why.\n",
    );
    text
}

fn find(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}

/// The flag itself, or what it is an older name of.
fn newest(flag: &'static Flag) -> &'static Flag {
    match flag.meaning {
        Meaning::Older(newer) => find(newer).expect("a test says that it is there"),
        _ => flag,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LogOutput;

    fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Config, Usage> {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned());
        let environment = environment.iter();
        let environment =
            environment.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        match parse(Config::default(), arguments, environment)? {
            Parsed::Run(config, _) => Ok(*config),
            other => panic!("{other:?}"),
        }
    }

    fn wrong(outcome: Result<Config, Usage>) -> String {
        match outcome {
            Err(Usage::Wrong(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = FLAGS.iter().map(|flag| flag.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FLAGS.len());
        for flag in FLAGS {
            let newest = newest(flag);
            assert!(
                !matches!(newest.meaning, Meaning::Older(_)),
                "{}",
                flag.name
            );
            assert_eq!(newest.form, flag.form, "{}", flag.name);
        }
    }

    #[test]
    fn flags_are_read_in_all_forms() {
        let config = run(&["-name", "a", "--max-txn-ops=7", "--data-dir", "x"], &[]).unwrap();
        assert_eq!((config.name.as_str(), config.txn_ops_max), ("a", 7));
        assert_eq!(config.dir(), std::path::Path::new("x"));
        let config = run(&["--name=a", "--name=b"], &[]).unwrap();
        assert_eq!(config.name, "b");
        let config = run(&["--strict-reconfig-check=false"], &[]).unwrap();
        assert!(!config.strict_reconfig);
        let config = run(&["--strict-reconfig-check", "--name=b"], &[]).unwrap();
        assert!(config.strict_reconfig);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let unknown = run(&["--no-such-flag"], &[]);
        assert_eq!(
            unknown.unwrap_err(),
            Usage::Unknown("--no-such-flag".to_owned())
        );
        assert!(wrong(run(&["stray"], &[])).contains("is not a valid flag"));
        assert!(wrong(run(&["--name"], &[])).contains("needs an argument"));
        assert!(wrong(run(&["--max-txn-ops=x"], &[])).contains("max-txn-ops"));
        // A switch takes its value only behind `=`.
        assert!(wrong(run(&["--strict-reconfig-check", "true"], &[])).contains("not a valid flag"));
        assert!(wrong(run(&["grpc-proxy", "start"], &[])).contains("there is no grpc-proxy"));
        assert!(wrong(run(&["--feature-gates=X=true"], &[])).contains("unrecognized feature gate"));
        assert!(wrong(run(&["--strict-reconfig-check=maybe"], &[])).contains("neither true"));
        assert!(wrong(run(&["--logger=capnslog"], &[])).contains("unknown logger"));
        assert!(run(&["--logger=zap"], &[]).is_ok());
    }

    /// Each flag that is refused stops the start, whichever way it is given,
    /// unless it asks for nothing.
    #[test]
    fn what_can_not_be_honoured_is_refused() {
        for flag in FLAGS {
            let Meaning::Refused(harmless) = flag.meaning else {
                continue;
            };
            let given = match flag.form {
                Form::Switch => format!("--{}", flag.name),
                _ => format!("--{}=x", flag.name),
            };
            let refused = wrong(run(&[&given], &[]));
            assert!(refused.contains("can't be honoured"), "{refused}");
            assert!(refused.contains(flag.help), "{refused}");
            let variable = format!("ETCD_{}", flag.name.to_uppercase().replace('-', "_"));
            let refused = wrong(run(&[], &[(&variable, "true")]));
            assert!(refused.contains("can't be honoured"), "{refused}");
            for value in harmless {
                run(&[&format!("--{}={value}", flag.name)], &[]).unwrap();
            }
        }
        assert!(run(&["--client-cert-auth=F"], &[]).is_ok());
        let older = "--experimental-peer-skip-client-san-verification";
        assert!(wrong(run(&[older], &[])).contains("TLS"));
    }

    #[test]
    fn what_changes_nothing_is_said_once() {
        let said = |arguments: &[&str]| {
            let arguments = arguments.iter().map(|argument| (*argument).to_owned());
            match parse(Config::default(), arguments, []) {
                Ok(Parsed::Run(_, said)) => said,
                other => panic!("{other:?}"),
            }
        };
        for flag in FLAGS {
            if let Meaning::Ignored = newest(flag).meaning {
                let said = said(&[&format!("--{}=true", flag.name)]);
                assert_eq!(said.len(), 1, "{said:?}");
                assert!(said[0].contains(flag.name) && said[0].contains("has no effect"));
            }
        }
        let gates = "--feature-gates=InitialCorruptCheck=true,FastLeaseKeepAlive=true";
        assert_eq!(said(&[gates]).len(), 1);
        assert_eq!(said(&["--name=a"]), Vec::<String>::new());
    }

    #[test]
    fn settings_reach_their_place() {
        let config = run(
            &[
                "--experimental-watch-progress-notify-interval=5s",
                "--initial-splits=kubernetes",
                "--log-outputs=stdout,systemd/journal,/a/b",
                "--metrics=extensive",
                "--io-backend=syscalls",
                "--range-bytes=1000",
            ],
            &[],
        )
        .unwrap();
        assert_eq!(config.progress_notify, std::time::Duration::from_secs(5));
        assert_eq!(config.initial_splits.len(), 6);
        let file = LogOutput::File("/a/b".into());
        let outputs = [LogOutput::Stdout, LogOutput::Stderr, file];
        assert_eq!(config.log_outputs, outputs);
        assert!(config.metrics_extensive);
        assert_eq!(config.range_bytes_max, Some(1000));
        assert_eq!(run(&["--debug"], &[]).unwrap().log_level, "debug");
    }

    #[test]
    fn variables_count_unless_a_flag_says_the_same() {
        let config = run(&[], &[("ETCD_NAME", "a"), ("PONTOON_MAX_TXN_OPS", "9")]).unwrap();
        assert_eq!((config.name.as_str(), config.txn_ops_max), ("a", 9));
        assert_eq!(run(&[], &[("ETCD_NAME", "")]).unwrap().name, "default");
        let both = [("PONTOON_NAME", "own"), ("ETCD_NAME", "a")];
        assert_eq!(run(&[], &both).unwrap().name, "own");
        let shadowed = wrong(run(&["--name=b"], &[("ETCD_NAME", "a")]));
        assert!(shadowed.contains("shadowed"), "{shadowed}");
        let unknown = [("ETCD_ON_K8S".into(), "1".into())];
        let Ok(Parsed::Run(_, said)) = parse(Config::default(), [], unknown) else {
            panic!("an unknown variable must not stop the start");
        };
        assert_eq!(said.len(), 1);
    }
}
