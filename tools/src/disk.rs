//! `pontoonctl disk`: is a disk good enough, and for what.
//!
//! Kept true: the exit code is the verdict (0 fit, 1 unfit, 2 could not tell);
//! nothing but a directory of its own is changed, and that goes, whatever
//! happens; what was found until a Ctrl-C is printed.

mod doubt;
mod html;
mod latency;
mod load;
mod machine;
mod place;
mod progress;
mod qualify;
mod recipe;
mod report;
mod server;
mod slow;
mod stop;
mod text;
mod tree;
mod verdict;
mod witness;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use pontoon_engine::EngineError;
use pontoon_plot::Destination;
use pontoon_wal::{Profile, ProfileError, WalError};

use crate::output::{print, say};
use qualify::{Plan, Qualification};
use stop::Stop;
use verdict::Fitness;

const UNFIT: u8 = 1;
const COULD_NOT_TELL: u8 = 2;

/// What can be asked of a disk.
#[derive(Subcommand)]
pub(crate) enum DiskCommand {
    /// Say whether a disk is good enough for a cluster, and what holds it back
    ///
    /// Drives the log's own code, and a server, in a directory of its own, which
    /// is removed at the end. docs/disks.md explains every figure.
    #[command(after_help = "Exit codes: 0 fit, 1 unfit, 2 could not tell.\n\
                            Example: pontoonctl disk qualify --dir /var/lib/pontoon --quick")]
    Qualify(Box<Qualify>),
    /// Keep the numbers of what another host calls durable, to pull its plug
    ///
    /// There, `disk qualify --powerfail-witness` sends them; after the power
    /// cut, `disk qualify --verify` compares.
    #[command(after_help = "Example: pontoonctl disk witness --listen 0.0.0.0:7777 --out seen")]
    Witness(witness::Witness),
}

/// Recipes of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Compat {
    /// fio's recipe as IBM published it: 2,300-byte writes, each synced
    Ibm,
}

#[derive(Args)]
pub(crate) struct Qualify {
    /// A directory on the disk
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Take at most 30 s instead of 3 minutes
    #[arg(long, conflicts_with = "soak")]
    quick: bool,
    /// Keep one rate up for long (30m unless told), to see credits run out
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true,
          default_missing_value = "30m", value_parser = duration)]
    soak: Option<Duration>,
    /// Write at most so much, as 500M or 4G
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    max_bytes: Option<u64>,
    /// Kubernetes nodes that the disk is to be fit for
    #[arg(long, default_value_t = 500)]
    nodes: u64,
    /// The p99 within which a rate counts as held
    #[arg(long, value_name = "TIME", default_value = "250ms", value_parser = duration)]
    p99_max: Duration,
    /// Clients of the server that is tried, each of which waits
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    clients: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 256, value_parser = value_bytes)]
    value_bytes: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a report with figures, one HTML file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write a profile for the server's --disk-profile
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Run a known recipe instead: p99 of a sync below 10 ms
    #[arg(long, value_name = "RECIPE", conflicts_with_all = RECIPE_ALONE)]
    compat: Option<Compat>,
    /// Print what fio would print as JSON
    #[arg(long, requires = "compat", conflicts_with = "json")]
    fio_json: bool,
    /// Write until the power is cut, and tell `disk witness` there what is durable
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = WITNESS_ALONE)]
    powerfail_witness: Option<String>,
    /// Compare what a witness wrote down with what is on the disk now
    #[arg(long, value_name = "FILE", conflicts_with_all = VERIFY_ALONE)]
    verify: Option<PathBuf>,
    /// Make every commit so much longer, to rehearse a slower disk
    #[arg(long, value_name = "TIME", value_parser = duration)]
    rehearse_delay: Option<Duration>,
    /// Take only this share of the time, for tests: the figures say little
    #[arg(long, hide = true, default_value_t = 1.0)]
    time_scale: f64,
}

const RECIPE_ALONE: [&str; 7] = [
    "quick",
    "soak",
    "report",
    "profile",
    "powerfail_witness",
    "verify",
    "rehearse_delay",
];
const WITNESS_ALONE: [&str; 5] = ["quick", "report", "profile", "verify", "rehearse_delay"];
const VERIFY_ALONE: [&str; 5] = ["quick", "soak", "report", "profile", "rehearse_delay"];

