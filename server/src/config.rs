//! How a server is run, with etcd's defaults.
//!
//! Kept true: what [`Config::check`] lets pass can be started, as far as can
//! be told without the disk and the network.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use pontoon_wal::disk::Backend;

use crate::url::Url;

/// Whether a cluster is founded or joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterState {
    /// All first members start so.
    New,
    /// It joins a cluster that has taken it in.
    Existing,
}

/// What is forgotten by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoCompaction {
    /// Nothing.
    Off,
    /// What is older than this.
    Periodic(Duration),
    /// All but so many revisions.
    Revision(i64),
}

/// How logs look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Console,
    /// One object on each line.
    Json,
}

/// Where logs go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogOutput {
    /// To the standard error.
    Stderr,
    /// To the standard output.
    Stdout,
    /// To the end of a file.
    File(PathBuf),
}

/// How a server is run.
#[derive(Clone, Debug)]
pub struct Config {
    /// What the member is called.
    pub name: String,
    /// Where its data is; by default `NAME.etcd`.
    pub data_dir: Option<PathBuf>,
    /// Where its log is, if not there.
    pub wal_dir: Option<PathBuf>,
    /// Where clients are served.
    pub listen_client_urls: String,
    /// What clients are told about that.
    pub advertise_client_urls: Option<String>,
    /// Where other members are heard.
    pub listen_peer_urls: String,
    /// What they are told about that.
    pub initial_advertise_peer_urls: String,
    /// The first members: `NAME=URL,…`.
    pub initial_cluster: Option<String>,
    /// The domain whose records name the first members.
    pub discovery_srv: Option<String>,
    /// What is behind `etcd-server-` in the names of those records.
    pub discovery_srv_name: String,
    /// Whether it is founded or joined.
    pub initial_cluster_state: ClusterState,
    /// Tells clusters apart that have the same URLs.
    pub initial_cluster_token: String,
    /// Where a new cluster's keys are cut.
    pub initial_splits: Vec<Bytes>,
    /// How many replicas a range of a new cluster has; 0: one on every member.
    pub replicas: u64,
    /// A range that has grown beyond this is split.
    pub range_bytes_max: Option<u64>,
    /// A range with more writes than this in a second is split; 0: never.
    pub range_writes_max: u64,
    /// Ranges are not split by themselves when there are so many.
    pub ranges_max: Option<usize>,
    /// Bytes that the files of the log take at most.
    pub log_bytes_max: u64,
    /// The newest version of the cluster that this member agrees to.
    pub cluster_version_max: Option<u8>,
    /// How the log is written.
    pub io_backend: Backend,
    /// What the disk was found to do; the log is set by it.
    pub disk_profile: Option<PathBuf>,
    /// How long the disk may make nothing durable before the process ends.
    pub disk_stall_max: Duration,
    /// Where HTTP is served instead of at the clients' URLs.
    pub listen_client_http_urls: Option<String>,
    /// Where metrics and health are served besides.
    pub listen_metrics_urls: Option<String>,
    /// Whether metrics tell how long calls take.
    pub metrics_extensive: bool,
    /// Whether ports for clients are shared with other processes.
    pub reuse_port: bool,
    /// Most connections of clients; 0: as many as the limit of files allows.
    pub connections_max: usize,
    /// Origins whose pages may ask over HTTP, with commas between; `*`: all.
    pub cors: String,
    /// Hosts that clients may name over HTTP; `*`: all.
    pub host_whitelist: String,
    /// Between two signs of life of a leader.
    pub heartbeat_ms: u64,
    /// Silence after which a leader is replaced.
    pub election_ms: u64,
    /// Log entries that are kept for slow followers.
    pub snapshot_count: u64,
    /// The same; the larger of the two counts.
    pub catchup_entries: u64,
    /// Between two comparisons of replicas; 0: chosen.
    pub corrupt_check: Duration,
    /// Bytes that the trees may use; 0: chosen, below 0: no limit.
    pub quota_bytes: i64,
    /// The largest request.
    pub request_bytes_max: usize,
    /// Most comparisons or steps of a transaction.
    pub txn_ops_max: usize,
    /// Most calls at a time on one connection. (etcd has no bound.)
    pub streams_max: u32,
    /// Most members that only listen.
    pub learners_max: usize,
    /// Whether changes of members are refused that could cost the quorum.
    pub strict_reconfig: bool,
    /// Between two signs of progress on a watch.
    pub progress_notify: Duration,
    /// `periodic` or `revision`.
    pub auto_compaction_mode: String,
    /// How much is kept.
    pub auto_compaction_retention: String,
    /// Clients that ping more often than this are sent away.
    pub keepalive_min: Duration,
    /// A connection that is silent for this long is asked for a sign of life.
    pub keepalive_interval: Duration,
    /// And has this long to give it.
    pub keepalive_timeout: Duration,
    /// A request that takes longer than this is logged; 0: none.
    pub slow_request: Duration,
    /// A log entry that takes longer than this to apply is logged.
    pub slow_apply: Duration,
    /// etcd's feature gates that were set.
    pub feature_gates: BTreeMap<&'static str, bool>,
    /// What is logged.
    pub log_level: String,
    /// How.
    pub log_format: LogFormat,
    /// Where.
    pub log_outputs: Vec<LogOutput>,
}

