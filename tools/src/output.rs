//! How answers leave the process.
//!
//! Kept true: output that nobody reads any more never changes a verdict, and
//! output that can't be written is an error.

use std::io::{self, BufWriter, Write};

use serde::Serialize;

/// What a look concluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Clean,
    /// It does not hold what was written. A node would nearly always refuse it.
    Damaged,
}

/// A line for the human, beside the output. Nobody may be listening: fine.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints one document. A reader that has gone has seen what it wanted.
pub(crate) fn print<T: Serialize>(
    json: bool,
    report: &T,
    as_text: fn(&mut dyn Write, &T) -> io::Result<()>,
) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let written = if json {
        serde_json::to_writer_pretty(&mut out, report)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out))
    } else {
        as_text(&mut out, report)
    };
    match written.and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

pub(crate) fn json_line(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    writeln!(out)
}

/// Ends the process: quietly if the reader has gone, else with the reason.
pub(crate) fn end_without_reader(error: &io::Error) -> ! {
    if error.kind() == io::ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    say(&format!("pontoonctl: writing the output: {error}"));
    std::process::exit(2);
}

/// Columns as wide as their widest cell, two spaces apart, to the right.
pub(crate) fn table<const COLUMNS: usize>(
    out: &mut dyn Write,
    names: [&str; COLUMNS],
    rows: impl Iterator<Item = [String; COLUMNS]>,
) -> io::Result<()> {
    let mut lines = vec![names.map(str::to_owned)];
    lines.extend(rows);
    let widths: [usize; COLUMNS] = std::array::from_fn(|column| {
        let cells = lines.iter().map(|line| line[column].len());
        cells.max().unwrap_or(0)
    });
    for line in &lines {
        for (column, (cell, width)) in line.iter().zip(widths).enumerate() {
            let gap = if column == 0 { "" } else { "  " };
            write!(out, "{gap}{cell:>width$}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}