/// How to qualify.
pub(crate) struct Settings {
    dir: PathBuf,
    plan: Plan,
    bytes_max: u64,
    nodes: u64,
    p99_max: Duration,
    clients: u64,
    value_bytes: usize,
    rehearse: Option<Duration>,
}

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskError {
    #[error("{path}: {1}", path = .0.display())]
    At(PathBuf, io::Error),
    #[error("{} is not a directory", .0.display())]
    NotADirectory(PathBuf),
    #[error("{} is mounted read-only: a disk is tried by writing to it", .0.display())]
    ReadOnly(PathBuf),
    #[error("{} is not on a disk: its file system stores nothing", .0.display())]
    NoDisk(PathBuf),
    #[error("{path} has {1} free, and {2} are needed; free some, or use a directory elsewhere", path = .0.display())]
    Space(PathBuf, String, String),
    #[error("the log: {0}")]
    Wal(#[from] WalError),
    #[error("the tree: {0}")]
    Engine(#[from] EngineError),
    #[error("the log has failed: {0}")]
    Failed(String),
    #[error("the disk didn't answer in time")]
    Stuck,
    #[error("this machine: {0}")]
    Machine(io::Error),
    #[error("{0}: {1}")]
    Network(String, io::Error),
    #[error(
        "{} is there already, from an earlier power cut: verify it, or remove it", .0.display()
    )]
    Kept(PathBuf),
    #[error("{} is not there: nothing was written here under a witness", .0.display())]
    NotKept(PathBuf),
    #[error("{} was not written by `pontoonctl disk witness`", .0.display())]
    NotAWitness(PathBuf),
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error("writing the output: {0}")]
    Output(io::Error),
}

impl DiskError {
    fn at(path: &Path, error: io::Error) -> Self {
        Self::At(path.to_owned(), error)
    }
}

pub(crate) fn run(command: DiskCommand) -> ExitCode {
    let outcome = match command {
        DiskCommand::Qualify(qualify) => qualify.run(),
        DiskCommand::Witness(witness) => Stop::on_signals()
            .map_err(DiskError::Machine)
            .and_then(|stop| witness.run(&stop))
            .map(|()| ExitCode::SUCCESS),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            say(&format!("pontoonctl: {error}"));
            ExitCode::from(COULD_NOT_TELL)
        }
    }
}

impl Qualify {
    fn settings(&self) -> Settings {
        let mut plan = match (self.quick, self.soak) {
            (true, _) => Plan::QUICK,
            (false, None) => Plan::FULL,
            (false, Some(_)) => Plan::SOAK,
        };
        plan.sustained = self.soak.unwrap_or(plan.sustained);
        let plan = plan.scaled(self.time_scale.clamp(0.01, 1.0));
        Settings {
            dir: self.dir.clone(),
            plan,
            bytes_max: self.max_bytes.unwrap_or(plan.bytes_max),
            nodes: self.nodes,
            p99_max: self.p99_max,
            clients: self.clients,
            value_bytes: self.value_bytes,
            rehearse: self.rehearse_delay,
        }
    }

    fn run(&self) -> Result<ExitCode, DiskError> {
        let stop = Stop::on_signals().map_err(DiskError::Machine)?;
        if let Some(file) = &self.verify {
            return self.verify(file);
        }
        if let Some(witness) = &self.powerfail_witness {
            let told = witness::stream(&self.dir, witness, self.soak, &stop)?;
            say(&format!(
                "pontoonctl: ended with power; {told} entries were durable"
            ));
            return Ok(ExitCode::SUCCESS);
        }
        match self.compat {
            Some(Compat::Ibm) => self.recipe(&stop),
            None => self.qualify(&stop),
        }
    }

    fn qualify(&self, stop: &Stop) -> Result<ExitCode, DiskError> {
        // Known before minutes are spent.
        let destination = self
            .report
            .as_ref()
            .map(|path| Destination::try_new(path).map_err(|error| DiskError::at(path, error)));
        let destination = destination.transpose()?;
        let settings = self.settings();
        let mut qualification = Qualification::new(&settings, stop);
        let outcome = qualification.run();
        let report = &qualification.report;
        if let (Err(error), None) = (&outcome, &report.idle) {
            // Nothing is known that would be worth a report.
            say(&format!("pontoonctl: {error}"));
            return Ok(ExitCode::from(COULD_NOT_TELL));
        }
        print(self.json, report, text::report).map_err(DiskError::Output)?;
        if let Some(destination) = destination {
            let written = destination.write(&html::page(report));
            written.map_err(|error| DiskError::at(destination.path(), error))?;
        }
        outcome?;
        if let Some(path) = &self.profile {
            match profile_of(report) {
                Some(profile) => profile.write(path)?,
                None => say("pontoonctl: not enough is known for a profile; none was written"),
            }
        }
        Ok(match report.verdict.fitness {
            Fitness::Fit => ExitCode::SUCCESS,
            Fitness::Unfit => ExitCode::from(UNFIT),
            Fitness::Unknown => ExitCode::from(COULD_NOT_TELL),
        })
    }

