//! Every metric: its type and labels. `docs/metrics.md` has this table too,
//! and a test compares them with it and with what is served.

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// As Prometheus knows it.
    pub name: &'static str,
    /// `gauge`, `counter` or `histogram`.
    pub kind: &'static str,
    /// Names of labels, with commas between; without `le`.
    pub labels: &'static str,
    /// In a few words.
    pub help: &'static str,
}

const fn metric(
    name: &'static str,
    kind: &'static str,
    labels: &'static str,
    help: &'static str,
) -> Metric {
    Metric {
        name,
        kind,
        labels,
        help,
    }
}

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    metric(name, "gauge", "", help)
}

const fn counter(name: &'static str, help: &'static str) -> Metric {
    metric(name, "counter", "", help)
}

const fn histogram(name: &'static str, help: &'static str) -> Metric {
    metric(name, "histogram", "", help)
}

const CALL: &str = "grpc_method,grpc_service,grpc_type";

/// All of them, in the order in which they are served.
pub const METRICS: &[Metric] = &[
    // The root group, under etcd's names
    gauge(
        "etcd_server_has_leader",
        "whether the root group has a leader",
    ),
    gauge(
        "etcd_server_is_leader",
        "whether this member leads the root group",
    ),
    gauge("etcd_server_is_learner", "whether this member only listens"),
    counter(
        "etcd_server_leader_changes_seen_total",
        "new leaders of the root group",
    ),
    gauge(
        "etcd_server_proposals_committed_total",
        "committed log entries, over all groups",
    ),
    gauge(
        "etcd_server_proposals_applied_total",
        "applied log entries, over all groups",
    ),
    gauge(
        "etcd_server_proposals_pending",
        "entries that are committed and not applied",
    ),
    counter(
        "etcd_server_proposals_failed_total",
        "writes whose clients were told that they failed here",
    ),
    // The member
    metric(
        "etcd_server_id",
        "gauge",
        "server_id",
        "which member this is",
    ),
    metric(
        "etcd_server_version",
        "gauge",
        "server_version",
        "the version of etcd whose API is spoken",
    ),
    metric(
        "etcd_cluster_version",
        "gauge",
        "cluster_version",
        "the same, of the cluster",
    ),
    metric(
        "etcd_server_feature_enabled",
        "gauge",
        "name,stage",
        "etcd's feature gates, which change nothing here",
    ),
    gauge(
        "etcd_server_quota_backend_bytes",
        "bytes that the data may use",
    ),
    metric(
        "etcd_server_client_requests_total",
        "counter",
        "client_api_version,type",
        "requests by the version that the client says it has",
    ),
    counter(
        "etcd_server_health_success",
        "answers of `/health` that all is well",
    ),
    counter("etcd_server_health_failures", "and that it is not"),
    metric(
        "etcd_server_healthcheck",
        "gauge",
        "name,type",
        "what each check of `/livez` and `/readyz` said last",
    ),
    metric(
        "etcd_server_healthchecks_total",
        "counter",
        "name,status,type",
        "how often it said so",
    ),
    counter("etcd_server_learner_promote_successes", "learners promoted"),
    metric(
        "etcd_server_learner_promote_failures",
        "counter",
        "Reason",
        "learners not promoted",
    ),
    metric(
        "etcd_server_range_duration_seconds",
        "histogram",
        "success",
        "how long Range takes",
    ),
    metric(
        "etcd_server_request_duration_seconds",
        "histogram",
        "success,type",
        "how long requests take",
    ),
    metric(
        "etcd_server_apply_duration_seconds",
        "histogram",
        "op,success,version",
        "how long applying an entry of a range's log takes; `op` is `Entry`",
    ),
    counter(
        "etcd_server_slow_apply_total",
        "entries that took longer than `--warning-apply-duration` to apply",
    ),
    counter(
        "etcd_server_read_indexes_failed_total",
        "quorum rounds for reads and leases, of leaders here, that failed",
    ),
    counter(
        "etcd_server_slow_read_indexes_total",
        "those that took longer than 500 ms",
    ),
    counter(
        "etcd_server_heartbeat_send_failures_total",
        "signs of life for other members that were more than an interval late",
    ),
    gauge(
        "etcd_server_snapshot_apply_in_progress_total",
        "snapshots that are being installed",
    ),
    metric(
        "etcd_debugging_server_alarms",
        "gauge",
        "alarm_type,server_id",
        "alarms that are on",
    ),
    // Leases
    counter(
        "etcd_debugging_lease_granted_total",
        "leases granted in the cluster, as applied here",
    ),
    counter(
        "etcd_debugging_lease_revoked_total",
        "leases revoked or expired in the cluster, as applied here",
    ),
    counter(
        "etcd_debugging_lease_renewed_total",
        "signs of life of leases that this member took as the root group's leader",
    ),
    histogram(
        "etcd_debugging_lease_ttl_total",
        "seconds for which leases were granted",
    ),
    counter(
        "etcd_debugging_server_lease_expired_total",
        "leases whose time was over while this member led the root group",
    ),
    // The data
    gauge(
        "etcd_mvcc_db_total_size_in_bytes",
        "bytes of the tree files",
    ),
    gauge(
        "etcd_mvcc_db_total_size_in_use_in_bytes",
        "bytes of them that are in use",
    ),
    gauge(
        "etcd_mvcc_db_open_read_transactions",
        "reads under way for which a compaction waits",
    ),
    counter(
        "etcd_mvcc_range_total",
        "ranges served by this member, those in transactions included",
    ),
    counter(
        "etcd_mvcc_put_total",
        "keys put in the ranges that this member has a replica of",
    ),
    counter("etcd_mvcc_delete_total", "keys deleted in them"),
    counter(
        "etcd_mvcc_txn_total",
        "transactions of more than one step served by this member",
    ),
    gauge(
        "etcd_debugging_mvcc_total_put_size_in_bytes",
        "bytes of the keys put and their values",
    ),
    histogram("etcd_mvcc_hash_duration_seconds", "how long Hash takes"),
    histogram(
        "etcd_mvcc_hash_rev_duration_seconds",
        "how long HashKV takes",
    ),
    gauge(
        "etcd_debugging_mvcc_current_revision",
        "the newest revision here",
    ),
    gauge(
        "etcd_debugging_mvcc_compact_revision",
        "the newest compaction",
    ),
    gauge("etcd_debugging_mvcc_keys_total", "keys"),
    counter(
        "etcd_debugging_mvcc_events_total",
        "events sent to watchers",
    ),
    gauge("etcd_debugging_mvcc_watch_stream_total", "watch streams"),
    gauge("etcd_debugging_mvcc_watcher_total", "watchers"),
    gauge(
        "etcd_debugging_mvcc_slow_watcher_total",
        "watchers that were not given all that they could be",
    ),
    histogram(
        "etcd_debugging_server_watch_send_loop_watch_stream_duration_seconds",
        "how long events of a watcher wait for a place in its client's queue",
    ),
    histogram(
        "etcd_debugging_server_watch_send_loop_watch_stream_duration_per_event_seconds",
        "the same divided by the number of events",
    ),
    histogram(
        "etcd_debugging_server_watch_send_loop_control_stream_duration_seconds",
        "the same of answers to requests on a watch stream",
    ),
    histogram(
        "etcd_debugging_server_watch_send_loop_progress_duration_seconds",
        "how long signs of progress to all watchers of a stream take",
    ),
    counter(
        "etcd_debugging_mvcc_db_compaction_keys_total",
        "old versions and tombstones that compactions removed",
    ),
    histogram(
        "etcd_debugging_mvcc_db_compaction_total_duration_milliseconds",
        "how long it takes to remove what a compaction of a range lets go",
    ),
    histogram(
        "etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds",
        "for how long it holds writers up at a time",
    ),
    gauge(
        "etcd_debugging_mvcc_db_compaction_last",
        "when that was last done, since 1970; 0: not since the start",
    ),
    // The disk
    histogram(
        "etcd_disk_wal_fsync_duration_seconds",
        "from the start of a commit of the log until it is durable",
    ),
    gauge(
        "etcd_disk_wal_write_bytes_total",
        "bytes written to the log",
    ),
    histogram(
        "etcd_disk_backend_commit_duration_seconds",
        "from the first sync of a checkpoint until it is durable; its pages are written before that",
    ),
    histogram(
        "etcd_snap_db_save_total_duration_seconds",
        "from the first page of a received checkpoint until it is in place",
    ),
    histogram(
        "etcd_snap_db_fsync_duration_seconds",
        "how long its syncs take at the end",
    ),
    gauge("etcd_disk_defrag_inflight", "whether Defragment runs"),
    histogram(
        "etcd_disk_backend_defrag_duration_seconds",
        "how long it takes",
    ),
    // The network
    counter(
        "etcd_network_client_grpc_received_bytes_total",
        "bytes from clients",
    ),
    counter(
        "etcd_network_client_grpc_sent_bytes_total",
        "bytes to clients",
    ),
    metric(
        "etcd_network_known_peers",
        "gauge",
        "Local,Remote",
        "members that are known",
    ),
    metric(
        "etcd_network_active_peers",
        "gauge",
        "Local,Remote",
        "whether the others are there",
    ),
    metric(
        "etcd_network_disconnected_peers_total",
        "counter",
        "Local,Remote",
        "connections that were lost",
    ),
    metric(
        "etcd_network_peer_sent_bytes_total",
        "counter",
        "To",
        "bytes of messages to others",
    ),
    metric(
        "etcd_network_peer_received_bytes_total",
        "counter",
        "From",
        "bytes of messages from others",
    ),
    metric(
        "etcd_network_peer_sent_failures_total",
        "counter",
        "To",
        "messages that could not be sent",
    ),
    metric(
        "etcd_network_peer_received_failures_total",
        "counter",
        "From",
        "messages from others that made no sense",
    ),
    metric(
        "etcd_network_peer_round_trip_time_seconds",
        "histogram",
        "To",
        "how long a message to another member and its answer take",
    ),
    metric(
        "etcd_network_snapshot_send_inflights_total",
        "gauge",
        "To",
        "snapshots on their way to others",
    ),
    metric(
        "etcd_network_snapshot_send_success",
        "counter",
        "To",
        "snapshots that others have installed",
    ),
    metric(
        "etcd_network_snapshot_send_failures",
        "counter",
        "To",
        "snapshots that were given up",
    ),
    metric(
        "etcd_network_snapshot_send_total_duration_seconds",
        "histogram",
        "To",
        "how long the whole ones took",
    ),
    metric(
        "etcd_network_snapshot_receive_inflights_total",
        "gauge",
        "From",
        "snapshots on their way from others",
    ),
    metric(
        "etcd_network_snapshot_receive_success",
        "counter",
        "From",
        "snapshots that came whole",
    ),
    metric(
        "etcd_network_snapshot_receive_failures",
        "counter",
        "From",
        "snapshots that were given up",
    ),
    metric(
        "etcd_network_snapshot_receive_total_duration_seconds",
        "histogram",
        "From",
        "how long the whole ones took",
    ),
    metric(
        "etcd_network_server_stream_failures_total",
        "counter",
        "API,Type",
        "streams of clients that broke off without a word",
    ),
    metric("grpc_server_started_total", "counter", CALL, "calls begun"),
    metric(
        "grpc_server_msg_received_total",
        "counter",
        CALL,
        "messages of clients",
    ),
    metric(
        "grpc_server_msg_sent_total",
        "counter",
        CALL,
        "messages to clients; errors are none",
    ),
    metric(
        "grpc_server_handled_total",
        "counter",
        "grpc_code,grpc_method,grpc_service,grpc_type",
        "calls ended",
    ),
    metric(
        "grpc_server_handling_seconds",
        "histogram",
        CALL,
        "how long they took; only with `--metrics extensive`",
    ),
    // The ranges
    gauge("pontoon_groups", "replicas of ranges on this member"),
    gauge("pontoon_groups_led", "of which it leads"),
    gauge("pontoon_groups_quiet", "in which nothing happens"),
    gauge("pontoon_replicas_failed", "replicas that have stopped"),
    gauge(
        "pontoon_replicas_rebuilding",
        "damaged replicas that are being rebuilt",
    ),
    gauge(
        "pontoon_ranges_unserved",
        "ranges placed on this member that have no leader, are not open here or are not caught up",
    ),
    counter(
        "pontoon_snapshots_received_total",
        "checkpoints taken over from others",
    ),
    gauge(
        "pontoon_range_map_version",
        "how often the map of ranges has changed",
    ),
    metric(
        "pontoon_range_bytes",
        "gauge",
        "group",
        "bytes in use, of at most 128 ranges",
    ),
    metric(
        "pontoon_range_leads",
        "gauge",
        "group",
        "whether this member leads it",
    ),
    metric(
        "pontoon_range_applied_index",
        "gauge",
        "group",
        "the last log entry that is applied",
    ),
    metric(
        "pontoon_range_revision",
        "gauge",
        "group",
        "the newest revision in it",
    ),
    metric("pontoon_range_term", "gauge", "group", "its term"),
    // The ledger
    gauge(
        "pontoon_is_sequencer",
        "whether this member grants revisions; with one range nobody needs to",
    ),
    counter(
        "pontoon_ledger_grants_total",
        "grants of revisions made here",
    ),
    counter("pontoon_ledger_revisions_total", "revisions in them"),
    counter(
        "pontoon_ledger_stale_total",
        "grants refused here since the cluster had changed, which are asked for again",
    ),
    counter(
        "pontoon_ledger_read_points_total",
        "points for linearizable reads confirmed here, each for all that wait on a member",
    ),
    gauge(
        "pontoon_ledger_groups_announced",
        "ranges whose leaders have announced themselves; as the next three, only at the sequencer",
    ),
    gauge(
        "pontoon_ledger_grants_outstanding",
        "grants that are not known to be applied",
    ),
    gauge(
        "pontoon_ledger_revisions_open",
        "revisions from the first of those on, for which reads and watches over ranges wait",
    ),
    gauge(
        "pontoon_ledger_revisions_below_ceiling",
        "revisions that can be granted before the ceiling must be raised",
    ),
    // The log
    counter("pontoon_wal_commits_total", "commits of the log"),
    counter("pontoon_wal_batches_total", "batches in them"),
    counter("pontoon_wal_records_total", "records in them"),
    counter("pontoon_wal_record_bytes_total", "bytes of those"),
    counter("pontoon_wal_written_bytes_total", "bytes written for them"),
    histogram("pontoon_wal_commit_batches", "batches in a commit"),
    histogram(
        "pontoon_wal_queue_wait_seconds",
        "from the call to the start of the commit",
    ),
    counter(
        "pontoon_wal_busy_seconds_total",
        "time in which a commit was under way",
    ),
    gauge(
        "pontoon_disk_stalled",
        "whether nothing becomes durable although something waits for it",
    ),
    gauge(
        "pontoon_disk_drift_ratio",
        "median of the last commits in multiples of the disk profile's; 0: no profile, or too few",
    ),
    counter(
        "pontoon_disk_drift_warnings_total",
        "warnings that the disk is slower than its profile",
    ),
    counter(
        "pontoon_wal_segment_stalls_total",
        "commits that waited for a segment",
    ),
    counter("pontoon_wal_segments_made_total", "segments made new"),
    counter("pontoon_wal_segments_recycled_total", "segments used again"),
    counter(
        "pontoon_wal_entries_moved_total",
        "entries written again so that a segment could go",
    ),
    counter("pontoon_wal_reads_cached_total", "entries read from memory"),
    counter("pontoon_wal_reads_disk_total", "entries read from disk"),
    // The process
    metric(
        "pontoon_build_info",
        "gauge",
        "version",
        "the version of this program",
    ),
    metric(
        "pontoon_io_backend_info",
        "gauge",
        "backend",
        "how the log is written, and why",
    ),
    gauge(
        "pontoon_disk_full",
        "whether the disk of the log or of the trees is full",
    ),
    gauge("pontoon_connections", "connections of clients"),
    gauge("pontoon_connections_max", "how many there may be"),
    gauge("pontoon_client_calls", "open calls of clients"),
    gauge(
        "pontoon_client_bytes",
        "bytes of requests and responses held for clients",
    ),
    counter(
        "pontoon_client_calls_refused_total",
        "calls refused because too many were open",
    ),
    counter(
        "pontoon_stalled_connections_closed_total",
        "connections closed because they held memory and moved nothing",
    ),
    gauge("os_fd_used", "files open"),
    gauge("os_fd_limit", "how many there may be"),
    gauge("process_open_fds", "files open"),
    gauge("process_max_fds", "how many there may be"),
    counter("process_cpu_seconds_total", "time of processors used"),
    gauge("process_resident_memory_bytes", "memory used"),
    gauge("process_virtual_memory_bytes", "addresses used"),
    gauge(
        "process_start_time_seconds",
        "when it was started, since 1970",
    ),
];
