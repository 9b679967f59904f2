//! The command line.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use pontoon_bench::wire::access::{Access, Certificates};
use pontoon_bench::wire::compare::Named;
use pontoon_bench::wire::connection::Endpoint;
use pontoon_bench::wire::draw::Spread;
use pontoon_bench::wire::k8s::{Cluster, with_cluster};
use pontoon_bench::wire::run::{Amount, Settings};
use pontoon_bench::wire::target::rate;
use pontoon_bench::wire::templates::Keys;
use pontoon_bench::wire::values::ValueSizes;
use pontoon_bench::wire::workload::Workload;

/// Loads anything that speaks etcd's v3 API, and says what the load itself took.
#[derive(Parser)]
#[command(
    name = "pontoon-bench",
    version,
    after_help = "Exit codes: 0 all was answered well, or the target was held; 1 some requests failed, or it was not; 2 could not run; 130 interrupted.\n\
                  Examples:\n  pontoon-bench run put --clients 256 --connections 8 --duration 10s --report report.html\n  \
                  pontoon-bench target 10k\n  \
                  pontoon-bench k8s --ramp\n  \
                  pontoon-bench compare --endpoint a=http://127.0.0.1:2379 --endpoint b=http://127.0.0.1:12379"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Runs one workload
    Run {
        /// What clients ask
        workload: Workload,
        #[command(flatten)]
        at: EndpointsArgs,
        #[command(flatten)]
        load: LoadArgs,
        #[command(flatten)]
        told: ToldArgs,
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
        access: AccessArgs,
        #[command(flatten)]
        load: LoadArgs,
        #[command(flatten)]
        told: ToldArgs,
    },
    /// Says whether a store holds a rate of durable writes
    Target {
        /// Writes per second, as 10k or 12000
        #[arg(value_parser = rate)]
        target: f64,
        /// put or cas
        #[arg(long, default_value = "put")]
        workload: Workload,
        /// What the p99 may be at most, as 100ms; it is only told by default
        #[arg(long, value_parser = duration)]
        p99_max: Option<Duration>,
        #[command(flatten)]
        at: EndpointsArgs,
        #[command(flatten)]
        load: LoadArgs,
        #[command(flatten)]
        told: ToldArgs,
    },
    /// Simulates a Kubernetes control plane, or finds how many nodes a store
    /// can carry
    K8s {
        #[command(flatten)]
        cluster: ClusterArgs,
        #[command(flatten)]
        at: EndpointsArgs,
        /// Connections, as one kube-apiserver has several
        #[arg(long, default_value_t = 8)]
        connections: usize,
        /// Threads that the connections share
        #[arg(long, default_value_t = 1)]
        threads: usize,
        /// How long it is measured; with --ramp, each number of nodes
        #[arg(long, default_value = "30s", value_parser = duration)]
        duration: Duration,
        /// How long it runs before it is measured
        #[arg(long, default_value = "5s", value_parser = duration)]
        warm_up: Duration,
        /// Where chance begins
        #[arg(long, default_value_t = 1)]
        seed: u64,
        #[command(flatten)]
        told: ToldArgs,
    },
}

#[derive(Args)]
pub(crate) struct EndpointsArgs {
    /// Servers, several with commas; connections are dealt to them in turn
    #[arg(long, value_delimiter = ',', default_value = "http://127.0.0.1:2379")]
    endpoints: Vec<Endpoint>,
    #[command(flatten)]
    access: AccessArgs,
}

impl EndpointsArgs {
    /// The servers, with the way in.
    pub(crate) fn endpoints(self) -> Result<Vec<Endpoint>, String> {
        let access = self.access.access()?;
        let endpoints = self.endpoints.into_iter();
        Ok(endpoints.map(|endpoint| endpoint.with(&access)).collect())
    }
}

#[derive(Args)]
pub(crate) struct AccessArgs {
    /// Certificates of who may vouch for servers, for https
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// Our own certificate
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Trusts whoever answers
    #[arg(long)]
    insecure_skip_tls_verify: bool,
    /// Who asks, with a password behind a colon or in --password-file
    #[arg(long, value_name = "NAME[:PASSWORD]")]
    user: Option<String>,
    /// A file that has the password, which others could see in the list of processes
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
}

impl AccessArgs {
    /// The way in.
    pub(crate) fn access(self) -> Result<Access, String> {
        let certificates = Certificates {
            authority: self.cacert,
            own: self.cert.zip(self.key),
            unchecked: self.insecure_skip_tls_verify,
        };
        let user = match (self.user, self.password_file) {
            (None, _) => None,
            (Some(name), Some(path)) => {
                let password = std::fs::read_to_string(&path)
                    .map_err(|error| format!("{}: {error}", path.display()))?;
                Some((name, password.trim_end_matches(['\r', '\n']).to_owned()))
            }
            (Some(user), None) => {
                let (name, password) = user
                    .split_once(':')
                    .ok_or("--user needs NAME:PASSWORD, or --password-file")?;
                Some((name.to_owned(), password.to_owned()))
            }
        };
        Access::new(&certificates, user)
    }
}

