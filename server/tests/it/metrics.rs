//! What `/metrics` serves is what the documents say.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use pontoon_api::etcdserverpb::DefragmentRequest;
use pontoon_server::{METRICS, Metric};

use crate::docs::{same, table};
use crate::http::ask;
use crate::running::{one_with, three, until};

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
