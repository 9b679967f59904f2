//! Every flag: those of etcd 3.4 to 3.7, and ours.
//!
//! Kept true: a flag that could make data or clients less safe if it were
//! passed over is honoured or refused. `docs/operations.md` has this table
//! too, and a test compares them.

use super::values::{
    backend, cluster_state, debug, feature_gates, initial_splits, log_format, log_level,
    log_outputs, logger, metrics, optional_parsed, parsed, progress, some, switched, text, time,
};
use super::{Flag, Form, Meaning, Set};

const fn row(name: &'static str, form: Form, meaning: Meaning, help: &'static str) -> Flag {
    Flag {
        name,
        form,
        meaning,
        help,
    }
}

const fn sets(name: &'static str, set: Set, help: &'static str) -> Flag {
    row(name, Form::Value, Meaning::Sets(set), help)
}

const fn switches(name: &'static str, set: Set, help: &'static str) -> Flag {
    row(name, Form::Switch, Meaning::Sets(set), help)
}

const fn times(name: &'static str, set: Set, help: &'static str) -> Flag {
    row(name, Form::Time, Meaning::Sets(set), help)
}

/// An older name of a flag.
const fn older(name: &'static str, form: Form, newer: &'static str) -> Flag {
    row(name, form, Meaning::Older(newer), "")
}

/// Accepted; the reason why it changes nothing.
const fn idle(name: &'static str, form: Form, reason: &'static str) -> Flag {
    row(name, form, Meaning::Ignored, reason)
}

/// Only these values are accepted, which ask for nothing; the reason.
const fn refused(
    name: &'static str,
    form: Form,
    harmless: &'static [&'static str],
    reason: &'static str,
) -> Flag {
    row(name, form, Meaning::Refused(harmless), reason)
}

const NO_TLS: &str = "TLS is not served yet";
const OF_TLS: &str = "it says how TLS is spoken, which is not served yet";
const NO_AUTH: &str = "users and roles are not there yet";
const NO_DISCOVERY: &str =
    "the discovery service is not spoken; use --initial-cluster or --discovery-srv";
const OF_DISCOVERY: &str = "it belongs to the discovery service, which is not spoken";
const NO_PROXY: &str = "a proxy is not part of this server";
const NO_V2: &str = "the v2 API is not served";
const NO_SPANS: &str = "no spans are sent";
const CHECKED: &str = "pages are checked when they are read, replicas are compared all the time";
const LONG_GONE: &str = "etcd has no use for it any more either";
const SWEEP: &str = "compaction goes in small steps and makes way for requests";
const TREE: &str = "it is about bbolt, which is not used";
const FULL_TTL: &str = "a new leader gives every lease its full time";

use Form::{Switch, Time, Value};

