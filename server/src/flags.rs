//! etcd's flags and variables, and ours, in one table.
//!
//! Kept true: every flag has one row, which says what it means here. A flag
//! about safety that can't be honoured stops the start; others that have no
//! meaning here are accepted, and said so.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;

use crate::config::{ClusterState, Config, LogFormat, duration};

/// What a flag does.
#[derive(Clone, Copy)]
pub enum Meaning {
    /// It sets something.
    Sets(fn(&mut Config, &str) -> Result<(), String>),
    /// It has no meaning here, for this reason.
    Ignored(&'static str),
    /// It can't be honoured: only this value, which is the default, is accepted.
    Refused(&'static str),
}

/// One row.
#[derive(Clone, Copy)]
pub struct Flag {
    /// Without dashes.
    pub name: &'static str,
    /// Whether it can stand without a value, for `true`.
    pub is_switch: bool,
    /// What it does.
    pub meaning: Meaning,
    /// In a few words.
    pub help: &'static str,
}

const fn sets(
    name: &'static str,
    set: fn(&mut Config, &str) -> Result<(), String>,
    help: &'static str,
) -> Flag {
    Flag {
        name,
        is_switch: false,
        meaning: Meaning::Sets(set),
        help,
    }
}

const fn ignored(name: &'static str, reason: &'static str) -> Flag {
    Flag {
        name,
        is_switch: false,
        meaning: Meaning::Ignored(reason),
        help: "",
    }
}

const fn refused(name: &'static str, default: &'static str) -> Flag {
    Flag {
        name,
        is_switch: false,
        meaning: Meaning::Refused(default),
        help: "",
    }
}

const fn switch(flag: Flag) -> Flag {
    Flag {
        is_switch: true,
        ..flag
    }
}

/// All of them.
pub const FLAGS: &[Flag] = &[
    // The member
    sets("name", |c, v| text(&mut c.name, v), "name of this member"),
    sets(
        "data-dir",
        |c, v| some(&mut c.data_dir, v),
        "directory of the data",
    ),
    sets(
        "wal-dir",
        |c, v| some(&mut c.wal_dir, v),
        "directory of the log, if apart",
    ),
    sets(
        "listen-client-urls",
        |c, v| text(&mut c.listen_client_urls, v),
        "where clients are served",
    ),
    sets(
        "listen-peer-urls",
        |c, v| text(&mut c.listen_peer_urls, v),
        "where other members are heard",
    ),
    sets(
        "snapshot-count",
        |c, v| parsed(&mut c.snapshot_count, v),
        "log entries kept for slow followers",
    ),
    sets(
        "heartbeat-interval",
        |c, v| parsed(&mut c.heartbeat_ms, v),
        "between two signs of life of a leader (ms)",
    ),
    sets(
        "election-timeout",
        |c, v| parsed(&mut c.election_ms, v),
        "silence after which a leader is replaced (ms)",
    ),
    sets(
        "quota-backend-bytes",
        |c, v| parsed(&mut c.quota_bytes, v),
        "bytes that the data may use; 0: 80 % of the file system, below 0: no limit",
    ),
    sets(
        "max-request-bytes",
        |c, v| parsed(&mut c.request_bytes_max, v),
        "the largest request",
    ),
    sets(
        "max-txn-ops",
        |c, v| parsed(&mut c.txn_ops_max, v),
        "most comparisons or steps of a transaction",
    ),
    sets(
        "max-concurrent-streams",
        |c, v| parsed(&mut c.streams_max, v),
        "most calls at a time on one connection",
    ),
    sets(
        "grpc-keepalive-interval",
        |c, v| time(&mut c.keepalive_interval, v),
        "silence after which a client is asked for a sign of life",
    ),
    sets(
        "grpc-keepalive-timeout",
        |c, v| time(&mut c.keepalive_timeout, v),
        "how long it has to give it",
    ),
    sets(
        "watch-progress-notify-interval",
        |c, v| progress(&mut c.progress_notify, v),
        "between two signs of progress on a watch",
    ),
    sets(
        "experimental-watch-progress-notify-interval",
        |c, v| progress(&mut c.progress_notify, v),
        "the same",
    ),
    // The cluster
    sets(
        "initial-advertise-peer-urls",
        |c, v| text(&mut c.initial_advertise_peer_urls, v),
        "where others find this member",
    ),
    sets(
        "advertise-client-urls",
        |c, v| some(&mut c.advertise_client_urls, v),
        "where clients find this member",
    ),
    sets(
        "initial-cluster",
        |c, v| some(&mut c.initial_cluster, v),
        "the first members: NAME=URL,NAME=URL",
    ),
    sets("initial-cluster-state", cluster_state, "new or existing"),
    sets(
        "initial-cluster-token",
        |c, v| text(&mut c.initial_cluster_token, v),
        "tells clusters apart",
    ),
    switch(sets(
        "strict-reconfig-check",
        |c, v| parsed(&mut c.strict_reconfig, v),
        "refuse changes of members that could cost the quorum",
    )),
    sets(
        "max-learners",
        |c, v| parsed(&mut c.learners_max, v),
        "most members that only listen",
    ),
    sets(
        "auto-compaction-mode",
        |c, v| text(&mut c.auto_compaction_mode, v),
        "periodic or revision",
    ),
    sets(
        "auto-compaction-retention",
        |c, v| text(&mut c.auto_compaction_retention, v),
        "how much is kept: hours, a time like 30m, or revisions; 0: all",
    ),
    // Logs and numbers
    sets(
        "log-level",
        log_level,
        "debug, info, warn, error, panic or fatal",
    ),
    sets("log-format", log_format, "console or json"),
    sets(
        "listen-metrics-urls",
        |c, v| some(&mut c.listen_metrics_urls, v),
        "where metrics and health are served besides",
    ),
    // Our own
    sets(
        "initial-splits",
        initial_splits,
        "keys at which a new cluster's key space is cut, with commas between",
    ),
    // Without a meaning here
    ignored("logger", "there is one logger"),
    switch(ignored(
        "pre-vote",
        "there always is a vote before the vote",
    )),
    ignored("max-wals", "log files go when nothing in them is needed"),
    ignored("max-snapshots", "checkpoints are part of the tree files"),
    switch(ignored(
        "initial-election-tick-advance",
        "the first election is not delayed",
    )),
    // What must not be taken lightly
    refused("cert-file", ""),
    refused("key-file", ""),
    refused("trusted-ca-file", ""),
    switch(refused("client-cert-auth", "false")),
    switch(refused("auto-tls", "false")),
    refused("peer-cert-file", ""),
    refused("peer-key-file", ""),
    refused("peer-trusted-ca-file", ""),
    switch(refused("peer-client-cert-auth", "false")),
    switch(refused("peer-auto-tls", "false")),
    switch(refused("force-new-cluster", "false")),
];

/// What came of the arguments and variables.
#[derive(Debug)]
pub enum Parsed {
    /// Run like this.
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

/// Reads arguments (without the program's name) and the environment.
pub fn parse(
    arguments: impl IntoIterator<Item = String>,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Parsed, Usage> {
    let mut given = BTreeMap::new();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let dashed = argument.strip_prefix("--");
        let Some(named) = dashed.or_else(|| argument.strip_prefix('-')) else {
            return Err(Usage::Wrong(format!("{argument:?} is not a valid flag")));
        };
        let (name, value) = match named.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (named, None),
        };
        match name {
            "help" | "h" => return Ok(Parsed::Help),
            "version" => return Ok(Parsed::Version),
            _ => {}
        }
        let flag = find(name).ok_or_else(|| Usage::Unknown(argument.clone()))?;
        let value = match value {
            Some(value) => value,
            None if flag.is_switch => "true".to_owned(),
            None => arguments
                .next()
                .ok_or_else(|| Usage::Wrong(format!("flag needs an argument: {argument}")))?,
        };
        // The last one counts.
        given.insert(flag.name, value);
    }
    let mut said = Vec::new();
    for (variable, value) in environment {
        let own = variable.strip_prefix("PONTOON_");
        let Some(name) = own.or_else(|| variable.strip_prefix("ETCD_")) else {
            continue;
        };
        if value.is_empty() {
            continue;
        }
        let name = name.to_ascii_lowercase().replace('_', "-");
        match find(&name) {
            None => said.push(format!("the variable {variable} is not known, and ignored")),
            Some(flag) if given.contains_key(flag.name) => {
                return Err(Usage::Wrong(format!(
                    "conflicting environment variable {variable:?} is shadowed by corresponding \
                     command-line flag (either unset environment variable or disable flag)"
                )));
            }
            Some(flag) => {
                given.insert(flag.name, value);
            }
        }
    }
    let mut config = Config::default();
    for (name, value) in given {
        let flag = find(name).expect("it was found above");
        match flag.meaning {
            Meaning::Sets(set) => set(&mut config, &value)
                .map_err(|reason| Usage::Wrong(format!("--{name} {value:?}: {reason}")))?,
            Meaning::Ignored(reason) => said.push(format!("--{name} has no effect: {reason}")),
            Meaning::Refused(default) if value == default => {}
            Meaning::Refused(_) => {
                return Err(Usage::Wrong(format!(
                    "--{name} can't be honoured yet; without it the server would be less safe \
                     than was asked for"
                )));
            }
        }
    }
    Ok(Parsed::Run(Box::new(config), said))
}

/// The help.
#[must_use]
pub fn usage() -> String {
    let mut text = "pontoon [flags]\n\nEvery flag `--foo-bar` can be given as the variable \
                    PONTOON_FOO_BAR or ETCD_FOO_BAR too.\n\n"
        .to_owned();
    for flag in FLAGS {
        if let Meaning::Sets(_) = flag.meaning {
            let _ = writeln!(text, "  --{}\n        {}", flag.name, flag.help);
        }
    }
    text.push_str("  --version\n        print the version\n");
    text
}

fn find(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}

fn text(field: &mut String, value: &str) -> Result<(), String> {
    value.clone_into(field);
    Ok(())
}

fn some<T: for<'a> From<&'a str>>(field: &mut Option<T>, value: &str) -> Result<(), String> {
    *field = (!value.is_empty()).then(|| value.into());
    Ok(())
}

fn parsed<T: std::str::FromStr>(field: &mut T, value: &str) -> Result<(), String> {
    *field = value.parse().map_err(|_| "it is not a valid value")?;
    Ok(())
}

fn time(field: &mut Duration, value: &str) -> Result<(), String> {
    *field = duration(value).ok_or("it is not a time like 5s")?;
    Ok(())
}

/// 0 is etcd's default; less than 100 ms would keep everybody busy.
fn progress(field: &mut Duration, value: &str) -> Result<(), String> {
    time(field, value)?;
    *field = match field.is_zero() {
        true => Config::default().progress_notify,
        false => (*field).max(Duration::from_millis(100)),
    };
    Ok(())
}

fn cluster_state(config: &mut Config, value: &str) -> Result<(), String> {
    config.initial_cluster_state = match value {
        "new" => ClusterState::New,
        "existing" => ClusterState::Existing,
        _ => return Err("it is neither new nor existing".to_owned()),
    };
    Ok(())
}

fn log_level(config: &mut Config, value: &str) -> Result<(), String> {
    config.log_level = match value {
        "debug" | "info" | "warn" | "error" => value.to_owned(),
        "dpanic" | "panic" | "fatal" => "error".to_owned(),
        _ => return Err("there is no such level".to_owned()),
    };
    Ok(())
}

fn log_format(config: &mut Config, value: &str) -> Result<(), String> {
    config.log_format = match value {
        "console" => LogFormat::Console,
        "json" => LogFormat::Json,
        _ => return Err("it is neither console nor json".to_owned()),
    };
    Ok(())
}

fn initial_splits(config: &mut Config, value: &str) -> Result<(), String> {
    let keys = value.split(',').filter(|key| !key.is_empty());
    config.initial_splits = keys
        .map(|key| Bytes::copy_from_slice(key.as_bytes()))
        .collect();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Config, Usage> {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned());
        let environment = environment.iter();
        let environment =
            environment.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        match parse(arguments, environment)? {
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
        assert!(wrong(run(&["--cert-file=x"], &[])).contains("can't be honoured"));
        assert!(run(&["--client-cert-auth=false"], &[]).is_ok());
    }

    #[test]
    fn variables_count_unless_a_flag_says_the_same() {
        let config = run(&[], &[("ETCD_NAME", "a"), ("PONTOON_MAX_TXN_OPS", "9")]).unwrap();
        assert_eq!((config.name.as_str(), config.txn_ops_max), ("a", 9));
        assert_eq!(run(&[], &[("ETCD_NAME", "")]).unwrap().name, "default");
        let shadowed = wrong(run(&["--name=b"], &[("ETCD_NAME", "a")]));
        assert!(shadowed.contains("shadowed"), "{shadowed}");
        let Ok(Parsed::Run(_, said)) = parse([], [("ETCD_ON_K8S".into(), "1".into())]) else {
            panic!("an unknown variable must not stop the start");
        };
        assert_eq!(said.len(), 1);
    }
}
