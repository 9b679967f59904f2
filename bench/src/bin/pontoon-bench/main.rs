//! `pontoon-bench`: loads anything that speaks etcd's v3 API.
//!
//! Kept true: the exit code is the verdict. 0: all was answered well, or the
//! target was held; 1: some requests failed, or it was not held; 2: it could
//! not be run; 130: interrupted. Whatever ends it, what is known is told.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod progress;

use std::process::ExitCode;

use clap::Parser;
use pontoon_bench::wire::failure::Failure;
use pontoon_bench::wire::run::Stop;

use args::{Cli, Command};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const FAILED: u8 = 1;
const COULD_NOT_RUN: u8 = 2;
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let stop = stop_on_ctrl_c();
    let code = match cli.command {
        Command::Run {
            workload,
            at,
            load,
            told,
        } => commands::run_one(workload, at, &load, &told, &stop),
        Command::Compare {
            servers,
            workloads,
            rounds,
            access,
            load,
            told,
        } => commands::compare_all(servers, &workloads, rounds, access, &load, &told, &stop),
        Command::Target {
            target,
            workload,
            p99_max,
            at,
            load,
            told,
        } => commands::judge(target, workload, p99_max, at, &load, &told, &stop),
        Command::K8s {
            cluster,
            at,
            connections,
            threads,
            duration,
            warm_up,
            seed,
            told,
        } => {
            let (counts, times) = ([connections, threads], [duration, warm_up]);
            commands::simulate(&cluster, at, counts, times, seed, &told, &stop)
        }
    };
    code.unwrap_or_else(|trouble| {
        eprintln!("pontoon-bench: {}", trouble.text);
        ExitCode::from(trouble.code)
    })
}

/// Why there is no report.
struct Trouble {
    text: String,
    code: u8,
}

impl From<String> for Trouble {
    fn from(text: String) -> Self {
        Self {
            text,
            code: COULD_NOT_RUN,
        }
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self {
            text: failure.to_string(),
            code: match failure {
                Failure::Interrupted => INTERRUPTED,
                Failure::Stalled => FAILED,
                _ => COULD_NOT_RUN,
            },
        }
    }
}

/// The first Ctrl-C ends the load, which tells what is known; the second ends
/// the process.
fn stop_on_ctrl_c() -> Stop {
    let stop = Stop::default();
    let set = stop.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            tokio::signal::ctrl_c().await?;
            set.set();
            tokio::signal::ctrl_c().await?;
            std::process::exit(INTERRUPTED.into());
            #[allow(unreachable_code)]
            std::io::Result::Ok(())
        })
    });
    stop
}
