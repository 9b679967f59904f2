//! What `/metrics` serves is what the documents say.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use pontoon_api::etcdserverpb::{
    CompactionRequest, DefragmentRequest, DeleteRangeRequest, LeaseGrantRequest,
    LeaseRevokeRequest, RequestOp, TxnRequest, WatchCreateRequest, WatchRequest, request_op,
    watch_request,
};
use pontoon_server::{METRICS, Metric};

use crate::docs::{same, table};
use crate::http::ask;
use crate::running::{get, one, one_with, put, three, three_with, until};
use tokio_stream::StreamExt;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs")
        .join(path);
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn every_metric_is_documented() {
    let rows = METRICS.iter().map(|metric| {
        let labels = metric.labels.split(',').filter(|label| !label.is_empty());
        let labels: Vec<_> = labels.map(|label| format!("`{label}`")).collect();
        let Metric {
            name, kind, help, ..
        } = metric;
        format!("| `{name}` | {kind} | {} | {help} |", labels.join(", "))
    });
    let expected: Vec<_> = rows.collect();
    same(&table(&read("metrics.md"), "## Names"), &expected);
}

/// The name of the metric that a sample belongs to.
fn metric_of(sample: &str) -> Option<&'static Metric> {
    let named = |name: &str| METRICS.iter().find(|metric| metric.name == name);
    let parts = ["_bucket", "_sum", "_count"];
    let part = parts
        .iter()
        .find_map(|part| named(sample.strip_suffix(part)?));
    named(sample).or(part.filter(|metric| metric.kind == "histogram"))
}

