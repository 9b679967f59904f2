//! `pontoonctl`: looks at what Pontoon left on a disk.
//!
//! Kept true: nothing is changed, and the exit code is the verdict. 0: what
//! was looked at is clean; 1: it is damaged; 2: it could not be looked at.

#![forbid(unsafe_code)]

mod output;
mod tree;
mod wal;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::output::{Verdict, say};
use crate::tree::TreeCommand;
use crate::wal::WalCommand;

/// Looks at Pontoon's files. Changes nothing.
#[derive(Parser)]
#[command(
    name = "pontoonctl",
    version,
    after_help = "Exit codes: 0 clean, 1 damaged, 2 could not look (usage, I/O, in use).\n\
                  Example: pontoonctl wal check /var/lib/pontoon/wal"
)]
struct Cli {
    #[command(subcommand)]
    area: Area,
}

#[derive(Subcommand)]
enum Area {
    /// The log of a node
    #[command(subcommand)]
    Wal(WalCommand),
    /// The tree file of a store
    #[command(subcommand)]
    Tree(TreeCommand),
}

fn main() -> ExitCode {
    let verdict = match Cli::parse().area {
        Area::Wal(command) => wal::run(&command).map_err(|error| error.to_string()),
        Area::Tree(command) => tree::run(&command).map_err(|error| error.to_string()),
    };
    match verdict {
        Ok(Verdict::Clean) => ExitCode::SUCCESS,
        Ok(Verdict::Damaged) => ExitCode::from(1),
        Err(error) => {
            say(&format!("pontoonctl: {error}"));
            ExitCode::from(2)
        }
    }
}
