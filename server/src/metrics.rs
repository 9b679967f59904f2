//! Numbers for Prometheus, under etcd's names.
//!
//! Kept true: what has another meaning here than in etcd is not told under
//! etcd's name. Numbers about leaders are those of the root group. Labels have
//! few values: ranges beyond the first [`RANGES_MAX`] have none of their own.

mod table;
mod tallies;

use std::fmt::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pontoon_api::CODE_NAMES;
use pontoon_engine::{KeyRange, Range};
use pontoon_raftgroup::{Alarm, Condition, GroupId, ReplicaStatus, Transfers};
use pontoon_wal::Histogram;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::calls::Rpc;
use crate::flags::GATES;
use crate::host::Host;
use crate::version::{API_VERSION, CLUSTER_MINOR};

pub use table::{METRICS, Metric};
pub(crate) use tallies::{Present, Tallies};

/// Ranges that have numbers of their own.
const RANGES_MAX: usize = 128;
/// How long a count of keys may take.
const COUNT_WITHIN: Duration = Duration::from_secs(1);
/// Prometheus' own buckets, in seconds.
const USUAL: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
/// The system counts times of processors in these.
const TICKS_PER_SEC: f64 = 100.0;

/// Bytes from and to clients, and their connections.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    received: AtomicU64,
    sent: AtomicU64,
    connections: AtomicU64,
}

/// The page.
pub(crate) async fn page(host: &Host) -> String {
    let keys = keys(host).await;
    let mut page = Page::default();
    let replicas = host.node.status();
    page.cluster(host, &replicas);
    page.member(host);
    page.leases(host);
    page.data(host, &replicas, keys);
    page.disk(host);
    page.network(host);
    page.calls(host);
    page.ranges(host, &replicas);
    page.ledger(host);
    page.log(host);
    page.process(host);
    page.text
}

/// As this member knows them.
async fn keys(host: &Host) -> Option<u64> {
    let mut all = Range::of(KeyRange::all());
    all.count_only = true;
    let counted = host.node.read_serializable(&all, COUNT_WITHIN).await;
    counted
        .ok()
        .and_then(|found| u64::try_from(found.count).ok())
}

/// Writes that clients were told to try again, or that failed here.
fn failed_writes(host: &Host) -> u64 {
    let writes = [
        Rpc::Put,
        Rpc::DeleteRange,
        Rpc::Txn,
        Rpc::LeaseGrant,
        Rpc::LeaseRevoke,
    ];
    let unavailable = tonic::Code::Unavailable as usize;
    let failed = writes.map(|rpc| host.calls.of(rpc).handled[unavailable].load(Relaxed));
    failed.iter().sum()
}

