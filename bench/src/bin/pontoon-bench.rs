//! `pontoon-bench`: loads anything that speaks etcd's v3 API.
//!
//! Kept true: the exit code is the verdict. 0: all was answered well; 1: some
//! requests failed; 2: the load could not be run; 130: interrupted.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use pontoon_bench::lines::table;
use pontoon_bench::wire::compare::{Named, compare};
use pontoon_bench::wire::connection::Endpoint;
use pontoon_bench::wire::failure::Failure;
use pontoon_bench::wire::report::{Ended, Report};
use pontoon_bench::wire::run::{Amount, Settings, Stop, run};
use pontoon_bench::wire::templates::Keys;
use pontoon_bench::wire::workload::Workload;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const FAILED: u8 = 1;
const COULD_NOT_RUN: u8 = 2;
const INTERRUPTED: u8 = 130;

/// Loads anything that speaks etcd's v3 API, and says what the load itself took.
#[derive(Parser)]
#[command(
    name = "pontoon-bench",
    version,
    after_help = "Exit codes: 0 all was answered well, 1 some requests failed, 2 could not run, 130 interrupted.\n\
                  Example: pontoon-bench run put --clients 256 --connections 8 --duration 10s"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs one workload
    Run {
        /// What clients ask
        workload: Workload,
        /// Servers, several with commas; connections are dealt to them in turn
        #[arg(long, value_delimiter = ',', default_value = "http://127.0.0.1:2379")]
        endpoints: Vec<Endpoint>,
        #[command(flatten)]
        load: LoadArgs,
    },
    /// Takes turns between servers and prints ratios of the first to the others
    Compare {
        /// A server, of one member or, with commas, of several; ratios are of
        /// the first one to the others
        #[arg(long = "endpoint", value_name = "NAME=URL[,URL]", required = true)]
        servers: Vec<Named>,
        /// What clients ask, several with commas
        #[arg(
            long,
            value_enum,
            value_delimiter = ',',
            default_value = "put,cas,get,get-serializable,range,watch"
        )]
        workloads: Vec<Workload>,
        /// Turns of each server
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        #[command(flatten)]
        load: LoadArgs,
    },
}

#[derive(Args)]
struct LoadArgs {
    /// Clients; each asks again when it is answered
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// Connections that the clients share
    #[arg(long, default_value_t = 8)]
    connections: usize,
    /// Threads that the connections share
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// How long it is measured, as 10s, 500ms or 2m
    #[arg(long, default_value = "10s", value_parser = duration)]
    duration: Duration,
    /// Measures so many requests instead
    #[arg(long, conflicts_with = "duration")]
    count: Option<u64>,
    /// How long it runs before it is measured
    #[arg(long, default_value = "1s", value_parser = duration)]
    warm_up: Duration,
    /// Keys that requests are spread over
    #[arg(long, default_value_t = 100_000)]
    key_space: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 256)]
    value_bytes: usize,
    /// What keys begin with
    #[arg(long, default_value = "/pontoon-bench/")]
    prefix: String,
    /// Most keys that a range returns
    #[arg(long, default_value_t = 100)]
    limit: u64,
    /// Watchers of the watch workload
    #[arg(long, default_value_t = 50)]
    watchers: usize,
    /// Where chance begins
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Prints JSON, an object per line
    #[arg(long)]
    json: bool,
}

impl LoadArgs {
    fn settings(&self, endpoints: Vec<Endpoint>) -> Settings {
        Settings {
            endpoints,
            clients: self.clients,
            connections: self.connections,
            threads: self.threads,
            amount: match self.count {
                Some(count) => Amount::Count(count),
                None => Amount::Time(self.duration),
            },
            warm_up: self.warm_up,
            keys: Keys::new(&self.prefix, self.key_space, self.value_bytes),
            limit: self.limit,
            watchers: self.watchers,
            seed: self.seed,
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let stop = stop_on_ctrl_c();
    let code = match cli.command {
        Command::Run {
            workload,
            endpoints,
            load,
        } => run_one(workload, endpoints, &load, &stop),
        Command::Compare {
            servers,
            workloads,
            rounds,
            load,
        } => run_comparison(&servers, &workloads, rounds, &load, &stop),
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

fn run_one(
    workload: Workload,
    endpoints: Vec<Endpoint>,
    load: &LoadArgs,
    stop: &Stop,
) -> Result<ExitCode, Trouble> {
    let settings = load.settings(endpoints);
    settings.check(workload)?;
    let report = run(&settings, workload, stop)?;
    match load.json {
        true => println!("{}", report.json()),
        false => print!("{}", report.text()),
    }
    Ok(verdict(&report))
}

fn verdict(report: &Report) -> ExitCode {
    match report.ended {
        Ended::Interrupted => ExitCode::from(INTERRUPTED),
        Ended::Stalled => ExitCode::from(FAILED),
        Ended::Done if report.errors.is_empty() => ExitCode::SUCCESS,
        Ended::Done => ExitCode::from(FAILED),
    }
}

fn run_comparison(
    servers: &[Named],
    workloads: &[Workload],
    rounds: usize,
    load: &LoadArgs,
    stop: &Stop,
) -> Result<ExitCode, Trouble> {
    let [_, _, ..] = servers else {
        return Err("there must be two servers at least".to_owned().into());
    };
    let settings = load.settings(servers[0].endpoints.clone());
    for workload in workloads {
        settings.check(*workload)?;
    }
    let told = |name: &str, report: &Report| {
        eprintln!(
            "{name:<12} {:<16} {:.0} /s, p50 {:.3} ms, p99 {:.3} ms, {:.2} µs of ours per request",
            report.workload,
            report.rate,
            report.latency_ms.p50,
            report.latency_ms.p99,
            report.generator.cpu_micros_per_request
        );
    };
    let comparison = compare(servers, workloads, rounds, &settings, stop, told);
    match load.json {
        true => {
            for line in &comparison.lines {
                println!("{}", line.json());
            }
        }
        false => {
            for other in &servers[1..] {
                let what = format!("{} to {}", servers[0].name, other.name);
                let lines: Vec<_> = comparison
                    .lines
                    .iter()
                    .filter(|line| line.what == what)
                    .cloned()
                    .collect();
                println!("{what}\n{}", table(&lines));
            }
        }
    }
    for error in &comparison.errors {
        eprintln!("{error}");
    }
    match (comparison.ended_by, comparison.errors.is_empty()) {
        (Some(failure), _) => Err(failure.into()),
        (None, false) => Ok(ExitCode::from(FAILED)),
        (None, true) => Ok(ExitCode::SUCCESS),
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

fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(char::is_alphabetic);
    let seconds = match &text[digits.len()..] {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" => 60.0,
        _ => return Err("say it as 10s, 500ms or 2m".to_owned()),
    };
    let number: f64 = digits.parse().map_err(|_| "not a number".to_owned())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|error| error.to_string())
}
