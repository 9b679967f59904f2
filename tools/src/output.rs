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
pub(crate) fn print<T: Serialize + ?Sized>(
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
    columns(out, names.map(|name| (name, Side::Right)), rows)
}

/// Where the cells of a column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// The same, each column on the side that it is to be.
pub(crate) fn columns<const COLUMNS: usize>(
    out: &mut dyn Write,
    names: [(&str, Side); COLUMNS],
    rows: impl Iterator<Item = [String; COLUMNS]>,
) -> io::Result<()> {
    let mut lines = vec![names.map(|(name, _)| name.to_owned())];
    lines.extend(rows);
    aligned(out, names.map(|(_, side)| side), &lines)
}

/// Lines without a head.
pub(crate) fn aligned<const COLUMNS: usize>(
    out: &mut dyn Write,
    sides: [Side; COLUMNS],
    lines: &[[String; COLUMNS]],
) -> io::Result<()> {
    let widths: [usize; COLUMNS] = std::array::from_fn(|column| {
        let cells = lines.iter().map(|line| line[column].chars().count());
        cells.max().unwrap_or(0)
    });
    for line in lines {
        let cells = line.iter().zip(widths).zip(sides);
        let cells = cells.map(|((cell, width), side)| match side {
            Side::Left => format!("{cell:<width$}"),
            Side::Right => format!("{cell:>width$}"),
        });
        let cells: Vec<_> = cells.collect();
        writeln!(out, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

/// Keys and values as people read them: what can be printed is as it is, and
/// the rest is escaped so that it can be told apart.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                c if c.is_ascii_control() => {
                    text.extend(std::ascii::escape_default(c as u8).map(char::from))
                }
                c if c.is_control() => text.extend(c.escape_unicode()),
                c => text.push(c),
            }
        }
        text.push_str(&chunk.invalid().escape_ascii().to_string());
    }
    text
}

/// A number of bytes, rounded.
pub(crate) fn size(bytes: u64) -> String {
    let mut size = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if size < 1024.0 {
            return match unit {
                "B" => format!("{bytes} B"),
                _ => format!("{size:.1} {unit}"),
            };
        }
        size /= 1024.0;
    }
    format!("{size:.1} TiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_printed_is_as_it_is() {
        for (bytes, text) in [
            (&b"plain text"[..], "plain text"),
            ("\u{fc}ber \u{2192}".as_bytes(), "\u{fc}ber \u{2192}"),
            (b"a\0b\n\x7f", "a\\x00b\\n\\x7f"),
            (b"\\x00", "\\\\x00"),
            (b"\xff{\"a\": 1}", "\\xff{\"a\": 1}"),
            ("\u{85}".as_bytes(), "\\u{85}"),
        ] {
            assert_eq!(shown(bytes), text);
        }
    }

    #[test]
    fn sizes_are_rounded() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (3 << 20, "3.0 MiB"),
            (5 << 40, "5.0 TiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn columns_are_aligned() {
        let mut out = Vec::new();
        let rows = [
            ["\u{fc}".to_owned(), "1".to_owned()],
            ["long".to_owned(), "20".to_owned()],
        ];
        let names = [("key", Side::Left), ("n", Side::Right)];
        columns(&mut out, names, rows.into_iter()).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "key    n\n\u{fc}      1\nlong  20\n");
    }
}