impl Config {
    /// The defaults of a program with this name: etcd's tools read its log.
    #[must_use]
    pub fn of_program(path: &str) -> Self {
        let name = Path::new(path).file_name();
        let mut config = Self::default();
        if name.is_some_and(|name| name == "etcd") {
            config.log_format = LogFormat::Json;
        }
        config
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            data_dir: None,
            wal_dir: None,
            listen_client_urls: "http://localhost:2379".to_owned(),
            advertise_client_urls: None,
            listen_peer_urls: "http://localhost:2380".to_owned(),
            initial_advertise_peer_urls: "http://localhost:2380".to_owned(),
            initial_cluster: None,
            discovery_srv: None,
            discovery_srv_name: String::new(),
            initial_cluster_state: ClusterState::New,
            initial_cluster_token: "etcd-cluster".to_owned(),
            initial_splits: Vec::new(),
            replicas: 0,
            range_bytes_max: None,
            log_bytes_max: 1 << 30,
            cluster_version_max: None,
            range_writes_max: 0,
            ranges_max: None,
            io_backend: Backend::Auto,
            disk_profile: None,
            disk_stall_max: Duration::from_secs(60),
            listen_client_http_urls: None,
            listen_metrics_urls: None,
            metrics_extensive: false,
            reuse_port: false,
            connections_max: 0,
            cors: "*".to_owned(),
            host_whitelist: "*".to_owned(),
            heartbeat_ms: 100,
            election_ms: 1000,
            snapshot_count: 10_000,
            catchup_entries: 5_000,
            corrupt_check: Duration::ZERO,
            quota_bytes: 0,
            request_bytes_max: 1_572_864,
            txn_ops_max: 128,
            streams_max: 200,
            learners_max: 1,
            strict_reconfig: true,
            progress_notify: Duration::from_secs(600),
            auto_compaction_mode: "periodic".to_owned(),
            auto_compaction_retention: "0".to_owned(),
            keepalive_min: Duration::from_secs(5),
            keepalive_interval: Duration::from_secs(2 * 3600),
            keepalive_timeout: Duration::from_secs(20),
            slow_request: Duration::from_millis(300),
            slow_apply: Duration::from_millis(100),
            feature_gates: BTreeMap::new(),
            log_level: "info".to_owned(),
            log_format: LogFormat::Console,
            log_outputs: vec![LogOutput::Stderr],
        }
    }
}

/// A setting that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

impl From<String> for ConfigError {
    fn from(reason: String) -> Self {
        Self(reason)
    }
}

/// The URLs of a configuration, read.
#[derive(Clone, Debug)]
pub(crate) struct Urls {
    pub(crate) listen_client: Vec<Url>,
    pub(crate) advertise_client: Vec<Url>,
    pub(crate) listen_peer: Vec<Url>,
    pub(crate) advertise_peer: Vec<Url>,
    /// If not empty, HTTP is served here and not where clients are.
    pub(crate) listen_http: Vec<Url>,
    pub(crate) listen_metrics: Vec<Url>,
}