    fn recipe(&self, stop: &Stop) -> Result<ExitCode, DiskError> {
        let found = recipe::run(&self.dir, stop)?;
        let summary = found.summary(&self.dir);
        if self.fio_json {
            let as_is = |_: &mut dyn io::Write, _: &serde_json::Value| Ok(());
            print(true, &found.as_fio(&self.dir), as_is).map_err(DiskError::Output)?;
        } else {
            print(self.json, &summary, recipe::words).map_err(DiskError::Output)?;
        }
        Ok(match summary.fit {
            Some(true) => ExitCode::SUCCESS,
            Some(false) => ExitCode::from(UNFIT),
            None => ExitCode::from(COULD_NOT_TELL),
        })
    }

    fn verify(&self, file: &Path) -> Result<ExitCode, DiskError> {
        let verified = witness::verify(&self.dir, file)?;
        let told = verified.told;
        let lost = verified.lost.as_deref().unwrap_or("nothing");
        if self.json {
            let found = serde_json::json!({ "witnessed": told, "lost": verified.lost });
            let as_is = |_: &mut dyn io::Write, _: &serde_json::Value| Ok(());
            print(true, &found, as_is).map_err(DiskError::Output)?;
        } else {
            let words = |out: &mut dyn io::Write, line: &String| writeln!(out, "{line}");
            let line = format!("{told} entries were called durable; lost: {lost}");
            print(false, &line, words).map_err(DiskError::Output)?;
        }
        Ok(match verified.lost {
            None if told > 0 => ExitCode::SUCCESS,
            None => ExitCode::from(COULD_NOT_TELL),
            Some(_) => ExitCode::from(UNFIT),
        })
    }
}

/// What a server is to know, if enough was measured.
fn profile_of(report: &report::Report) -> Option<Profile> {
    let mixed = report.mixed.as_ref()?;
    let tuning = report.tuning.as_ref()?;
    let device = report.machine.device.as_ref();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Some(Profile {
        directory: report.directory.clone(),
        device: device.map(|device| device.name.clone()).unwrap_or_default(),
        made_at_secs: now.unwrap_or_default().as_secs(),
        commit_bytes_max: tuning.commit_bytes_max,
        in_flight_max: tuning.in_flight_max,
        commit_p50_ns: mixed.phase.commit.p50_ns,
        commit_p99_ns: mixed.phase.commit.p99_ns,
        writes_per_s: report.verdict.writes_per_s as u64,
    })
}

/// `500ms`, `10s`, `30m` or `2h`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "a time is a number with ms, s, m or h behind it, as in 30s".to_owned();
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let value: f64 = text[..text.len() - unit.len()]
        .parse()
        .map_err(|_| wrong())?;
    let seconds = match unit {
        "ms" => value / 1e3,
        "s" => value,
        "m" => value * 60.0,
        "h" => value * 3600.0,
        _ => return Err(wrong()),
    };
    match seconds {
        0.001..=604_800.0 => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("a time is from 1 ms to 7 days".to_owned()),
    }
}

/// `500M`, `4G` or a number of bytes.
fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || "a size is a number, with K, M, G or T behind it if wanted, as in 4G".to_owned();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..]
        .trim_end_matches("iB")
        .trim_end_matches('B')
    {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        _ => return Err(wrong()),
    };
    let value: u64 = digits.parse().map_err(|_| wrong())?;
    let value = value.checked_mul(1 << shift).ok_or_else(wrong)?;
    match value {
        0..0x100_0000 => Err("less than 16M says nothing about a disk".to_owned()),
        _ => Ok(value),
    }
}

fn value_bytes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(bytes @ 1..=1_000_000) => Ok(bytes),
        _ => Err("a value has 1 to 1000000 bytes".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_read_or_refused() {
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("30m"), Ok(Duration::from_secs(1800)));
        for wrong in ["", "5", "s", "-1s", "1d", "0s", "99999h"] {
            assert!(duration(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(bytes("500M"), Ok(500 << 20));
        assert_eq!(bytes("4GiB"), Ok(4 << 30));
        for wrong in ["", "x", "5Q", "1K", "99999999999999999999", "-1G"] {
            assert!(bytes(wrong).is_err(), "{wrong:?}");
        }
    }
}
