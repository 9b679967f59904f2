//! A server on the disk, and what it takes from clients that wait.
//!
//! Kept true: it is the server that people run, with the load that
//! `pontoon-bench` makes, on this machine's processors and on this disk; no
//! figure is derived from another machine's.

use std::path::Path;
use std::time::Duration;

use pontoon_bench::wire::draw::Spread;
use pontoon_bench::wire::run::{Amount, Settings, Stop as EndOfLoad, run};
use pontoon_bench::wire::templates::Keys;
use pontoon_bench::wire::values::ValueSizes;
use pontoon_bench::wire::workload::Workload;
use pontoon_server::{Config, Server};
use serde::Serialize;
use tokio::runtime::{Builder, Runtime};

use crate::disk::stop::Stop;

/// Keys that are put.
const KEYS: u64 = 100_000;
/// Connections on which clients come.
const CONNECTIONS: u64 = 8;
/// How long a server may take to stop.
const STOP_MAX: Duration = Duration::from_secs(5);
/// A Ctrl-C is noticed within this time.
const LOOK: Duration = Duration::from_millis(20);

/// How a server is tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    /// Each has one put under way.
    pub(crate) clients: u64,
    pub(crate) value_bytes: usize,
    /// How long it may take to start, if the disk is slow.
    pub(crate) start_max: Duration,
    pub(crate) time: Duration,
}

/// What a server did.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Served {
    pub(crate) clients: u64,
    pub(crate) puts_per_s: f64,
    /// From sending a put to its answer.
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
}

impl Trial {
    /// Runs a server in a directory that isn't there yet; none if it was interrupted.
    pub(crate) fn run(&self, dir: &Path, stop: &Stop) -> Result<Option<Served>, String> {
        let runtime = runtime().map_err(|error| error.to_string())?;
        let started = runtime.block_on(async {
            tokio::select! {
                started = start(dir) => started.map(Some),
                () = tokio::time::sleep(self.start_max) => {
                    let secs = self.start_max.as_secs_f64();
                    Err(format!("it had not started after {secs:.1} s"))
                }
                () = interrupted(stop) => Ok(None),
            }
        });
        let served = match &started {
            Ok(Some(server)) => self.load(server, &runtime, stop).map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(error.clone()),
        };
        if let Ok(Some(server)) = started {
            // One that hangs in a disk goes with the process.
            let within = stop.patience(STOP_MAX);
            let _ = runtime.block_on(async { tokio::time::timeout(within, server.stop()).await });
        }
        runtime.shutdown_timeout(stop.patience(STOP_MAX));
        served.map(|served| served.filter(|_| !stop.is_interrupted()))
    }

    fn load(&self, server: &Server, runtime: &Runtime, stop: &Stop) -> Result<Served, String> {
        let address = server.clients().first().ok_or("it listens nowhere")?;
        let settings = Settings {
            endpoints: vec![address.to_string().parse()?],
            clients: self.clients as usize,
            connections: self.clients.min(CONNECTIONS) as usize,
            threads: 1,
            amount: Amount::Time(self.time),
            rate: None,
            warm_up: self.time / 4,
            keys: Keys::new("/", KEYS, ValueSizes::Fixed(self.value_bytes)),
            spread: Spread::Uniform,
            limit: 0,
            read_percent: 0,
            watchers: 0,
            lease_ttl_secs: 60,
            compact_every: Duration::from_secs(60),
            cluster: None,
            seed: 1,
        };
        let end = EndOfLoad::default();
        let watching = runtime.spawn({
            let (end, stop) = (end.clone(), stop.clone());
            async move {
                interrupted(&stop).await;
                end.set();
            }
        });
        let report = run(&settings, Workload::Put, &end, &mut |_| ());
        watching.abort();
        let report = report.map_err(|failure| failure.to_string())?;
        if let Some((error, count)) = report.errors.first_key_value() {
            return Err(format!("{count} puts failed: {error}"));
        }
        Ok(Served {
            clients: self.clients,
            puts_per_s: report.rate,
            p50_ns: report.latency.value_at_quantile(0.5),
            p99_ns: report.latency.value_at_quantile(0.99),
        })
    }
}

/// As the server's own: half the processors for the groups.
fn runtime() -> std::io::Result<Runtime> {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    Builder::new_multi_thread()
        .worker_threads((processors / 2).max(1))
        .enable_all()
        .build()
}

async fn start(dir: &Path) -> Result<Server, String> {
    let nowhere = "http://127.0.0.1:0";
    let config = Config {
        data_dir: Some(dir.to_owned()),
        listen_client_urls: nowhere.to_owned(),
        advertise_client_urls: Some(nowhere.to_owned()),
        listen_peer_urls: nowhere.to_owned(),
        initial_advertise_peer_urls: nowhere.to_owned(),
        initial_cluster: Some(format!("default={nowhere}")),
        ..Config::default()
    };
    Server::start(config)
        .await
        .map_err(|error| error.to_string())
}

async fn interrupted(stop: &Stop) {
    while !stop.is_interrupted() {
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use pontoon_wal::disk::RealDisk;
    use pontoon_wal::inspect::is_in_use;

    use super::*;

    fn trial(start_max: Duration) -> Trial {
        Trial {
            clients: 3,
            value_bytes: 100,
            start_max,
            time: Duration::from_millis(200),
        }
    }

    #[test]
    fn a_server_is_run_on_the_disk_and_ends() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("server");
        let trial = trial(Duration::from_secs(60));
        let served = trial.run(&at, &Stop::default()).unwrap().unwrap();
        assert!(served.clients == 3 && served.puts_per_s > 0.0);
        assert!(served.p50_ns > 0 && served.p50_ns <= served.p99_ns);
        // Its log is closed in the background; then another one can be run on
        // what it left.
        let disk = RealDisk::for_inspection();
        while is_in_use(&disk, &at.join("wal")).unwrap() {
            std::thread::sleep(LOOK);
        }
        assert!(trial.run(&at, &Stop::default()).unwrap().is_some());
    }

    #[test]
    fn one_that_does_not_start_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let trial = trial(Duration::from_secs(60));
        assert!(trial.run(&file, &Stop::default()).is_err());
    }
}