/// Names and peer URLs of the first members.
pub(crate) type FirstMembers = Vec<(String, Vec<Url>)>;

/// Segments that are made ahead or in reserve take up to half of this.
const LOG_BYTES_MIN: u64 = 512 << 20;

impl Config {
    /// Logs what counts at a start, under the flags' names.
    pub fn log(&self) {
        let state = match self.initial_cluster_state {
            ClusterState::New => "new",
            ClusterState::Existing => "existing",
        };
        tracing::info!(
            {
                "name" = self.name,
                "data-dir" = %self.dir().display(),
                "listen-client-urls" = self.listen_client_urls,
                "listen-peer-urls" = self.listen_peer_urls,
                "initial-advertise-peer-urls" = self.initial_advertise_peer_urls,
                "initial-cluster" = self.initial_cluster.as_deref().unwrap_or_default(),
                "initial-cluster-state" = state,
                "initial-cluster-token" = self.initial_cluster_token,
                "heartbeat-interval" = self.heartbeat_ms,
                "election-timeout" = self.election_ms,
                "snapshot-count" = self.snapshot_count,
                "snapshot-catchup-entries" = self.catchup_entries,
                "log-bytes" = self.log_bytes_max,
                "quota-backend-bytes" = self.quota_bytes,
                "max-request-bytes" = self.request_bytes_max,
                "max-txn-ops" = self.txn_ops_max,
                "auto-compaction-mode" = self.auto_compaction_mode,
                "auto-compaction-retention" = self.auto_compaction_retention,
            },
            "starting"
        );
    }