#[derive(Args)]
pub(crate) struct ToldArgs {
    /// Prints JSON, an object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Writes a page with figures to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct LoadArgs {
    /// Clients; each has one request under way [default: 64, with a rate 1024]
    #[arg(long)]
    clients: Option<usize>,
    /// Connections that the clients share
    #[arg(long, default_value_t = 8)]
    connections: usize,
    /// Threads that the connections share
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Requests that are due per second, whatever the server does (an open
    /// loop); without it clients ask again when they are answered
    #[arg(long, value_parser = rate)]
    rate: Option<f64>,
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
    /// How they are spread
    #[arg(long, value_enum, default_value_t)]
    spread: Spread,
    /// Bytes of a value: 256, 100..4000 for any size between, or a mix: k8s,
    /// config, documents
    #[arg(long, default_value = "256")]
    value_bytes: ValueSizes,
    /// What keys begin with
    #[arg(long, default_value = "/pontoon-bench/")]
    prefix: String,
    /// Most keys that a range returns
    #[arg(long, default_value_t = 100)]
    limit: u64,
    /// How many of a hundred mixed requests read
    #[arg(long, default_value_t = 90)]
    read_percent: u32,
    /// Watchers of the watch workload
    #[arg(long, default_value_t = 50)]
    watchers: usize,
    /// How long leases live that nobody keeps alive, in seconds
    #[arg(long, default_value_t = 3)]
    lease_ttl: i64,
    /// How often the compaction workload compacts
    #[arg(long, default_value = "1s", value_parser = duration)]
    compact_every: Duration,
    /// Where chance begins
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

const CLOSED_CLIENTS: usize = 64;
const OPEN_CLIENTS: usize = 1024;

impl LoadArgs {
    /// The settings of a load; the rate is another one if it is given.
    pub(crate) fn settings(&self, endpoints: Vec<Endpoint>, target: Option<f64>) -> Settings {
        let rate = target.or(self.rate);
        let clients = match rate {
            Some(_) => OPEN_CLIENTS,
            None => CLOSED_CLIENTS,
        };
        Settings {
            endpoints,
            clients: self.clients.unwrap_or(clients),
            connections: self.connections,
            threads: self.threads,
            amount: match self.count {
                Some(count) => Amount::Count(count),
                None => Amount::Time(self.duration),
            },
            rate,
            warm_up: self.warm_up,
            keys: Keys::new(&self.prefix, self.key_space, self.value_bytes),
            spread: self.spread,
            limit: self.limit,
            read_percent: self.read_percent,
            watchers: self.watchers,
            lease_ttl_secs: self.lease_ttl,
            compact_every: self.compact_every,
            cluster: None,
            seed: self.seed,
        }
    }
}

#[derive(Args)]
pub(crate) struct ClusterArgs {
    /// Nodes of the cluster; with --ramp, where it begins
    #[arg(long, default_value_t = 100)]
    nodes: u64,
    /// Tries more and more nodes until the store can't carry them
    #[arg(long)]
    pub(crate) ramp: bool,
    /// Where the ramp ends at the latest
    #[arg(long, default_value_t = 10_000)]
    pub(crate) nodes_max: u64,
    /// What the p99 of writes may be at most
    #[arg(long, default_value = "100ms", value_parser = duration)]
    pub(crate) p99_max: Duration,
    /// Pods on each node
    #[arg(long, default_value_t = 10)]
    pods_per_node: u64,
    /// Pods that are born and die on each node in an hour
    #[arg(long, default_value_t = 12.0)]
    pod_churn: f64,
    /// kube-apiservers, each of which watches every resource
    #[arg(long, default_value_t = 1)]
    apiservers: usize,
    /// How often somebody lists all pods and nodes
    #[arg(long, default_value = "60s", value_parser = duration)]
    list_every: Duration,
    /// How often the history is compacted
    #[arg(long, default_value = "5m", value_parser = duration)]
    compact_every: Duration,
    /// What keys begin with; everything below it is deleted first
    #[arg(long, default_value = "/pontoon-bench/k8s")]
    prefix: String,
}

impl ClusterArgs {
    /// The cluster that is simulated.
    pub(crate) fn cluster(&self) -> Result<Cluster, String> {
        let mut cluster = Cluster::new(self.nodes, self.prefix.trim_end_matches('/'));
        cluster.pods_per_node = self.pods_per_node;
        cluster.pod_churn_per_hour = self.pod_churn;
        cluster.apiservers = self.apiservers;
        cluster.list_every = self.list_every;
        cluster.compact_every = self.compact_every;
        if self.prefix.trim_matches('/').is_empty() {
            return Err("the prefix must not be all keys: what is below it is deleted".to_owned());
        }
        if self.list_every.is_zero() || self.compact_every.is_zero() {
            return Err("there must be time between lists and between compactions".to_owned());
        }
        cluster.check()?;
        Ok(cluster)
    }
}

/// The settings of a control plane.
pub(crate) fn cluster_settings(
    cluster: Cluster,
    endpoints: Vec<Endpoint>,
    [connections, threads]: [usize; 2],
    [duration, warm_up]: [Duration; 2],
    seed: u64,
) -> Settings {
    let compact_every = cluster.compact_every;
    let settings = Settings {
        endpoints,
        clients: 1,
        connections,
        threads,
        amount: Amount::Time(duration),
        rate: None,
        warm_up,
        keys: Keys::new(&cluster.prefix, 1, ValueSizes::Fixed(0)),
        spread: Spread::Uniform,
        limit: 0,
        read_percent: 0,
        watchers: 0,
        lease_ttl_secs: 1,
        compact_every,
        cluster: None::<Arc<Cluster>>,
        seed,
    };
    with_cluster(&settings, cluster)
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