/// Names and types are those of the table, and so are the labels.
fn check(page: &str, extensive: bool) {
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let served: Vec<_> = types.collect();
    let expected = METRICS.iter();
    let expected = expected.filter(|metric| extensive || !metric.help.contains("extensive"));
    let expected: Vec<_> = expected
        .map(|metric| format!("{} {}", metric.name, metric.kind))
        .collect();
    assert_eq!(served, expected);
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (sample, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
        let metric = metric_of(name).unwrap_or_else(|| panic!("{line} is in no metric"));
        // (No value of a label has `=` in it.)
        let labels = labels
            .split('=')
            .filter_map(|part| part.rsplit([',', '{']).next());
        let mut labels: Vec<_> = labels.filter(|part| !part.contains(['"', '}'])).collect();
        labels.retain(|label| *label != "le" && !label.is_empty());
        assert_eq!(labels.join(","), metric.labels, "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_served_is_in_the_table() {
    let (server, _dir) = one_with(|config| config.metrics_extensive = true).await;
    server.put("k", "v").await;
    let defragment = DefragmentRequest {};
    let defragmented = server.maintenance().defragment(defragment).await;
    assert!(defragmented.is_ok());
    for path in ["/health", "/livez", "/readyz"] {
        assert_eq!(ask(&server, "GET", path).await.0, 200);
    }
    let (_, page) = ask(&server, "GET", "/metrics").await;
    check(&page, true);
    let lines: BTreeSet<_> = page.lines().collect();
    for line in [
        "etcd_server_health_success 1",
        "etcd_server_healthcheck{name=\"non_learner\",type=\"readyz\"} 1",
        "etcd_server_healthchecks_total{name=\"serializable_read\",status=\"success\",type=\"livez\"} 1",
        "etcd_server_client_requests_total{client_api_version=\"unknown\",type=\"unary\"} 2",
        "etcd_debugging_mvcc_keys_total 1",
        "etcd_server_request_duration_seconds_count{success=\"true\",type=\"Put\"} 1",
        "etcd_disk_backend_defrag_duration_seconds_count 1",
        "pontoon_range_leads{group=\"0\"} 1",
        "pontoon_is_sequencer 0",
    ] {
        assert!(lines.contains(line), "{line} is not in\n{page}");
    }
    let handling = "grpc_server_handling_seconds_bucket{grpc_method=\"Put\",\
                    grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\",le=\"0.005\"}";
    assert!(page.contains(handling), "{page}");
}

/// etcd's buckets, of which dashboards take their quantiles.
#[tokio::test(flavor = "multi_thread")]
async fn buckets_are_those_of_etcd() {
    let (servers, _dir) = three(&[]).await;
    servers[0].put("k", "v").await;
    let (_, page) = ask(&servers[0], "GET", "/metrics").await;
    check(&page, false);
    let bounds = |name: &str| {
        let lines = page
            .lines()
            .filter(|line| line.starts_with(&format!("{name}_bucket")));
        let bounds = lines.filter_map(|line| line.split("le=\"").nth(1)?.split('"').next());
        let mut seen = BTreeSet::new();
        bounds
            .filter(|bound| seen.insert(*bound))
            .collect::<Vec<_>>()
    };
    for (name, first, last, count) in [
        ("etcd_disk_wal_fsync_duration_seconds", "0.001", "8.192", 14),
        ("etcd_server_request_duration_seconds", "0.001", "8.192", 14),
        (
            "etcd_server_range_duration_seconds",
            "0.0001",
            "52.4288",
            20,
        ),
        ("etcd_mvcc_hash_duration_seconds", "0.01", "163.84", 15),
        (
            "etcd_disk_backend_defrag_duration_seconds",
            "0.1",
            "409.6",
            13,
        ),
    ] {
        let bounds = bounds(name);
        assert_eq!(bounds.len(), count + 1, "{name}: {bounds:?}");
        assert_eq!((bounds[0], bounds[count - 1]), (first, last), "{name}");
    }
    // What the members say to each other is counted.
    for name in [
        "etcd_network_peer_sent_bytes_total{",
        "etcd_network_peer_received_bytes_total{",
        "etcd_network_active_peers{",
    ] {
        assert!(
            value(&page, name).is_some_and(|value| value > 0.0),
            "{name}"
        );
    }
}

/// Every metric that the alerts and the dashboard of etcd's mixin use, and the
/// labels that their expressions select or group by.
const MIXIN: [(&str, &[&str]); 25] = [
    ("etcd_server_has_leader", &[]),
    ("etcd_server_leader_changes_seen_total", &[]),
    ("etcd_server_proposals_failed_total", &[]),
    ("etcd_server_proposals_pending", &[]),
    ("etcd_server_proposals_committed_total", &[]),
    ("etcd_server_proposals_applied_total", &[]),
    ("etcd_server_quota_backend_bytes", &[]),
    ("etcd_mvcc_db_total_size_in_bytes", &[]),
    ("etcd_mvcc_db_total_size_in_use_in_bytes", &[]),
    ("etcd_network_peer_sent_failures_total", &["To"]),
    (
        "etcd_network_peer_round_trip_time_seconds_bucket",
        &["To", "le"],
    ),
    ("etcd_network_peer_received_bytes_total", &["From"]),
    ("etcd_network_peer_sent_bytes_total", &["To"]),
    ("etcd_network_client_grpc_received_bytes_total", &[]),
    ("etcd_network_client_grpc_sent_bytes_total", &[]),
    ("etcd_disk_wal_fsync_duration_seconds_bucket", &["le"]),
    ("etcd_disk_backend_commit_duration_seconds_bucket", &["le"]),
    ("grpc_server_started_total", &["grpc_type=\"unary\""]),
    (
        "grpc_server_started_total",
        &[
            "grpc_service=\"etcdserverpb.Watch\"",
            "grpc_type=\"bidi_stream\"",
        ],
    ),
    (
        "grpc_server_started_total",
        &[
            "grpc_service=\"etcdserverpb.Lease\"",
            "grpc_type=\"bidi_stream\"",
        ],
    ),
    (
        "grpc_server_handled_total",
        &[
            "grpc_code=\"DeadlineExceeded\"",
            "grpc_method",
            "grpc_service",
            "grpc_type=\"unary\"",
        ],
    ),
    (
        "grpc_server_handled_total",
        &[
            "grpc_service=\"etcdserverpb.Watch\"",
            "grpc_type=\"bidi_stream\"",
        ],
    ),
    (
        "grpc_server_handled_total",
        &[
            "grpc_service=\"etcdserverpb.Lease\"",
            "grpc_type=\"bidi_stream\"",
        ],
    ),
    (
        "grpc_server_handling_seconds_bucket",
        &["grpc_method", "grpc_service", "grpc_type=\"unary\"", "le"],
    ),
    ("process_resident_memory_bytes", &[]),
];

/// Whether a sample has this name and these labels, some with their values.
fn is_sample(line: &str, name: &str, labels: &[&str]) -> bool {
    let Some(rest) = line.strip_prefix(name) else {
        return false;
    };
    let found = match rest.strip_prefix('{') {
        Some(rest) => rest.split_once('}').map_or("", |(labels, _)| labels),
        None if rest.starts_with(' ') => "",
        None => return false,
    };
    let has = |label: &&str| {
        let mut found = found.split(',');
        found.any(|found| found == *label || found.starts_with(&format!("{label}=")))
    };
    labels.iter().all(has)
}

#[tokio::test(flavor = "multi_thread")]
async fn etcds_own_alerts_and_dashboard_find_what_they_use() {
    let (servers, _dir) = three_with(&[], |config| config.metrics_extensive = true).await;
    let (_, page) = ask(&servers[0], "GET", "/metrics").await;
    for (name, labels) in MIXIN {
        assert!(
            page.lines().any(|line| is_sample(line, name, labels)),
            "{name}{labels:?} is not in\n{page}"
        );
    }
    // They are measured.
    for name in [
        "etcd_network_peer_round_trip_time_seconds_count{",
        "etcd_disk_wal_fsync_duration_seconds_count ",
    ] {
        until(|| async {
            let (_, page) = ask(&servers[0], "GET", "/metrics").await;
            value(&page, name).is_some_and(|value| value > 0.0)
        })
        .await;
    }
    let (_, page) = ask(&servers[0], "GET", "/metrics").await;
    let version = "etcd_cluster_version{cluster_version=\"3.7\"} 1";
    assert!(page.lines().any(|line| line == version), "{page}");
}

/// What is counted where entries are applied is counted on every member.
#[tokio::test(flavor = "multi_thread")]
async fn what_clients_do_is_counted() {
    let (servers, _dir) = three(&[]).await;
    servers[0].put("a", "1").await;
    servers[1].put("b", "23").await;
    let mut delete = DeleteRangeRequest::default();
    (delete.key, delete.range_end) = ("a".into(), "c".into());
    servers[0].kv().delete_range(delete).await.unwrap();
    let grant = LeaseGrantRequest { ttl: 60, id: 7 };
    servers[0].lease().lease_grant(grant).await.unwrap();
    let revoke = LeaseRevokeRequest { id: 7 };
    servers[0].lease().lease_revoke(revoke).await.unwrap();
    let counts = [
        ("etcd_mvcc_put_total", 2.0),
        ("etcd_mvcc_delete_total", 2.0),
        ("etcd_debugging_mvcc_total_put_size_in_bytes", 5.0),
        ("etcd_debugging_lease_granted_total", 1.0),
        ("etcd_debugging_lease_revoked_total", 1.0),
        ("etcd_debugging_lease_ttl_total_bucket{le=\"32\"}", 0.0),
        ("etcd_debugging_lease_ttl_total_bucket{le=\"64\"}", 1.0),
    ];
    for server in &servers {
        // Followers apply a moment later.
        until(|| async {
            let (_, page) = ask(server, "GET", "/metrics").await;
            counts
                .iter()
                .all(|(name, count)| value(&page, &format!("{name} ")) == Some(*count))
        })
        .await;
    }

    let step = |request| RequestOp {
        request: Some(request),
    };
    let txn = TxnRequest {
        success: vec![
            step(request_op::Request::RequestPut(put("c", "1"))),
            step(request_op::Request::RequestRange(get("c"))),
        ],
        ..TxnRequest::default()
    };
    servers[2].kv().txn(txn).await.unwrap();
    servers[2].get("c").await;
    let (_, page) = ask(&servers[2], "GET", "/metrics").await;
    assert_eq!(value(&page, "etcd_mvcc_txn_total "), Some(1.0));
    assert_eq!(value(&page, "etcd_mvcc_range_total "), Some(2.0));
    let call = "{grpc_method=\"Txn\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} ";
    for messages in ["received", "sent"] {
        let name = format!("grpc_server_msg_{messages}_total{call}");
        assert_eq!(value(&page, &name), Some(1.0), "{name}");
    }
}

/// Messages of a stream are counted one by one.
#[tokio::test(flavor = "multi_thread")]
async fn messages_of_streams_are_counted() {
    let (server, _dir) = one().await;
    let create = WatchCreateRequest {
        key: "k".into(),
        ..WatchCreateRequest::default()
    };
    let create = WatchRequest {
        request_union: Some(watch_request::RequestUnion::CreateRequest(create)),
    };
    let requests = tokio_stream::once(create).chain(tokio_stream::pending());
    let mut events = server.watch().watch(requests).await.unwrap().into_inner();
    assert!(events.message().await.unwrap().unwrap().created);
    server.put("k", "v").await;
    assert_eq!(events.message().await.unwrap().unwrap().events.len(), 1);
    let call =
        "{grpc_method=\"Watch\",grpc_service=\"etcdserverpb.Watch\",grpc_type=\"bidi_stream\"} ";
    let (_, page) = ask(&server, "GET", "/metrics").await;
    for (name, count) in [
        (format!("grpc_server_msg_received_total{call}"), 1.0),
        (format!("grpc_server_msg_sent_total{call}"), 2.0),
        ("etcd_debugging_mvcc_events_total ".to_owned(), 1.0),
    ] {
        assert_eq!(value(&page, &name), Some(count), "{name}");
    }
    let loops = "etcd_debugging_server_watch_send_loop";
    for part in ["watch_stream", "control_stream"] {
        let name = format!("{loops}_{part}_duration_seconds_count ");
        assert_eq!(value(&page, &name), Some(1.0), "{name}");
    }
}

/// A watcher that can't be given more, because its client takes nothing, is a
/// slow one.
#[tokio::test(flavor = "multi_thread")]
async fn watchers_that_lag_are_counted() {
    let (server, _dir) = one().await;
    let create = WatchCreateRequest {
        key: "k".into(),
        ..WatchCreateRequest::default()
    };
    let create = WatchRequest {
        request_union: Some(watch_request::RequestUnion::CreateRequest(create)),
    };
    let requests = tokio_stream::once(create).chain(tokio_stream::pending());
    let mut events = server.watch().watch(requests).await.unwrap().into_inner();
    assert!(events.message().await.unwrap().unwrap().created);
    let slow = async || {
        let (_, page) = ask(&server, "GET", "/metrics").await;
        value(&page, "etcd_debugging_mvcc_slow_watcher_total ")
    };
    assert_eq!(slow().await, Some(0.0));
    // More than fits into the windows and queues on the way.
    let value = "x".repeat(1 << 20);
    for _ in 0..32 {
        server.put("k", &value).await;
    }
    until(|| async { slow().await == Some(1.0) }).await;
}

/// A compaction tells when it was, and what it removed.
#[tokio::test(flavor = "multi_thread")]
async fn compactions_are_counted() {
    let (server, _dir) = one().await;
    let name = "etcd_debugging_mvcc_db_compaction";
    let (_, page) = ask(&server, "GET", "/metrics").await;
    assert_eq!(value(&page, &format!("{name}_last ")), Some(0.0));
    let mut last = 0;
    for value in ["1", "2", "3"] {
        last = server.put("k", value).await;
    }
    let request = CompactionRequest {
        revision: last,
        physical: true,
    };
    server.kv().compact(request).await.unwrap();
    until(|| async {
        let (_, page) = ask(&server, "GET", "/metrics").await;
        let took = format!("{name}_total_duration_milliseconds_count ");
        value(&page, &format!("{name}_keys_total ")) == Some(2.0)
            && value(&page, &took) == Some(1.0)
            && value(&page, &format!("{name}_pause_duration_milliseconds_count ")) > Some(2.0)
            && value(&page, &format!("{name}_last ")).is_some_and(|at| at > 1e9)
    })
    .await;
}

/// The first sample that begins so.
fn value(page: &str, start: &str) -> Option<f64> {
    let line = page.lines().find(|line| line.starts_with(start))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sequencer_tells_of_its_ledger() {
    let (servers, _dir) = three(&["g", "n"]).await;
    for at in 0..30 {
        let key = ["a", "h", "z"][at % 3];
        servers[at % 2].put(key, &at.to_string()).await;
        assert!(servers[2].get(key).await.is_some());
    }
    // A report about the last write may still be on its way.
    until(|| async {
        let pages = servers.iter().map(|server| ask(server, "GET", "/metrics"));
        let pages = futures_util::future::join_all(pages).await;
        let sum = |name: &str| {
            let name = format!("pontoon_{name} ");
            let values = pages.iter().filter_map(|(_, page)| value(page, &name));
            values.sum::<f64>()
        };
        sum("is_sequencer") == 1.0
            && sum("ledger_groups_announced") == 3.0
            && sum("ledger_grants_outstanding") == 0.0
            && sum("ledger_revisions_open") == 0.0
            && sum("ledger_revisions_below_ceiling") > 1000.0
            && sum("ledger_grants_total") >= 30.0
            && sum("ledger_revisions_total") >= sum("ledger_grants_total")
            && sum("ledger_read_points_total") >= 1.0
    })
    .await;
}

/// Dashboards and rules name metrics that are there.
#[test]
fn dashboards_and_rules_name_what_is_served() {
    let prefixes = ["etcd_", "grpc_server_", "pontoon_", "process_", "os_fd_"];
    for path in ["monitoring/alerts.yml", "monitoring/dashboard.json"] {
        let text = read(path);
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let mut named = BTreeMap::new();
        for word in words.filter(|word| prefixes.iter().any(|prefix| word.starts_with(prefix))) {
            assert!(metric_of(word).is_some(), "{path} names {word}");
            *named.entry(word).or_insert(0) += 1;
        }
        assert!(named.len() > 10, "{path}: {named:?}");
    }
    serde_json::from_str::<serde_json::Value>(&read("monitoring/dashboard.json")).unwrap();
}