    /// Where the data is.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        let default = || PathBuf::from(format!("{}.etcd", self.name));
        self.data_dir.clone().unwrap_or_else(default)
    }

    /// What is forgotten by itself.
    pub fn auto_compaction(&self) -> Result<AutoCompaction, ConfigError> {
        let retention = self.auto_compaction_retention.trim();
        let bad = || {
            ConfigError(format!(
                "--auto-compaction-retention {retention:?} is not valid"
            ))
        };
        match self.auto_compaction_mode.as_str() {
            "revision" => {
                let kept: i64 = retention.parse().map_err(|_| bad())?;
                Ok(match kept > 0 {
                    true => AutoCompaction::Revision(kept),
                    false => AutoCompaction::Off,
                })
            }
            "periodic" => {
                // A bare number means hours.
                let kept = match retention.parse::<u64>() {
                    Ok(hours) => Duration::from_secs(hours.saturating_mul(3600)),
                    Err(_) => duration(retention).ok_or_else(bad)?,
                };
                Ok(match kept.is_zero() {
                    true => AutoCompaction::Off,
                    false => AutoCompaction::Periodic(kept),
                })
            }
            other => Err(ConfigError(format!(
                "--auto-compaction-mode {other:?} is neither periodic nor revision"
            ))),
        }
    }

    /// Refuses what can't work.
    pub fn check(&self) -> Result<(), ConfigError> {
        let refuse = |reason: &str| Err(ConfigError(reason.to_owned()));
        if self.heartbeat_ms == 0 || self.election_ms == 0 {
            return refuse("--heartbeat-interval and --election-timeout must be above 0");
        }
        if self.election_ms < 5 * self.heartbeat_ms {
            return refuse("--election-timeout must be at least 5 times --heartbeat-interval");
        }
        if self.election_ms > 50_000 {
            return refuse("--election-timeout is too long, it should be at most 50000 (ms)");
        }
        if self.disk_stall_max <= Duration::from_millis(self.election_ms) {
            return refuse("--disk-stall-timeout must be longer than --election-timeout");
        }
        if self.cluster_version_max == Some(0) {
            return refuse("--cluster-version-max must be at least 1");
        }
        if self.log_bytes_max < LOG_BYTES_MIN {
            return refuse("--log-bytes must be at least 536870912 (512 MiB)");
        }
        if self.initial_splits.iter().any(Bytes::is_empty)
            || !self.initial_splits.is_sorted_by(|a, b| a < b)
        {
            return refuse("--initial-splits must be different keys in ascending order");
        }
        if self.initial_cluster.is_some() && self.discovery_srv.is_some() {
            return refuse("--initial-cluster and --discovery-srv are both set; choose one");
        }
        if !matches!(self.replicas, 0 | 3 | 5) {
            return refuse("--replicas must be 3 or 5, or 0 for one on every member");
        }
        self.auto_compaction()?;
        self.urls().map(|_| ())
    }

    /// All URLs, read.
    pub(crate) fn urls(&self) -> Result<Urls, ConfigError> {
        let list = |flag: &str, text: &str| {
            let urls = Url::parse_list(text);
            urls.map_err(|reason| ConfigError(format!("--{flag}: {reason}")))
        };
        let defaults = Self::default();
        let advertise_client = match &self.advertise_client_urls {
            Some(text) => list("advertise-client-urls", text)?,
            None if self.listen_client_urls == defaults.listen_client_urls => {
                list("listen-client-urls", &self.listen_client_urls)?
            }
            None => {
                return Err(ConfigError(
                    "--advertise-client-urls is required when --listen-client-urls is set explicitly"
                        .to_owned(),
                ));
            }
        };
        let listen_client = list("listen-client-urls", &self.listen_client_urls)?;
        let listen_peer = list("listen-peer-urls", &self.listen_peer_urls)?;
        if listen_peer.is_empty() {
            return Err(ConfigError("--listen-peer-urls names no URL".to_owned()));
        }
        let advertise_peer = list(
            "initial-advertise-peer-urls",
            &self.initial_advertise_peer_urls,
        )?;
        let optional = |flag: &str, text: &Option<String>| match text {
            Some(text) => list(flag, text),
            None => Ok(Vec::new()),
        };
        let listen_http = optional("listen-client-http-urls", &self.listen_client_http_urls)?;
        let listen_metrics = optional("listen-metrics-urls", &self.listen_metrics_urls)?;
        let listened = listen_client
            .iter()
            .chain(&listen_peer)
            .chain(&listen_http)
            .chain(&listen_metrics);
        for url in listened.clone() {
            let host = url.host();
            if host != "localhost" && host.parse::<IpAddr>().is_err() {
                return Err(ConfigError(format!(
                    "{url}: expected IP in URL for binding, or localhost"
                )));
            }
        }
        for url in listened.chain(&advertise_peer) {
            if url.scheme != "http" {
                return Err(ConfigError(format!(
                    "{url}: only http is served yet, neither TLS nor unix sockets"
                )));
            }
        }
        Ok(Urls {
            listen_client,
            advertise_client,
            listen_peer,
            advertise_peer,
            listen_http,
            listen_metrics,
        })
    }

    /// Who founds the cluster, or is in it. It counts only at the first start.
    pub(crate) fn first_members(&self, own: &[Url]) -> Result<FirstMembers, ConfigError> {
        let Some(text) = &self.initial_cluster else {
            return Ok(vec![(self.name.clone(), own.to_vec())]);
        };
        let mut members = FirstMembers::new();
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            let Some((name, url)) = part.trim().split_once('=') else {
                return Err(ConfigError(format!(
                    "--initial-cluster: {part:?} is not NAME=URL"
                )));
            };
            let url = Url::parse(url).map_err(|reason| format!("--initial-cluster: {reason}"))?;
            match members.iter_mut().find(|(known, _)| known == name) {
                Some((_, urls)) => urls.push(url),
                None => members.push((name.to_owned(), vec![url])),
            }
        }
        for (_, urls) in &mut members {
            urls.sort();
        }
        match members.iter().find(|(name, _)| *name == self.name) {
            None => Err(ConfigError(format!(
                "--initial-cluster {text:?} has no member with this one's --name {:?}; \
                 set --name to what it is called there",
                self.name
            ))),
            Some((_, urls)) if urls != own => Err(ConfigError(format!(
                "--initial-cluster has {:?} at {}, but --initial-advertise-peer-urls is {:?}; \
                 make them the same",
                self.name,
                urls.iter()
                    .map(Url::to_string)
                    .collect::<Vec<_>>()
                    .join(","),
                self.initial_advertise_peer_urls
            ))),
            Some(_) => Ok(members),
        }
    }
}