/// All of them.
pub const FLAGS: &[Flag] = &[
    // The member
    sets(
        "name",
        |c, v| text(&mut c.name, v),
        "name of this member, `default` unless set",
    ),
    sets(
        "data-dir",
        |c, v| some(&mut c.data_dir, v),
        "directory of the data, `NAME.etcd` unless set",
    ),
    sets(
        "wal-dir",
        |c, v| some(&mut c.wal_dir, v),
        "directory of the log, if apart",
    ),
    sets(
        "snapshot-count",
        |c, v| parsed(&mut c.snapshot_count, v),
        "log entries of each range that are kept though all followers have them; `--log-bytes` limits them",
    ),
    sets(
        "snapshot-catchup-entries",
        |c, v| parsed(&mut c.catchup_entries, v),
        "the same; the larger of the two counts",
    ),
    sets(
        "heartbeat-interval",
        |c, v| parsed(&mut c.heartbeat_ms, v),
        "between two signs of life of a leader (ms)",
    ),
    sets(
        "election-timeout",
        |c, v| parsed(&mut c.election_ms, v),
        "silence after which a leader is replaced (ms)",
    ),
    idle(
        "initial-election-tick-advance",
        Switch,
        "the first election is not delayed",
    ),
    sets(
        "listen-peer-urls",
        |c, v| text(&mut c.listen_peer_urls, v),
        "where other members are heard",
    ),
    sets(
        "listen-client-urls",
        |c, v| text(&mut c.listen_client_urls, v),
        "where clients are served",
    ),
    sets(
        "listen-client-http-urls",
        |c, v| some(&mut c.listen_client_http_urls, v),
        "where HTTP is served instead of at the clients' URLs",
    ),
    idle(
        "max-wals",
        Value,
        "log files go when nothing in them is needed",
    ),
    idle(
        "max-snapshots",
        Value,
        "checkpoints are part of the tree files",
    ),
    idle(
        "memory-mlock",
        Switch,
        "data may be larger than memory, so it is not locked there",
    ),
    sets(
        "quota-backend-bytes",
        |c, v| parsed(&mut c.quota_bytes, v),
        "bytes that the data may use; 0: 80 % of the file system, below 0: no limit",
    ),
    idle("backend-bbolt-freelist-type", Value, TREE),
    idle("backend-batch-interval", Time, TREE),
    idle("backend-batch-limit", Value, TREE),
    sets(
        "max-txn-ops",
        |c, v| parsed(&mut c.txn_ops_max, v),
        "most comparisons or steps of a transaction",
    ),
    sets(
        "max-request-bytes",
        |c, v| parsed(&mut c.request_bytes_max, v),
        "the largest request",
    ),
    sets(
        "max-concurrent-streams",
        |c, v| parsed(&mut c.streams_max, v),
        "most calls at a time on one connection; 200 unless set",
    ),
    times(
        "grpc-keepalive-min-time",
        |c, v| time(&mut c.keepalive_min, v),
        "clients that ping more often than this are sent away",
    ),
    times(
        "grpc-keepalive-interval",
        |c, v| time(&mut c.keepalive_interval, v),
        "silence after which a client is asked for a sign of life; 0: never",
    ),
    times(
        "grpc-keepalive-timeout",
        |c, v| time(&mut c.keepalive_timeout, v),
        "how long it has to give it",
    ),
    switches(
        "socket-reuse-port",
        |c, v| switched(&mut c.reuse_port, v),
        "share the ports for clients with other processes",
    ),
    idle(
        "socket-reuse-address",
        Switch,
        "a port can always be used again at once",
    ),
    idle(
        "enable-grpc-gateway",
        Switch,
        "the JSON gateway is not served yet",
    ),
    idle(
        "raft-read-timeout",
        Time,
        "a silent link is closed after a few election timeouts",
    ),
    idle(
        "raft-write-timeout",
        Time,
        "a silent link is closed after a few election timeouts",
    ),
    sets(
        "feature-gates",
        feature_gates,
        "NAME=true,NAME=false; see the table of gates",
    ),
    // The cluster
    sets(
        "initial-advertise-peer-urls",
        |c, v| text(&mut c.initial_advertise_peer_urls, v),
        "where others find this member",
    ),
    sets(
        "advertise-client-urls",
        |c, v| some(&mut c.advertise_client_urls, v),
        "where clients find this member",
    ),
    sets(
        "initial-cluster",
        |c, v| some(&mut c.initial_cluster, v),
        "the first members: NAME=URL,NAME=URL",
    ),
    sets("initial-cluster-state", cluster_state, "new or existing"),
    sets(
        "initial-cluster-token",
        |c, v| text(&mut c.initial_cluster_token, v),
        "tells clusters apart that have the same URLs",
    ),
    sets(
        "discovery-srv",
        |c, v| some(&mut c.discovery_srv, v),
        "domain whose SRV records name the first members",
    ),
    sets(
        "discovery-srv-name",
        |c, v| text(&mut c.discovery_srv_name, v),
        "what is behind `etcd-server-` in the names of those records",
    ),
    refused("discovery", Value, &[""], NO_DISCOVERY),
    refused("discovery-token", Value, &[""], NO_DISCOVERY),
    refused("discovery-endpoints", Value, &[""], NO_DISCOVERY),
    idle("discovery-fallback", Value, OF_DISCOVERY),
    refused("discovery-proxy", Value, &[""], NO_DISCOVERY),
    idle("discovery-dial-timeout", Time, OF_DISCOVERY),
    idle("discovery-request-timeout", Time, OF_DISCOVERY),
    idle("discovery-keepalive-time", Time, OF_DISCOVERY),
    idle("discovery-keepalive-timeout", Time, OF_DISCOVERY),
    idle("discovery-insecure-transport", Switch, OF_DISCOVERY),
    idle("discovery-insecure-skip-tls-verify", Switch, OF_DISCOVERY),
    idle("discovery-cert", Value, OF_DISCOVERY),
    idle("discovery-key", Value, OF_DISCOVERY),
    idle("discovery-cacert", Value, OF_DISCOVERY),
    idle("discovery-user", Value, OF_DISCOVERY),
    idle("discovery-password", Value, OF_DISCOVERY),
    switches(
        "strict-reconfig-check",
        |c, v| switched(&mut c.strict_reconfig, v),
        "refuse changes of members that could cost the quorum",
    ),
    idle("pre-vote", Switch, "there always is a vote before the vote"),
    sets(
        "auto-compaction-mode",
        |c, v| text(&mut c.auto_compaction_mode, v),
        "periodic or revision",
    ),
    sets(
        "auto-compaction-retention",
        |c, v| text(&mut c.auto_compaction_retention, v),
        "how much is kept: hours, a time like 30m, or revisions; 0: all",
    ),
    sets(
        "max-learners",
        |c, v| parsed(&mut c.learners_max, v),
        "most members that only listen",
    ),
    older("experimental-max-learners", Value, "max-learners"),
    idle(
        "experimental-wait-cluster-ready-timeout",
        Time,
        "clients are served when this member has found a quorum",
    ),
    // Safety
    refused("cert-file", Value, &[""], NO_TLS),
    refused("key-file", Value, &[""], NO_TLS),
    refused("trusted-ca-file", Value, &[""], NO_TLS),
    refused("client-cert-auth", Switch, &["", "false"], NO_TLS),
    refused("client-cert-file", Value, &[""], NO_TLS),
    refused("client-key-file", Value, &[""], NO_TLS),
    refused("client-crl-file", Value, &[""], NO_TLS),
    refused("client-cert-allowed-hostname", Value, &[""], NO_TLS),
    refused("auto-tls", Switch, &["", "false"], NO_TLS),
    refused("peer-cert-file", Value, &[""], NO_TLS),
    refused("peer-key-file", Value, &[""], NO_TLS),
    refused("peer-trusted-ca-file", Value, &[""], NO_TLS),
    refused("peer-client-cert-auth", Switch, &["", "false"], NO_TLS),
    refused("peer-client-cert-file", Value, &[""], NO_TLS),
    refused("peer-client-key-file", Value, &[""], NO_TLS),
    refused("peer-crl-file", Value, &[""], NO_TLS),
    refused("peer-auto-tls", Switch, &["", "false"], NO_TLS),
    refused("peer-cert-allowed-cn", Value, &[""], NO_TLS),
    refused("peer-cert-allowed-hostname", Value, &[""], NO_TLS),
    refused(
        "peer-skip-client-san-verification",
        Switch,
        &["", "false"],
        NO_TLS,
    ),
    older(
        "experimental-peer-skip-client-san-verification",
        Switch,
        "peer-skip-client-san-verification",
    ),
    idle("self-signed-cert-validity", Value, NO_TLS),
    idle("cipher-suites", Value, OF_TLS),
    idle("tls-min-version", Value, OF_TLS),
    idle("tls-max-version", Value, OF_TLS),
    sets(
        "cors",
        |c, v| text(&mut c.cors, v),
        "origins whose pages may ask over HTTP; `*`: all",
    ),
    sets(
        "host-whitelist",
        |c, v| text(&mut c.host_whitelist, v),
        "hosts that clients may name over HTTP; `*`: all",
    ),
    refused("auth-token", Value, &["simple"], NO_AUTH),
    refused("bcrypt-cost", Value, &["10"], NO_AUTH),
    refused("auth-token-ttl", Value, &["300"], NO_AUTH),
    // What is told
    idle("enable-pprof", Switch, "there is no Go runtime to look at"),
    sets(
        "metrics",
        metrics,
        "basic, or extensive: also how long calls take",
    ),
    sets(
        "listen-metrics-urls",
        |c, v| some(&mut c.listen_metrics_urls, v),
        "where metrics and health are served besides",
    ),
    sets("logger", logger, "zap; there is no other"),
    sets(
        "log-outputs",
        log_outputs,
        "stderr, stdout or files, with commas between; systemd/journal is stderr",
    ),
    older("log-output", Value, "log-outputs"),
    sets(
        "log-level",
        log_level,
        "debug, info, warn, error, panic or fatal",
    ),
    sets(
        "log-format",
        log_format,
        "console, or json, which it is unless set when the program is called `etcd`",
    ),
    switches("debug", debug, "the same as --log-level=debug"),
    idle("log-package-levels", Value, "use --log-level"),
    idle(
        "enable-log-rotation",
        Switch,
        "files are appended to; let logrotate copy and truncate them",
    ),
    idle(
        "log-rotation-config-json",
        Value,
        "files are appended to; let logrotate copy and truncate them",
    ),
    times(
        "warning-unary-request-duration",
        |c, v| time(&mut c.slow_request, v),
        "a request that takes longer than this is logged; 0: none",
    ),
    older(
        "experimental-warning-unary-request-duration",
        Time,
        "warning-unary-request-duration",
    ),
    times(
        "warning-apply-duration",
        |c, v| time(&mut c.slow_apply, v),
        "a log entry that takes longer than this to apply is logged",
    ),
    older(
        "experimental-warning-apply-duration",
        Time,
        "warning-apply-duration",
    ),
    idle("enable-distributed-tracing", Switch, NO_SPANS),
    idle("distributed-tracing-address", Value, NO_SPANS),
    idle("distributed-tracing-service-name", Value, NO_SPANS),
    idle("distributed-tracing-instance-id", Value, NO_SPANS),
    idle("distributed-tracing-sampling-rate", Value, NO_SPANS),
    older(
        "experimental-enable-distributed-tracing",
        Switch,
        "enable-distributed-tracing",
    ),
    older(
        "experimental-distributed-tracing-address",
        Value,
        "distributed-tracing-address",
    ),
    older(
        "experimental-distributed-tracing-service-name",
        Value,
        "distributed-tracing-service-name",
    ),
    older(
        "experimental-distributed-tracing-instance-id",
        Value,
        "distributed-tracing-instance-id",
    ),
    older(
        "experimental-distributed-tracing-sampling-rate",
        Value,
        "distributed-tracing-sampling-rate",
    ),
    // How it behaves
    times(
        "corrupt-check-time",
        |c, v| time(&mut c.corrupt_check, v),
        "between two comparisons of replicas that are written to; 0: a minute",
    ),
    older(
        "experimental-corrupt-check-time",
        Time,
        "corrupt-check-time",
    ),
    idle("experimental-initial-corrupt-check", Switch, CHECKED),
    idle("compact-hash-check-time", Time, CHECKED),
    older(
        "experimental-compact-hash-check-time",
        Time,
        "compact-hash-check-time",
    ),
    idle("experimental-compact-hash-check-enabled", Switch, CHECKED),
    idle("compaction-batch-limit", Value, SWEEP),
    older(
        "experimental-compaction-batch-limit",
        Value,
        "compaction-batch-limit",
    ),
    idle("compaction-sleep-interval", Time, SWEEP),
    older(
        "experimental-compaction-sleep-interval",
        Time,
        "compaction-sleep-interval",
    ),
    times(
        "watch-progress-notify-interval",
        |c, v| progress(&mut c.progress_notify, v),
        "between two signs of progress on a watch",
    ),
    older(
        "experimental-watch-progress-notify-interval",
        Time,
        "watch-progress-notify-interval",
    ),
    idle(
        "downgrade-check-time",
        Time,
        "there is no version to go back to",
    ),
    older(
        "experimental-downgrade-check-time",
        Time,
        "downgrade-check-time",
    ),
    idle(
        "bootstrap-defrag-threshold-megabytes",
        Value,
        "free pages are used again by themselves",
    ),
    older(
        "experimental-bootstrap-defrag-threshold-megabytes",
        Value,
        "bootstrap-defrag-threshold-megabytes",
    ),
    idle("experimental-enable-lease-checkpoint", Switch, FULL_TTL),
    idle(
        "experimental-enable-lease-checkpoint-persist",
        Switch,
        FULL_TTL,
    ),
    older("experimental-memory-mlock", Switch, "memory-mlock"),
    idle(
        "experimental-txn-mode-write-with-shared-buffer",
        Switch,
        TREE,
    ),
    idle(
        "experimental-stop-grpc-service-on-defrag",
        Switch,
        "Defragment stops nobody",
    ),
    older(
        "experimental-snapshot-catchup-entries",
        Value,
        "snapshot-catchup-entries",
    ),
    idle("experimental-backend-bbolt-freelist-type", Value, TREE),
    refused(
        "force-new-cluster",
        Switch,
        &["", "false"],
        "a cluster that has lost its quorum can't be cut down to one member yet",
    ),
    idle(
        "unsafe-no-fsync",
        Switch,
        "what is acknowledged is always synced",
    ),
    // Long gone
    idle("v2-deprecation", Value, NO_V2),
    idle("enable-v2", Switch, NO_V2),
    idle("experimental-enable-v2v3", Value, NO_V2),
    refused("proxy", Value, &["", "off"], NO_PROXY),
    idle("proxy-failure-wait", Value, NO_PROXY),
    idle("proxy-refresh-interval", Value, NO_PROXY),
    idle("proxy-dial-timeout", Value, NO_PROXY),
    idle("proxy-write-timeout", Value, NO_PROXY),
    idle("proxy-read-timeout", Value, NO_PROXY),
    idle("next-cluster-version-compatible", Switch, LONG_GONE),
    idle("cluster-active-size", Switch, LONG_GONE),
    idle("cluster-remove-delay", Switch, LONG_GONE),
    idle("cluster-sync-interval", Switch, LONG_GONE),
    idle("config", Switch, LONG_GONE),
    idle("force", Switch, LONG_GONE),
    idle("max-result-buffer", Switch, LONG_GONE),
    idle("max-retry-attempts", Switch, LONG_GONE),
    idle("peer-heartbeat-interval", Switch, LONG_GONE),
    idle("peer-election-timeout", Switch, LONG_GONE),
    idle("retry-interval", Switch, LONG_GONE),
    idle("snapshot", Switch, LONG_GONE),
    idle("v", Switch, LONG_GONE),
    idle("vv", Switch, LONG_GONE),
    idle("test.coverprofile", Switch, LONG_GONE),
    idle("test.outputdir", Switch, LONG_GONE),
    // Read before all others
    row(
        "config-file",
        Value,
        Meaning::File,
        "a YAML file with all settings; flags and variables besides it don't count",
    ),
    // Our own
    sets(
        "initial-splits",
        initial_splits,
        "keys at which a new cluster's key space is cut, with commas between; \
         or `kubernetes`, for keys that suit it",
    ),
    sets(
        "replicas",
        |c, v| parsed(&mut c.replicas, v),
        "replicas of each range of a new cluster, 3 or 5; 0: one on every member",
    ),
    sets(
        "range-bytes",
        |c, v| optional_parsed(&mut c.range_bytes_max, v),
        "a range that has grown beyond this is split; 4 GiB unless set",
    ),
    sets(
        "log-bytes",
        |c, v| parsed(&mut c.log_bytes_max, v),
        "bytes that the files of the log take at most, all ranges together; 1 GiB unless set, at least 512 MiB",
    ),
    sets(
        "range-writes",
        |c, v| parsed(&mut c.range_writes_max, v),
        "a range with more writes than this in a second is split; 0: never",
    ),
    sets(
        "max-ranges",
        |c, v| optional_parsed(&mut c.ranges_max, v),
        "ranges are not split by themselves when there are so many; 64 unless set",
    ),
    sets(
        "cluster-version-max",
        |c, v| optional_parsed(&mut c.cluster_version_max, v),
        "holds the cluster's version at this one or below, so that there is a way back from an upgrade",
    ),
    sets(
        "io-backend",
        backend,
        "how the log is written: auto (unless set), uring or syscalls",
    ),
    sets(
        "disk-profile",
        |c, v| some(&mut c.disk_profile, v),
        "file of `pontoonctl disk qualify --profile`: sets the log for the disk, and a slower disk is warned of",
    ),
    times(
        "disk-stall-timeout",
        |c, v| time(&mut c.disk_stall_max, v),
        "the process exits with code 74 when the disk has made nothing durable for this long; 60s unless set",
    ),
    sets(
        "max-connections",
        |c, v| parsed(&mut c.connections_max, v),
        "most connections of clients; 0: the limit of files less 150",
    ),
];
