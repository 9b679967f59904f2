//! Runs the binary against real servers, and on real files, whole and broken.
//!
//! Kept true by every run on files: they are the same afterwards, byte by byte.
#![allow(clippy::unwrap_used, missing_docs)]

mod asking;
mod dev;
mod disk;
mod ranges;
mod serving;
mod tree;
mod wal;

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_pontoonctl");

pub(crate) fn start(command: &mut Command) -> Child {
    command.spawn().unwrap()
}

pub(crate) fn flip(path: &Path, offset: u64) {
    patch(path, offset, 1, |byte| byte[0] ^= 0x10);
}

pub(crate) fn patch(path: &Path, offset: u64, len: u64, change: impl FnOnce(&mut [u8])) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, offset).unwrap();
    change(&mut bytes);
    file.write_all_at(&bytes, offset).unwrap();
}

pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Answer {
    /// What was printed, if the exit code is this one.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> String {
        assert_eq!(self.code, code, "stdout:\n{}\n{}", self.out, self.err);
        self.out
    }
}

pub(crate) fn answer(command: &mut Command) -> Answer {
    let child = start(command.stderr(Stdio::piped()));
    let output = child.wait_with_output().unwrap();
    Answer {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Names and bytes of all files; `None` where there is no directory.
pub(crate) fn contents(dir: &Path) -> Option<BTreeMap<PathBuf, Vec<u8>>> {
    let entries = fs::read_dir(dir).ok()?;
    let paths = entries.map(|entry| entry.unwrap().path());
    let files = paths.filter(|path| path.is_file()).map(|path| {
        let bytes = fs::read(&path).unwrap();
        (path, bytes)
    });
    Some(files.collect())
}

#[track_caller]
pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[track_caller]
pub(crate) fn lines_of_json(text: &str) -> Vec<Value> {
    text.lines().map(json).collect()
}

#[track_caller]
pub(crate) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

pub(crate) fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or("")
}

/// Where each word of a line ends.
pub(crate) fn word_ends(line: &str) -> Vec<usize> {
    let is_end = |&at: &usize| {
        !line[..at].ends_with(' ') && line[at..].chars().next().is_none_or(|after| after == ' ')
    };
    (1..=line.len()).filter(is_end).collect()
}

/// The rows of the table that starts with this word, which must be aligned.
#[track_caller]
pub(crate) fn table<'a>(text: &'a str, name: &str) -> Vec<Vec<&'a str>> {
    let mut lines = text
        .lines()
        .skip_while(|line| line.split_whitespace().next() != Some(name))
        .take_while(|line| !line.is_empty());
    let ends = word_ends(lines.next().expect("the table is there"));
    lines
        .map(|line| {
            assert_eq!(word_ends(line), ends, "not aligned: {line:?} in\n{text}");
            line.split_whitespace().collect()
        })
        .collect()
}