/// Bounds that double, in the unit of the metric.
fn doubling(first: f64, count: i32) -> Vec<f64> {
    (0..count).map(|at| first * 2_f64.powi(at)).collect()
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    /// The lines above a metric.
    fn head(&mut self, name: &str) {
        let metric = METRICS.iter().find(|metric| metric.name == name);
        debug_assert!(metric.is_some(), "{name} is not in the table");
        if let Some(metric) = metric {
            let _ = writeln!(self.text, "# HELP {name} {}", metric.help);
            let _ = writeln!(self.text, "# TYPE {name} {}", metric.kind);
        }
    }

    fn line(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let _ = match labels.is_empty() {
            true => writeln!(self.text, "{name} {value}"),
            false => writeln!(self.text, "{name}{{{labels}}} {value}"),
        };
    }

    fn one(&mut self, name: &str, value: impl std::fmt::Display) {
        self.head(name);
        self.line(name, "", value);
    }

    /// A number whose meaning is in its label.
    fn info(&mut self, name: &str, label: &str, value: &str) {
        self.head(name);
        self.line(name, &format!("{label}=\"{}\"", escaped(value)), 1);
    }

    /// Histograms, taken together, whose values are `scale` times the unit.
    fn buckets(
        &mut self,
        name: &str,
        labels: &str,
        histograms: &[&Histogram],
        scale: f64,
        bounds: &[f64],
    ) {
        let comma = if labels.is_empty() { "" } else { "," };
        let mut counted: Vec<(u64, u64)> = histograms.iter().flat_map(|h| h.buckets()).collect();
        counted.sort_unstable();
        let bucket = format!("{name}_bucket");
        for bound in bounds {
            let below = counted
                .iter()
                .take_while(|(value, _)| *value as f64 <= bound * scale);
            let below: u64 = below.map(|(_, count)| count).sum();
            self.line(&bucket, &format!("{labels}{comma}le=\"{bound}\""), below);
        }
        let count: u64 = counted.iter().map(|(_, count)| count).sum();
        self.line(&bucket, &format!("{labels}{comma}le=\"+Inf\""), count);
        let sum = histograms.iter().map(|h| h.sum()).sum::<u64>() as f64 / scale;
        self.line(&format!("{name}_sum"), labels, sum);
        self.line(&format!("{name}_count"), labels, count);
    }

    fn seconds(&mut self, name: &str, histogram: &Histogram, first: f64, count: i32) {
        self.head(name);
        self.buckets(name, "", &[histogram], 1e9, &doubling(first, count));
    }

    fn cluster(&mut self, host: &Host, replicas: &[ReplicaStatus]) {
        let has_leader = host.node.has_leader(GroupId::ROOT);
        let leads = host.node.leadership().1 == Some(host.member_id);
        self.one("etcd_server_has_leader", u64::from(has_leader));
        self.one("etcd_server_is_leader", u64::from(has_leader && leads));
        let learner = host.is_learner();
        self.one("etcd_server_is_learner", u64::from(learner));
        let changes = host.tallies.leader_changes.load(Relaxed);
        self.one("etcd_server_leader_changes_seen_total", changes);
        let committed: u64 = replicas.iter().map(|replica| replica.committed.0).sum();
        let applied: u64 = replicas.iter().map(|replica| replica.applied.0).sum();
        self.one("etcd_server_proposals_committed_total", committed);
        self.one("etcd_server_proposals_applied_total", applied);
        let pending = committed.saturating_sub(applied);
        self.one("etcd_server_proposals_pending", pending);
        self.one("etcd_server_proposals_failed_total", failed_writes(host));
    }

    fn member(&mut self, host: &Host) {
        let id = format!("{:x}", host.member_id.0);
        self.info("etcd_server_id", "server_id", &id);
        self.info("etcd_server_version", "server_version", API_VERSION);
        let (major, minor) = CLUSTER_MINOR;
        let version = format!("{major}.{minor}");
        self.info("etcd_cluster_version", "cluster_version", &version);
        self.head("etcd_server_feature_enabled");
        for gate in GATES {
            let set = host.feature_gates.get(gate.name);
            let on = set.copied().unwrap_or(gate.default);
            let labels = format!("name=\"{}\",stage=\"{}\"", gate.name, gate.stage);
            self.line("etcd_server_feature_enabled", &labels, u64::from(on));
        }
        let quota = u64::try_from(host.limits.quota_bytes).unwrap_or(0);
        self.one("etcd_server_quota_backend_bytes", quota);
        host.tallies.write(|name, lines| {
            self.head(name);
            for (labels, value) in lines {
                self.line(name, &labels, value);
            }
        });
        let range = host.calls.of(Rpc::Range);
        self.head("etcd_server_range_duration_seconds");
        for (success, took) in [("true", &range.took_ok), ("false", &range.took_failed)] {
            let labels = format!("success=\"{success}\"");
            let bounds = doubling(0.0001, 20);
            let name = "etcd_server_range_duration_seconds";
            self.buckets(name, &labels, &[took], 1e9, &bounds);
        }
        let requests = [
            (Rpc::Range, "Range"),
            (Rpc::Put, "Put"),
            (Rpc::DeleteRange, "DeleteRange"),
            (Rpc::Txn, "Txn"),
            (Rpc::Compact, "Compaction"),
            (Rpc::LeaseGrant, "LeaseGrant"),
            (Rpc::LeaseRevoke, "LeaseRevoke"),
            (Rpc::Alarm, "Alarm"),
        ];
        let name = "etcd_server_request_duration_seconds";
        self.head(name);
        for (rpc, kind) in requests {
            let count = host.calls.of(rpc);
            for (success, took) in [("true", &count.took_ok), ("false", &count.took_failed)] {
                let labels = format!("success=\"{success}\",type=\"{kind}\"");
                self.buckets(name, &labels, &[took], 1e9, &doubling(0.001, 14));
            }
        }
        self.applying(host);
        self.head("etcd_debugging_server_alarms");
        for (alarm, member) in host.node.alarms() {
            let kind = match alarm {
                Alarm::NoSpace => "NOSPACE",
                Alarm::Corrupt => "CORRUPT",
            };
            let labels = format!("alarm_type=\"{kind}\",server_id=\"{:x}\"", member.0);
            self.line("etcd_debugging_server_alarms", &labels, 1);
        }
    }

    fn applying(&mut self, host: &Host) {
        let counters = host.node.counters();
        let name = "etcd_server_apply_duration_seconds";
        self.head(name);
        let labels = "op=\"Entry\",success=\"true\",version=\"v3\"";
        let took = &counters.stores.apply_took;
        self.buckets(name, labels, &[took], 1e9, &doubling(0.0001, 20));
        let slow = counters.stores.slow_applies.load(Relaxed);
        self.one("etcd_server_slow_apply_total", slow);
        let failed = counters.rounds_failed.load(Relaxed);
        self.one("etcd_server_read_indexes_failed_total", failed);
        let slow = counters.rounds_slow.load(Relaxed);
        self.one("etcd_server_slow_read_indexes_total", slow);
        let late = host.node.link().pings_late();
        self.one("etcd_server_heartbeat_send_failures_total", late);
        let installing = counters.installing.load(Relaxed);
        self.one("etcd_server_snapshot_apply_in_progress_total", installing);
    }

    fn leases(&mut self, host: &Host) {
        let counters = host.node.counters();
        let counts = [
            (
                "etcd_debugging_lease_granted_total",
                &counters.leases_granted,
            ),
            (
                "etcd_debugging_lease_revoked_total",
                &counters.leases_revoked,
            ),
            (
                "etcd_debugging_lease_renewed_total",
                &counters.leases_renewed,
            ),
        ];
        for (name, count) in counts {
            self.one(name, count.load(Relaxed));
        }
        let name = "etcd_debugging_lease_ttl_total";
        self.head(name);
        let ttl = &counters.lease_ttl_secs;
        self.buckets(name, "", &[ttl], 1.0, &doubling(1.0, 24));
        let expired = counters.leases_expired.load(Relaxed);
        self.one("etcd_debugging_server_lease_expired_total", expired);
    }

    fn data(&mut self, host: &Host, replicas: &[ReplicaStatus], keys: Option<u64>) {
        let file_bytes: u64 = replicas.iter().map(|replica| replica.file_bytes).sum();
        self.one("etcd_mvcc_db_total_size_in_bytes", file_bytes);
        let used: u64 = replicas.iter().map(used_bytes).sum();
        self.one("etcd_mvcc_db_total_size_in_use_in_bytes", used);
        let reads: usize = replicas.iter().map(|replica| replica.open_reads).sum();
        self.one("etcd_mvcc_db_open_read_transactions", reads);
        let (tallies, stores) = (&host.tallies, &host.node.counters().stores);
        let ranges = [Rpc::Range, Rpc::RangeStream].map(|rpc| host.calls.of(rpc).took_ok.count());
        let ranges = ranges.iter().sum::<u64>() + tallies.txn_ranges.load(Relaxed);
        self.one("etcd_mvcc_range_total", ranges);
        self.one("etcd_mvcc_put_total", stores.puts.load(Relaxed));
        self.one("etcd_mvcc_delete_total", stores.deletes.load(Relaxed));
        self.one("etcd_mvcc_txn_total", tallies.txns.load(Relaxed));
        let bytes = stores.put_bytes.load(Relaxed);
        self.one("etcd_debugging_mvcc_total_put_size_in_bytes", bytes);
        self.seconds(
            "etcd_mvcc_hash_duration_seconds",
            &tallies.hash_took,
            0.01,
            15,
        );
        self.seconds(
            "etcd_mvcc_hash_rev_duration_seconds",
            &tallies.hash_kv_took,
            0.01,
            15,
        );
        let revision = host.node.revision().0;
        self.one("etcd_debugging_mvcc_current_revision", revision);
        let floor = host.node.floor().0;
        self.one("etcd_debugging_mvcc_compact_revision", floor);
        self.head("etcd_debugging_mvcc_keys_total");
        if let Some(keys) = keys {
            self.line("etcd_debugging_mvcc_keys_total", "", keys);
        }
        let events = tallies.events.load(Relaxed);
        self.one("etcd_debugging_mvcc_events_total", events);
        let streams = tallies.watch_streams.load(Relaxed);
        self.one("etcd_debugging_mvcc_watch_stream_total", streams);
        let watchers = tallies.watchers.load(Relaxed);
        self.one("etcd_debugging_mvcc_watcher_total", watchers);
        let behind = host.node.watches_behind();
        self.one("etcd_debugging_mvcc_slow_watcher_total", behind);
        let (loops, sends) = (
            "etcd_debugging_server_watch_send_loop",
            &tallies.watch_sends,
        );
        for (part, took) in [
            ("watch_stream_duration_seconds", &sends.events),
            ("watch_stream_duration_per_event_seconds", &sends.event),
            ("control_stream_duration_seconds", &sends.control),
            ("progress_duration_seconds", &sends.progress),
        ] {
            self.seconds(&format!("{loops}_{part}"), took, 0.001, 14);
        }
        self.compactions(host);
    }

    fn compactions(&mut self, host: &Host) {
        let stores = &host.node.counters().stores;
        let removed = stores.compacted.load(Relaxed);
        self.one("etcd_debugging_mvcc_db_compaction_keys_total", removed);
        let name = "etcd_debugging_mvcc_db_compaction_total_duration_milliseconds";
        self.head(name);
        let took = &stores.compaction_took;
        self.buckets(name, "", &[took], 1e6, &doubling(100.0, 14));
        let name = "etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds";
        self.head(name);
        let pause = &stores.compaction_pause;
        self.buckets(name, "", &[pause], 1e6, &doubling(1.0, 13));
        let last = stores.since_compaction().and_then(|ago| {
            SystemTime::now()
                .checked_sub(ago)?
                .duration_since(UNIX_EPOCH)
                .ok()
        });
        let last = last.map_or(0, |last| last.as_secs());
        self.one("etcd_debugging_mvcc_db_compaction_last", last);
    }

    fn disk(&mut self, host: &Host) {
        let log = host.node.log_counters();
        self.seconds(
            "etcd_disk_wal_fsync_duration_seconds",
            &log.sync_latency,
            0.001,
            14,
        );
        let written = log.written_bytes.load(Relaxed);
        self.one("etcd_disk_wal_write_bytes_total", written);
        let stores = &host.node.counters().stores;
        let name = "etcd_disk_backend_commit_duration_seconds";
        self.seconds(name, &stores.commit_took, 0.001, 14);
        let name = "etcd_snap_db_save_total_duration_seconds";
        self.seconds(name, &stores.copy_took, 0.1, 10);
        let name = "etcd_snap_db_fsync_duration_seconds";
        self.seconds(name, &stores.copy_sync_took, 0.001, 14);
        let running = host.tallies.defrags.load(Relaxed);
        self.one("etcd_disk_defrag_inflight", running.min(1));
        let took = &host.tallies.defrag_took;
        self.seconds("etcd_disk_backend_defrag_duration_seconds", took, 0.1, 13);
    }

    fn network(&mut self, host: &Host) {
        let received = host.traffic.received.load(Relaxed);
        self.one("etcd_network_client_grpc_received_bytes_total", received);
        let sent = host.traffic.sent.load(Relaxed);
        self.one("etcd_network_client_grpc_sent_bytes_total", sent);
        let me = host.member_id;
        let others: Vec<_> = host
            .node
            .members()
            .into_keys()
            .filter(|id| *id != me)
            .collect();
        let pair = |id: u64| format!("Local=\"{:x}\",Remote=\"{id:x}\"", me.0);
        self.head("etcd_network_known_peers");
        for id in others.iter().chain([&me]) {
            self.line("etcd_network_known_peers", &pair(id.0), 1);
        }
        self.head("etcd_network_active_peers");
        for id in &others {
            let alive = u64::from(host.node.is_alive(*id));
            self.line("etcd_network_active_peers", &pair(id.0), alive);
        }
        let counts: Vec<_> = others.iter().map(|id| (id.0, host.peers.of(*id))).collect();
        self.head("etcd_network_disconnected_peers_total");
        for (id, count) in &counts {
            let lost = count.lost.load(Relaxed);
            self.line("etcd_network_disconnected_peers_total", &pair(*id), lost);
        }
        self.head("etcd_network_peer_sent_bytes_total");
        for (id, count) in &counts {
            let (to, sent) = (format!("To=\"{id:x}\""), count.sent_bytes.load(Relaxed));
            self.line("etcd_network_peer_sent_bytes_total", &to, sent);
        }
        self.head("etcd_network_peer_received_bytes_total");
        for (id, count) in &counts {
            let from = format!("From=\"{id:x}\"");
            let received = count.received_bytes.load(Relaxed);
            self.line("etcd_network_peer_received_bytes_total", &from, received);
        }
        self.head("etcd_network_peer_sent_failures_total");
        for (id, count) in &counts {
            let (to, unsent) = (format!("To=\"{id:x}\""), count.unsent.load(Relaxed));
            self.line("etcd_network_peer_sent_failures_total", &to, unsent);
        }
        self.head("etcd_network_peer_received_failures_total");
        for id in &others {
            let (from, garbled) = (
                format!("From=\"{:x}\"", id.0),
                host.node.link().garbled(*id),
            );
            self.line("etcd_network_peer_received_failures_total", &from, garbled);
        }
        let name = "etcd_network_peer_round_trip_time_seconds";
        self.head(name);
        for (id, count) in &counts {
            let to = format!("To=\"{id:x}\"");
            let took = &count.round_trip;
            self.buckets(name, &to, &[took], 1e9, &doubling(0.0001, 16));
        }
        let counters = host.node.counters();
        let sent = others.iter().map(|id| (id.0, counters.snapshots_to(*id)));
        self.snapshots("send", "To", &sent.collect::<Vec<_>>());
        let received = others.iter().map(|id| (id.0, counters.snapshots_from(*id)));
        self.snapshots("receive", "From", &received.collect::<Vec<_>>());
        let name = "etcd_network_server_stream_failures_total";
        self.head(name);
        for (api, count) in [
            ("watch", &host.tallies.watch_failures),
            ("lease-keepalive", &host.tallies.keep_alive_failures),
        ] {
            let labels = format!("API=\"{api}\",Type=\"receive\"");
            self.line(name, &labels, count.load(Relaxed));
        }
    }

    /// Snapshots on their way in one direction, by the other member.
    fn snapshots(&mut self, direction: &str, label: &str, peers: &[(u64, Arc<Transfers>)]) {
        type Number = fn(&Transfers) -> &AtomicU64;
        let counts: [(&str, Number); 3] = [
            ("inflights_total", |transfers| &transfers.under_way),
            ("success", |transfers| &transfers.done),
            ("failures", |transfers| &transfers.failed),
        ];
        for (count, number) in counts {
            let name = format!("etcd_network_snapshot_{direction}_{count}");
            self.head(&name);
            for (id, transfers) in peers {
                let labels = format!("{label}=\"{id:x}\"");
                self.line(&name, &labels, number(transfers).load(Relaxed));
            }
        }
        let name = format!("etcd_network_snapshot_{direction}_total_duration_seconds");
        self.head(&name);
        for (id, transfers) in peers {
            let labels = format!("{label}=\"{id:x}\"");
            let took = &transfers.took;
            self.buckets(&name, &labels, &[took], 1e9, &doubling(0.1, 10));
        }
    }

    fn calls(&mut self, host: &Host) {
        let labels = |rpc: Rpc| {
            format!(
                "grpc_method=\"{}\",grpc_service=\"{}\",grpc_type=\"{}\"",
                rpc.method(),
                rpc.service(),
                rpc.shape().name()
            )
        };
        self.head("grpc_server_started_total");
        for rpc in Rpc::ALL {
            let started = host.calls.of(*rpc).started.load(Relaxed);
            self.line("grpc_server_started_total", &labels(*rpc), started);
        }
        for (name, at) in [
            ("grpc_server_msg_received_total", 0),
            ("grpc_server_msg_sent_total", 1),
        ] {
            self.head(name);
            for rpc in Rpc::ALL {
                let messages = <[u64; 2]>::from(host.calls.messages(*rpc))[at];
                self.line(name, &labels(*rpc), messages);
            }
        }
        self.head("grpc_server_handled_total");
        for rpc in Rpc::ALL {
            for (code, handled) in CODE_NAMES.iter().zip(&host.calls.of(*rpc).handled) {
                let labels = format!("grpc_code=\"{code}\",{}", labels(*rpc));
                self.line("grpc_server_handled_total", &labels, handled.load(Relaxed));
            }
        }
        if !host.limits.metrics_extensive {
            return;
        }
        let name = "grpc_server_handling_seconds";
        self.head(name);
        for rpc in Rpc::ALL {
            let count = host.calls.of(*rpc);
            let took = [&count.took_ok, &count.took_failed];
            self.buckets(name, &labels(*rpc), &took, 1e9, &USUAL);
        }
    }

    fn ranges(&mut self, host: &Host, replicas: &[ReplicaStatus]) {
        let count = |which: fn(&ReplicaStatus) -> bool| {
            replicas.iter().filter(|replica| which(replica)).count()
        };
        self.one("pontoon_groups", replicas.len());
        self.one("pontoon_groups_led", count(|replica| replica.leads));
        self.one("pontoon_groups_quiet", count(|replica| replica.quiet));
        let failed = count(|replica| replica.failure.is_some());
        self.one("pontoon_replicas_failed", failed);
        self.one("pontoon_replicas_rebuilding", host.node.damaged().len());
        self.one("pontoon_ranges_unserved", host.node.unserved().len());
        let snapshots: u64 = replicas.iter().map(|replica| replica.snapshots).sum();
        self.one("pontoon_snapshots_received_total", snapshots);
        let version = host.node.map().map_or(0, |map| map.version);
        self.one("pontoon_range_map_version", version);
        let numbers: [(&str, Number); 5] = [
            ("pontoon_range_bytes", |replica| used_bytes(replica) as i64),
            ("pontoon_range_leads", |replica| i64::from(replica.leads)),
            ("pontoon_range_applied_index", |replica| {
                replica.applied.0 as i64
            }),
            ("pontoon_range_revision", |replica| replica.revision.0),
            ("pontoon_range_term", |replica| replica.term.0 as i64),
        ];
        for (name, number) in numbers {
            self.head(name);
            for replica in replicas.iter().take(RANGES_MAX) {
                let labels = format!("group=\"{}\"", replica.group);
                self.line(name, &labels, number(replica));
            }
        }
    }

    fn ledger(&mut self, host: &Host) {
        let ledger = host.node.look_at_ledger();
        let open = ledger.open;
        self.one("pontoon_is_sequencer", u64::from(open.is_some()));
        self.one("pontoon_ledger_grants_total", ledger.grants);
        self.one("pontoon_ledger_revisions_total", ledger.revisions);
        self.one("pontoon_ledger_stale_total", ledger.stale);
        self.one("pontoon_ledger_read_points_total", ledger.read_points);
        let numbers = [
            (
                "pontoon_ledger_groups_announced",
                open.map(|open| open.groups as i64),
            ),
            (
                "pontoon_ledger_grants_outstanding",
                open.map(|open| open.grants as i64),
            ),
            (
                "pontoon_ledger_revisions_open",
                open.map(|open| open.revisions),
            ),
            (
                "pontoon_ledger_revisions_below_ceiling",
                open.map(|open| open.below_ceiling),
            ),
        ];
        for (name, number) in numbers {
            self.head(name);
            if let Some(number) = number {
                self.line(name, "", number);
            }
        }
    }

    fn log(&mut self, host: &Host) {
        let log = host.node.log_counters();
        let counters = [
            ("pontoon_wal_commits_total", &log.commits),
            ("pontoon_wal_batches_total", &log.batches),
            ("pontoon_wal_records_total", &log.records),
            ("pontoon_wal_record_bytes_total", &log.record_bytes),
            ("pontoon_wal_written_bytes_total", &log.written_bytes),
        ];
        for (name, counter) in counters {
            self.one(name, counter.load(Relaxed));
        }
        let name = "pontoon_wal_commit_batches";
        self.head(name);
        self.buckets(name, "", &[&log.commit_batches], 1.0, &doubling(1.0, 11));
        let wait = &log.queue_wait;
        self.seconds("pontoon_wal_queue_wait_seconds", wait, 0.0001, 16);
        let busy = log.busy.load(Relaxed) as f64 / 1e9;
        self.one("pontoon_wal_busy_seconds_total", busy);
        let stalled = host.node.condition() == Condition::Stalled;
        self.one("pontoon_disk_stalled", u64::from(stalled));
        self.one("pontoon_disk_drift_ratio", host.drift.ratio());
        let warnings = host.drift.warnings.load(Relaxed);
        self.one("pontoon_disk_drift_warnings_total", warnings);
        let counters = [
            ("pontoon_wal_segment_stalls_total", &log.segment_stalls),
            ("pontoon_wal_segments_made_total", &log.segments_made),
            (
                "pontoon_wal_segments_recycled_total",
                &log.segments_recycled,
            ),
            ("pontoon_wal_entries_moved_total", &log.entries_moved),
            ("pontoon_wal_reads_cached_total", &log.reads_cached),
            ("pontoon_wal_reads_disk_total", &log.reads_disk),
        ];
        for (name, counter) in counters {
            self.one(name, counter.load(Relaxed));
        }
    }

    fn process(&mut self, host: &Host) {
        self.info("pontoon_build_info", "version", env!("CARGO_PKG_VERSION"));
        self.info("pontoon_io_backend_info", "backend", &host.io);
        let is_full = u8::from(host.node.is_space_low());
        self.one("pontoon_disk_full", is_full);
        let connections = host.traffic.connections.load(Relaxed);
        self.one("pontoon_connections", connections);
        self.one("pontoon_connections_max", host.limits.connections_max);
        let bounds = &host.bounds;
        self.one("pontoon_client_calls", bounds.calls());
        self.one("pontoon_client_bytes", bounds.bytes());
        self.one("pontoon_client_calls_refused_total", bounds.refused());
        self.one("pontoon_stalled_connections_closed_total", bounds.closed());
        let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let limit = limit.current.unwrap_or(u64::MAX);
        self.one("os_fd_used", open);
        self.one("os_fd_limit", limit);
        self.one("process_open_fds", open);
        self.one("process_max_fds", limit);
        let usage = Usage::read().unwrap_or_default();
        self.one("process_cpu_seconds_total", usage.cpu_secs);
        self.one("process_resident_memory_bytes", usage.resident_bytes);
        self.one("process_virtual_memory_bytes", usage.virtual_bytes);
        let started = host.started.duration_since(UNIX_EPOCH);
        let started = started.map_or(0.0, |since| since.as_secs_f64());
        self.one("process_start_time_seconds", started);
    }
}

