//! Numbers for Prometheus, under etcd's names.
//!
//! Kept true: what has another meaning here than in etcd is not told under
//! etcd's name. Numbers about leaders are those of the root group.

use std::fmt::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use pontoon_raftgroup::GroupId;
use pontoon_wal::Histogram;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::calls::{CODES, Rpc};
use crate::host::Host;
use crate::version::API_VERSION;

/// Bytes from and to clients, and what else is counted besides calls.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    received: AtomicU64,
    sent: AtomicU64,
    pub(crate) leader_changes: AtomicU64,
}

/// The page.
pub(crate) fn page(host: &Host) -> String {
    let mut page = Page::default();
    let replicas = host.node.status();
    let has_leader = host.node.has_leader(GroupId::ROOT);
    let leads = host.node.leadership().1 == Some(host.member_id);
    page.gauge("etcd_server_has_leader", u64::from(has_leader));
    page.gauge("etcd_server_is_leader", u64::from(has_leader && leads));
    page.gauge(
        "etcd_server_is_learner",
        u64::from(host.learner.load(Relaxed)),
    );
    page.counter(
        "etcd_server_leader_changes_seen_total",
        host.traffic.leader_changes.load(Relaxed),
    );
    let committed: u64 = replicas.iter().map(|replica| replica.committed.0).sum();
    let applied: u64 = replicas.iter().map(|replica| replica.applied.0).sum();
    page.gauge("etcd_server_proposals_committed_total", committed);
    page.gauge("etcd_server_proposals_applied_total", applied);
    page.gauge(
        "etcd_server_proposals_pending",
        committed.saturating_sub(applied),
    );
    page.counter("etcd_server_proposals_failed_total", failed_writes(host));
    let quota = u64::try_from(host.limits.quota_bytes).unwrap_or(0);
    page.gauge("etcd_server_quota_backend_bytes", quota);
    let file_bytes: u64 = replicas.iter().map(|replica| replica.file_bytes).sum();
    let free_bytes: u64 = replicas.iter().map(|replica| replica.free_bytes).sum();
    page.gauge("etcd_mvcc_db_total_size_in_bytes", file_bytes);
    page.gauge(
        "etcd_mvcc_db_total_size_in_use_in_bytes",
        file_bytes.saturating_sub(free_bytes),
    );
    page.gauge(
        "etcd_debugging_mvcc_current_revision",
        host.node.revision().0.unsigned_abs(),
    );
    page.counter(
        "etcd_network_client_grpc_received_bytes_total",
        host.traffic.received.load(Relaxed),
    );
    page.counter(
        "etcd_network_client_grpc_sent_bytes_total",
        host.traffic.sent.load(Relaxed),
    );
    let log = host.node.log_counters();
    // etcd's buckets: 1 ms, doubled 13 times.
    page.seconds(
        "etcd_disk_wal_fsync_duration_seconds",
        &log.sync_latency,
        0.001,
        14,
    );
    page.calls(host);
    page.kind("etcd_server_version", "gauge");
    page.line(
        "etcd_server_version",
        &format!("server_version=\"{API_VERSION}\""),
        1,
    );
    page.gauge("pontoon_groups", replicas.len() as u64);
    page.gauge(
        "pontoon_groups_led",
        replicas.iter().filter(|replica| replica.leads).count() as u64,
    );
    page.counter("pontoon_wal_commits_total", log.commits.load(Relaxed));
    page.counter("pontoon_wal_records_total", log.records.load(Relaxed));
    page.counter(
        "pontoon_wal_written_bytes_total",
        log.written_bytes.load(Relaxed),
    );
    if let Some(bytes) = resident_bytes() {
        page.gauge("process_resident_memory_bytes", bytes);
    }
    page.text
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

fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn kind(&mut self, name: &str, kind: &str) {
        let _ = writeln!(self.text, "# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: u64) {
        let _ = match labels.is_empty() {
            true => writeln!(self.text, "{name} {value}"),
            false => writeln!(self.text, "{name}{{{labels}}} {value}"),
        };
    }

    fn gauge(&mut self, name: &str, value: u64) {
        self.kind(name, "gauge");
        self.line(name, "", value);
    }

    fn counter(&mut self, name: &str, value: u64) {
        self.kind(name, "counter");
        self.line(name, "", value);
    }

    /// A histogram of nanoseconds in buckets that double from `first` seconds.
    fn seconds(&mut self, name: &str, histogram: &Histogram, first: f64, buckets: u32) {
        self.kind(name, "histogram");
        let counted: Vec<(u64, u64)> = histogram.buckets().collect();
        for bucket in 0..buckets {
            let bound = first * f64::from(1_u32 << bucket);
            let below = counted
                .iter()
                .take_while(|(nanos, _)| *nanos as f64 <= bound * 1e9);
            let below: u64 = below.map(|(_, count)| count).sum();
            self.line(&format!("{name}_bucket"), &format!("le=\"{bound}\""), below);
        }
        let count: u64 = counted.iter().map(|(_, count)| count).sum();
        self.line(&format!("{name}_bucket"), "le=\"+Inf\"", count);
        let sum = histogram.sum() as f64 / 1e9;
        let _ = writeln!(self.text, "{name}_sum {sum}");
        self.line(&format!("{name}_count"), "", count);
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
        self.kind("grpc_server_started_total", "counter");
        for rpc in Rpc::ALL {
            let started = host.calls.of(*rpc).started.load(Relaxed);
            self.line("grpc_server_started_total", &labels(*rpc), started);
        }
        self.kind("grpc_server_handled_total", "counter");
        for rpc in Rpc::ALL {
            for (code, handled) in CODES.iter().zip(&host.calls.of(*rpc).handled) {
                let labels = format!("grpc_code=\"{code}\",{}", labels(*rpc));
                self.line("grpc_server_handled_total", &labels, handled.load(Relaxed));
            }
        }
    }
}

/// A connection whose bytes are counted.
pub(crate) struct Counted<T> {
    inner: T,
    traffic: Arc<Traffic>,
}

impl<T> Counted<T> {
    pub(crate) fn new(inner: T, traffic: Arc<Traffic>) -> Self {
        Self { inner, traffic }
    }

    fn sent(&self, written: &Poll<std::io::Result<usize>>) {
        if let Poll::Ready(Ok(bytes)) = written {
            self.traffic.sent.fetch_add(*bytes as u64, Relaxed);
        }
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
