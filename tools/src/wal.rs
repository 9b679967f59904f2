//! `pontoonctl wal`: the commands and what they conclude.
//!
//! Kept true: the verdict is recovery's own, so what is called clean here
//! opens; output that nobody reads any more never changes a verdict.

mod report;
mod text;

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use pontoon_wal::disk::RealDisk;
use pontoon_wal::inspect::{self, Depth, RecordFacts};
use pontoon_wal::{SegmentId, StreamId, WalError};
use serde::Serialize;

use crate::output::{Verdict, end_without_reader, json_line, print, say};
use report::{Record, Refusal, Report};

/// What can be asked of a log.
#[derive(Subcommand)]
pub(crate) enum WalCommand {
    /// Read every record and say whether the log is whole
    ///
    /// The node must be stopped: a log in motion can't be judged.
    #[command(after_help = "Example: pontoonctl wal check /var/lib/pontoon/wal")]
    Check(Target),
    /// Show whose log it is, its segments and its streams
    ///
    /// Reads what opening the log would read: the footers of sealed segments,
    /// the records of others.
    #[command(after_help = "Example: pontoonctl wal inspect /var/lib/pontoon/wal --json")]
    Inspect(Target),
    /// Show every record, one per line, in the order of the log
    ///
    /// The index of a meta is its key. Commits without records are not shown.
    #[command(after_help = "Example: pontoonctl wal dump /var/lib/pontoon/wal --stream 7 | tail")]
    Dump {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        filter: Filter,
    },
}

#[derive(Args)]
pub(crate) struct Target {
    /// Directory of the log
    dir: PathBuf,
    /// Print JSON: one document, or one object per line (dump)
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Filter {
    /// Only records of this stream
    #[arg(long, value_name = "N")]
    stream: Option<u64>,
    /// Only records in this segment
    #[arg(long, value_name = "N")]
    segment: Option<u32>,
}

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LookError {
    #[error("there is no log in {}", .0.display())]
    NoLog(PathBuf),
    #[error(
        "{} is in use by a running process: stop the node first, a log in motion can't be checked",
        .0.display()
    )]
    InUse(PathBuf),
    #[error(transparent)]
    Wal(#[from] WalError),
    #[error("writing the output: {0}")]
    Output(io::Error),
}

const IN_MOTION: &str = "in use by a running process: the newest entries may be in motion";
const MAYBE_MOTION: &str =
    "in use by a running process: this may be motion, not damage; stop the node and check";

pub(crate) fn run(command: &WalCommand) -> Result<Verdict, LookError> {
    let disk = RealDisk::for_inspection();
    match command {
        WalCommand::Check(target) => check(&disk, target),
        WalCommand::Inspect(target) => inspect(&disk, target),
        WalCommand::Dump { target, filter } => dump(&disk, target, filter),
    }
}

fn check(disk: &RealDisk, target: &Target) -> Result<Verdict, LookError> {
    if inspect::is_in_use(disk, &target.dir)? {
        return Err(LookError::InUse(target.dir.clone()));
    }
    let mut records_read: BTreeMap<SegmentId, u64> = BTreeMap::new();
    let found = look(disk, &target.dir, Depth::Everything, &mut |record| {
        *records_read.entry(record.at.segment()).or_default() += 1;
    })?;
    let report = Report::of(found, false, Some(&records_read))?;
    print(target.json, &report, text::check).map_err(LookError::Output)?;
    Ok(report.verdict())
}

fn inspect(disk: &RealDisk, target: &Target) -> Result<Verdict, LookError> {
    let in_use = warn_if_in_use(disk, &target.dir)?;
    let found = look(disk, &target.dir, Depth::Footers, &mut |_| {})?;
    let report = Report::of(found, in_use, None)?;
    print(target.json, &report, text::inspect).map_err(LookError::Output)?;
    if in_use && report.verdict() == Verdict::Damaged {
        say(&format!("pontoonctl: {MAYBE_MOTION}"));
    }
    Ok(report.verdict())
}

fn dump(disk: &RealDisk, target: &Target, filter: &Filter) -> Result<Verdict, LookError> {
    let in_use = warn_if_in_use(disk, &target.dir)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let mut shown = 0u64;
    let found = look(disk, &target.dir, Depth::Everything, &mut |record| {
        if !filter.takes(&record) {
            return;
        }
        let written = if target.json {
            json_line(&mut out, &Record::of(&record))
        } else {
            text::record(&mut out, &record, shown == 0)
        };
        shown += 1;
        // The walk can't be told to stop, and the rest of a large log is not
        // worth reading for nobody. There is nothing to undo: end here.
        if let Err(error) = written {
            end_without_reader(&error);
        }
    })?;
    let damage = found.log.err().map(Refusal::of).transpose()?;
    let written = match &damage {
        Some(damage) if target.json => json_line(&mut out, &DamageLine { damage }),
        _ => Ok(()),
    };
    if let Err(error) = written.and_then(|()| out.flush()) {
        end_without_reader(&error);
    }
    let Some(damage) = damage else {
        return Ok(Verdict::Clean);
    };
    say(&damage.to_string());
    if in_use {
        say(&format!("pontoonctl: {MAYBE_MOTION}"));
    }
    Ok(Verdict::Damaged)
}

/// The last line of a dump that met damage.
#[derive(Serialize)]
struct DamageLine<'a> {
    damage: &'a Refusal,
}

impl Filter {
    fn takes(&self, record: &RecordFacts) -> bool {
        self.stream.is_none_or(|id| record.stream == StreamId(id))
            && self
                .segment
                .is_none_or(|id| record.at.segment() == SegmentId(id))
    }
}

fn look(
    disk: &RealDisk,
    dir: &Path,
    depth: Depth,
    show: &mut dyn FnMut(RecordFacts),
) -> Result<inspect::Inspection, LookError> {
    inspect::dump(disk, dir, depth, show)?.ok_or_else(|| LookError::NoLog(dir.to_owned()))
}

fn warn_if_in_use(disk: &RealDisk, dir: &Path) -> Result<bool, LookError> {
    let in_use = inspect::is_in_use(disk, dir)?;
    if in_use {
        say(&format!("pontoonctl: {IN_MOTION}"));
    }
    Ok(in_use)
}