/// A time as Go writes it: `1h30m`, `5s`, `100ms`.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut left = text;
    let mut sum = 0.0;
    while !left.is_empty() {
        let end = left.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, rest) = left.split_at(end);
        let unit_end = rest
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(rest.len());
        let (unit, rest) = rest.split_at(unit_end);
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        sum += number.parse::<f64>().ok()? * seconds;
        left = rest;
    }
    (!text.is_empty()).then(|| Duration::try_from_secs_f64(sum).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_called_etcd_logs_as_etcd_does() {
        let format = |program| Config::of_program(program).log_format;
        assert_eq!(format("/usr/local/bin/etcd"), LogFormat::Json);
        assert_eq!(format("etcd"), LogFormat::Json);
        for program in ["pontoon", "target/debug/pontoon", "/opt/etcd/pontoon", ""] {
            assert_eq!(format(program), LogFormat::Console);
        }
    }

    #[test]
    fn times_are_read_as_go_does() {
        assert_eq!(duration("1h30m"), Some(Duration::from_secs(5400)));
        assert_eq!(duration("1.5s"), Some(Duration::from_millis(1500)));
        assert_eq!(duration("100ms"), Some(Duration::from_millis(100)));
        for bad in ["", "5", "s", "1x", "-1s"] {
            assert_eq!(duration(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        assert_eq!(Config::default().check(), Ok(()));
        let refused = |change: &dyn Fn(&mut Config), part: &str| {
            let mut config = Config::default();
            change(&mut config);
            let checked = config.check();
            let checked = checked.and_then(|()| {
                let urls = config.urls()?;
                config.first_members(&urls.advertise_peer)
            });
            let reason = checked.unwrap_err().0;
            assert!(reason.contains(part), "{reason}");
        };
        refused(&|config| config.election_ms = 400, "5 times");
        refused(&|config| config.election_ms = 60_000, "50000");
        refused(
            &|config| config.disk_stall_max = Duration::from_secs(1),
            "--disk-stall-timeout",
        );
        refused(
            &|config| config.listen_client_urls = "http://127.0.0.1:1".to_owned(),
            "--advertise-client-urls is required",
        );
        refused(
            &|config| config.initial_cluster = Some("x=http://localhost:2380".to_owned()),
            "no member",
        );
        refused(
            &|config| config.initial_cluster = Some("default=http://localhost:1".to_owned()),
            "--initial-advertise-peer-urls",
        );
        refused(
            &|config| config.listen_peer_urls = "https://localhost:2380".to_owned(),
            "only http",
        );
        refused(&|config| config.listen_peer_urls = ",".to_owned(), "no URL");
        for replicas in [1, 2, 4, 7] {
            refused(&|config| config.replicas = replicas, "must be 3 or 5");
        }
        refused(&|config| config.log_bytes_max = 1 << 20, "--log-bytes");
        refused(
            &|config| config.cluster_version_max = Some(0),
            "--cluster-version-max",
        );
        refused(
            &|config| {
                config.initial_cluster = Some("default=http://localhost:2380".to_owned());
                config.discovery_srv = Some("example.com".to_owned());
            },
            "choose one",
        );
        refused(
            &|config| config.auto_compaction_mode = "x".to_owned(),
            "neither",
        );
    }

    #[test]
    fn retention_is_in_hours_unless_it_says_otherwise() {
        let mut config = Config::default();
        let mut read = |mode: &str, retention: &str| {
            config.auto_compaction_mode = mode.to_owned();
            config.auto_compaction_retention = retention.to_owned();
            config.auto_compaction()
        };
        assert_eq!(read("periodic", "0"), Ok(AutoCompaction::Off));
        let hours = |hours: u64| Ok(AutoCompaction::Periodic(Duration::from_secs(hours * 3600)));
        assert_eq!(read("periodic", "2"), hours(2));
        assert_eq!(read("periodic", "2h"), hours(2));
        assert_eq!(read("revision", "100"), Ok(AutoCompaction::Revision(100)));
        assert!(read("revision", "2h").is_err());
    }
}