/// Something to tell of a replica.
type Number = fn(&ReplicaStatus) -> i64;

fn used_bytes(replica: &ReplicaStatus) -> u64 {
    replica.used_bytes
}

/// As Prometheus wants it between quotes.
fn escaped(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

/// What the system says of this process.
#[derive(Default)]
struct Usage {
    cpu_secs: f64,
    virtual_bytes: u64,
    resident_bytes: u64,
}

impl Usage {
    fn read() -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        // Behind the name, which may hold anything, in parentheses.
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Self {
            cpu_secs: (number(11)? + number(12)?) as f64 / TICKS_PER_SEC,
            virtual_bytes: number(20)?,
            resident_bytes: number(21)? * rustix::param::page_size() as u64,
        })
    }
}

/// A connection whose bytes are counted.
pub(crate) struct Counted<T> {
    inner: T,
    traffic: Arc<Traffic>,
}

impl<T> Counted<T> {
    pub(crate) fn new(inner: T, traffic: Arc<Traffic>) -> Self {
        traffic.connections.fetch_add(1, Relaxed);
        Self { inner, traffic }
    }

    fn sent(&self, written: &Poll<std::io::Result<usize>>) {
        if let Poll::Ready(Ok(bytes)) = written {
            self.traffic.sent.fetch_add(*bytes as u64, Relaxed);
        }
    }
}

impl<T> Drop for Counted<T> {
    fn drop(&mut self) {
        self.traffic.connections.fetch_sub(1, Relaxed);
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Counted<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        let bytes = buffer.filled().len() - before;
        self.traffic.received.fetch_add(bytes as u64, Relaxed);
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Counted<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.sent(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, parts);
        self.sent(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
