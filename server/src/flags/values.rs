//! From the text of a flag to the setting.

use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use pontoon_raftgroup::profile;
use pontoon_wal::disk::Backend;

use super::gates::GATES;
use crate::config::{ClusterState, Config, LogFormat, LogOutput, duration};

pub(super) fn text(field: &mut String, value: &str) -> Result<(), String> {
    value.clone_into(field);
    Ok(())
}

pub(super) fn some<T: for<'a> From<&'a str>>(
    field: &mut Option<T>,
    value: &str,
) -> Result<(), String> {
    *field = (!value.is_empty()).then(|| value.into());
    Ok(())
}

pub(super) fn parsed<T: FromStr>(field: &mut T, value: &str) -> Result<(), String> {
    *field = value.parse().map_err(|_| "it is not a valid value")?;
    Ok(())
}

pub(super) fn optional_parsed<T: FromStr>(
    field: &mut Option<T>,
    value: &str,
) -> Result<(), String> {
    *field = Some(value.parse().map_err(|_| "it is not a valid value")?);
    Ok(())
}

pub(super) fn switched(field: &mut bool, value: &str) -> Result<(), String> {
    *field = truth(value).ok_or("it is neither true nor false")?;
    Ok(())
}

/// What Go takes for true and false.
pub(super) fn truth(value: &str) -> Option<bool> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

pub(super) fn time(field: &mut Duration, value: &str) -> Result<(), String> {
    *field = duration(value).ok_or("it is not a time like 5s")?;
    Ok(())
}

/// 0 is etcd's default; less than 100 ms would keep everybody busy.
pub(super) fn progress(field: &mut Duration, value: &str) -> Result<(), String> {
    time(field, value)?;
    *field = match field.is_zero() {
        true => Config::default().progress_notify,
        false => (*field).max(Duration::from_millis(100)),
    };
    Ok(())
}

pub(super) fn cluster_state(config: &mut Config, value: &str) -> Result<(), String> {
    config.initial_cluster_state = match value {
        "new" => ClusterState::New,
        "existing" => ClusterState::Existing,
        _ => return Err("it is neither new nor existing".to_owned()),
    };
    Ok(())
}

pub(super) fn metrics(config: &mut Config, value: &str) -> Result<(), String> {
    config.metrics_extensive = match value {
        "basic" => false,
        "extensive" => true,
        _ => return Err("it is neither basic nor extensive".to_owned()),
    };
    Ok(())
}

pub(super) fn log_level(config: &mut Config, value: &str) -> Result<(), String> {
    config.log_level = match value {
        "debug" | "info" | "warn" | "error" => value.to_owned(),
        "dpanic" | "panic" | "fatal" => "error".to_owned(),
        _ => return Err("there is no such level".to_owned()),
    };
    Ok(())
}

pub(super) fn debug(config: &mut Config, value: &str) -> Result<(), String> {
    let mut on = false;
    switched(&mut on, value)?;
    match on {
        true => log_level(config, "debug"),
        false => Ok(()),
    }
}

pub(super) fn log_format(config: &mut Config, value: &str) -> Result<(), String> {
    config.log_format = match value {
        "console" => LogFormat::Console,
        "json" => LogFormat::Json,
        _ => return Err("it is neither console nor json".to_owned()),
    };
    Ok(())
}

pub(super) fn logger(_: &mut Config, value: &str) -> Result<(), String> {
    match value {
        "" | "zap" => Ok(()),
        _ => Err("unknown logger option".to_owned()),
    }
}

pub(super) fn log_outputs(config: &mut Config, value: &str) -> Result<(), String> {
    let names = value.split(',').filter(|name| !name.is_empty());
    let outputs = names.map(|name| match name {
        "default" | "stderr" | "systemd/journal" => LogOutput::Stderr,
        "stdout" => LogOutput::Stdout,
        path => LogOutput::File(path.into()),
    });
    config.log_outputs = outputs.collect();
    config.log_outputs.dedup();
    match config.log_outputs.is_empty() {
        true => Err("it names no output".to_owned()),
        false => Ok(()),
    }
}

pub(super) fn feature_gates(config: &mut Config, value: &str) -> Result<(), String> {
    for part in value.split(',').filter(|part| !part.trim().is_empty()) {
        let Some((name, on)) = part.trim().split_once('=') else {
            return Err(format!("missing bool value for {part}"));
        };
        let Some(gate) = GATES.iter().find(|gate| gate.name == name.trim()) else {
            return Err(format!("unrecognized feature gate: {name}"));
        };
        let Some(on) = truth(on.trim()) else {
            return Err(format!("invalid value of {name}: {on}"));
        };
        config.feature_gates.insert(gate.name, on);
    }
    Ok(())
}

pub(super) fn backend(config: &mut Config, value: &str) -> Result<(), String> {
    config.io_backend = match value {
        "auto" => Backend::Auto,
        "uring" => Backend::Uring,
        "syscalls" => Backend::Syscalls,
        _ => return Err("it is neither auto, uring nor syscalls".to_owned()),
    };
    Ok(())
}

pub(super) fn initial_splits(config: &mut Config, value: &str) -> Result<(), String> {
    if let Some(keys) = profile(value) {
        config.initial_splits = keys;
        return Ok(());
    }
    let keys = value.split(',').filter(|key| !key.is_empty());
    config.initial_splits = keys
        .map(|key| Bytes::copy_from_slice(key.as_bytes()))
        .collect();
    Ok(())
}
