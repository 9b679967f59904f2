//! `pontoonctl`: asks a cluster of Pontoon, runs one to try, and looks at what
//! one left on a disk.
//!
//! Kept true: what looks changes nothing, and the exit code is the verdict. 0:
//! it was done, or what was looked at is clean; 1: it was refused or is not
//! there, or is damaged; 2: it could not be asked or looked at.

#![forbid(unsafe_code)]

mod client;
mod dev;
mod disk;
mod kv;
mod lease;
mod member;
mod members;
mod metrics;
mod output;
mod ranges;
mod status;
mod top;
mod tree;
mod wal;
mod watch;

use std::future::Future;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::client::{AskError, Endpoints};
use crate::dev::Dev;
use crate::disk::DiskCommand;
use crate::lease::LeaseCommand;
use crate::member::MemberCommand;
use crate::output::{Verdict, say};
use crate::ranges::{RangesCommand, Why};
use crate::tree::TreeCommand;
use crate::wal::WalCommand;

// The server's own: `disk qualify` measures what its code costs.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Asks a cluster of Pontoon (or etcd), runs one to try, looks at its files.
#[derive(Parser)]
#[command(
    name = "pontoonctl",
    version,
    after_help = "Keys and values that can't be printed are shown escaped, as in \"a\\x00b\".\n\
                  Exit codes: 0 done, or clean; 1 refused, not found, or damaged; 2 could not ask \
                  or look.\n\
                  Example: pontoonctl put hello world\n\
                  Example: pontoonctl wal check /var/lib/pontoon/wal"
)]
struct Cli {
    #[command(flatten)]
    endpoints: Endpoints,
    #[command(subcommand)]
    area: Area,
}

#[derive(Subcommand)]
enum Area {
    /// Set a key
    Put(kv::Put),
    /// Show keys and their values
    Get(kv::Get),
    /// Delete keys
    Del(kv::Del),
    /// Show changes of keys as they come, until Ctrl-C
    Watch(watch::Watch),
    /// Leases, on which keys can hang
    #[command(subcommand)]
    Lease(LeaseCommand),
    /// Members of the cluster
    #[command(subcommand)]
    Member(MemberCommand),
    /// All members at a glance
    Status(status::Status),
    /// The ranges that keys are cut into
    #[command(subcommand)]
    Ranges(RangesCommand),
    /// Say where a key is, and what would hold up a request for it now
    Why(Why),
    /// What members and ranges are doing, again every second
    Top(top::Top),
    /// Run a cluster on this machine until Ctrl-C, and clean up
    Dev(Dev),
    /// The log of a node
    #[command(subcommand)]
    Wal(WalCommand),
    /// The tree file of a store
    #[command(subcommand)]
    Tree(TreeCommand),
    /// Whether a disk is good enough
    #[command(subcommand)]
    Disk(DiskCommand),
}

fn main() -> ExitCode {
    let Cli { endpoints, area } = Cli::parse();
    let at = &endpoints;
    match area {
        Area::Put(put) => asked(kv::put(at, put)),
        Area::Get(get) => asked(kv::get(at, get)),
        Area::Del(del) => asked(kv::del(at, del)),
        Area::Watch(watch) => asked(watch::run(at, watch)),
        Area::Lease(command) => asked(lease::run(at, command)),
        Area::Member(command) => asked(member::run(at, command)),
        Area::Status(status) => asked(status::run(at, status)),
        Area::Ranges(command) => asked(ranges::run(at, command)),
        Area::Why(why) => asked(ranges::why(at, why)),
        Area::Top(top) => asked(top::run(at, top)),
        Area::Dev(dev) => asked(dev::run(dev)),
        Area::Wal(command) => looked(wal::run(&command).map_err(|error| error.to_string())),
        Area::Disk(command) => disk::run(command),
        Area::Tree(command) => looked(tree::run(&command).map_err(|error| error.to_string())),
    }
}

/// Asks, and says what is wrong if something is.
fn asked(question: impl Future<Output = Result<(), AskError>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(question),
        Err(error) => Err(AskError::Wrong(format!("no runtime: {error}"))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("pontoonctl: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

fn looked(verdict: Result<Verdict, String>) -> ExitCode {
    match verdict {
        Ok(Verdict::Clean) => ExitCode::SUCCESS,
        Ok(Verdict::Damaged) => ExitCode::from(1),
        Err(error) => {
            say(&format!("pontoonctl: {error}"));
            ExitCode::from(2)
        }
    }
}
