//! `pontoonctl tree`: the commands and what they conclude.
//!
//! Kept true: a file that is called clean has every invariant that
//! `docs/format.md` lists; a note (what a crash leaves) is told and is clean.

mod report;
mod text;

use std::io::{self, BufWriter, Write as _};
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use pontoon_engine::EngineError;
use pontoon_engine::inspect::{self, Selection, TABLES};
use pontoon_wal::disk::RealDisk;
use serde::Serialize;

use crate::output::{Verdict, end_without_reader, json_line, print, say};
use report::{Found, Page, Report, Row, Stats};

/// What can be asked of a tree file.
#[derive(Subcommand)]
pub(crate) enum TreeCommand {
    /// Read every page and entry and say whether the file is whole
    ///
    /// Run it on a stopped node or on a copy: a file in motion can't be
    /// judged, and there is no lock that would tell.
    #[command(after_help = "Example: pontoonctl tree check /var/lib/pontoon/range-1.tree")]
    Check(Target),
    /// Show how the pages are used, and where most keys and bytes are
    ///
    /// On a running node the numbers may be off and pages in motion may look
    /// damaged.
    #[command(after_help = "Example: pontoonctl tree stats /var/lib/pontoon/range-1.tree --json")]
    Stats {
        #[command(flatten)]
        target: Target,
        /// Parts of a key, ending with a slash, that make a prefix
        #[arg(long, value_name = "N", default_value_t = 2)]
        depth: usize,
    },
    /// Show entries, one per line, in the order of their tables; or one page
    ///
    /// Keys and values are escaped as in "a\x00b", and so are keys given here.
    #[command(
        after_help = "Example: pontoonctl tree dump /var/lib/pontoon/range-1.tree --table current --prefix /registry/pods/"
    )]
    Dump {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        filter: Filter,
    },
}

#[derive(Args)]
pub(crate) struct Target {
    /// The tree file
    file: PathBuf,
    /// Print JSON: one document, or one object per line (dump)
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Filter {
    /// Only this table
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(TABLES))]
    table: Option<String>,
    /// Only entries about keys (or records) that begin with this
    #[arg(long, value_name = "KEY", value_parser = unescape)]
    prefix: Option<Key>,
    /// Only entries about keys (or records) from this one on
    #[arg(long, value_name = "KEY", value_parser = unescape)]
    from: Option<Key>,
    /// Only so many
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// The page with this number instead: header and cells
    #[arg(long, value_name = "N", conflicts_with_all = ["table", "prefix", "from", "limit"])]
    page: Option<u64>,
}

/// A key that was given escaped.
#[derive(Clone, Debug)]
struct Key(Vec<u8>);

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LookError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("writing the output: {0}")]
    Output(io::Error),
}

pub(crate) fn run(command: &TreeCommand) -> Result<Verdict, LookError> {
    let disk = RealDisk::for_inspection();
    match command {
        TreeCommand::Check(target) => check(&disk, target),
        TreeCommand::Stats { target, depth } => stats(&disk, target, *depth),
        TreeCommand::Dump { target, filter } => match filter.page {
            Some(page) => dump_page(&disk, target, page),
            None => dump(&disk, target, filter),
        },
    }
}

fn check(disk: &RealDisk, target: &Target) -> Result<Verdict, LookError> {
    let report = Report::of(inspect::check(disk, &target.file)?);
    print(target.json, &report, text::check).map_err(LookError::Output)?;
    Ok(verdict(report.clean))
}

fn stats(disk: &RealDisk, target: &Target, depth: usize) -> Result<Verdict, LookError> {
    let found = match inspect::stats(disk, &target.file, depth) {
        Err(error @ EngineError::Damaged { .. }) => {
            say(&format!("damaged: {error}"));
            return Ok(Verdict::Damaged);
        }
        found => found?,
    };
    let stats = Stats::of(found);
    print(target.json, &stats, text::stats).map_err(LookError::Output)?;
    Ok(verdict(stats.findings.iter().all(Found::is_note)))
}

fn dump(disk: &RealDisk, target: &Target, filter: &Filter) -> Result<Verdict, LookError> {
    let selection = Selection {
        table: filter.table.clone(),
        prefix: filter.prefix.clone().map_or_else(Vec::new, |key| key.0),
        from: filter.from.clone().map_or_else(Vec::new, |key| key.0),
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let mut left = filter.limit.unwrap_or(u64::MAX);
    let findings = inspect::dump(disk, &target.file, &selection, &mut |row| {
        if left == 0 {
            return false;
        }
        left -= 1;
        let row = Row::of(row);
        let written = match target.json {
            true => json_line(&mut out, &row),
            false => text::row(&mut out, &row),
        };
        if let Err(error) = written {
            end_without_reader(&error);
        }
        left > 0
    })?;
    let findings: Vec<Found> = findings.into_iter().map(Found::of).collect();
    let mut written = Ok(());
    for finding in findings.iter().filter(|_| target.json) {
        written = written.and_then(|()| json_line(&mut out, &FindingLine { finding }));
    }
    if let Err(error) = written.and_then(|()| out.flush()) {
        end_without_reader(&error);
    }
    findings
        .iter()
        .for_each(|finding| say(&finding.to_string()));
    Ok(verdict(findings.iter().all(Found::is_note)))
}

fn dump_page(disk: &RealDisk, target: &Target, page: u64) -> Result<Verdict, LookError> {
    let page = Page::of(inspect::page(disk, &target.file, page)?);
    print(target.json, &page, text::page).map_err(LookError::Output)?;
    Ok(verdict(page.problem.is_none()))
}

/// A last line of a dump that met damage.
#[derive(Serialize)]
struct FindingLine<'a> {
    finding: &'a Found,
}

fn verdict(clean: bool) -> Verdict {
    match clean {
        true => Verdict::Clean,
        false => Verdict::Damaged,
    }
}

/// Bytes, as [`escape`] writes them.
fn unescape(text: &str) -> Result<Key, String> {
    let mut key = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let (byte, used) = match (byte, after) {
            (b'\\', [b'x', high, low, ..]) => {
                let digits = [*high, *low];
                let digits = std::str::from_utf8(&digits).ok();
                let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                (byte.ok_or("\\x needs two hexadecimal digits")?, 3)
            }
            (b'\\', [b'n', ..]) => (b'\n', 1),
            (b'\\', [b'r', ..]) => (b'\r', 1),
            (b'\\', [b't', ..]) => (b'\t', 1),
            (b'\\', [byte @ (b'\\' | b'"' | b'\''), ..]) => (*byte, 1),
            (b'\\', _) => return Err("\\ begins no escape here; \\\\ is one backslash".to_owned()),
            (byte, _) => (byte, 0),
        };
        key.push(byte);
        rest = &after[used..];
    }
    Ok(Key(key))
}

fn escape(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_escaped_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unescape(&escape(&all)).unwrap_or(Key(vec![])).0, all);
        for wrong in ["\\", "\\x0", "\\xzz", "\\q"] {
            assert!(unescape(wrong).is_err(), "{wrong}");
        }
    }
}
