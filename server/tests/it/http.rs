//! What is served without gRPC.

use pontoon_api::etcdserverpb::alarm_request::AlarmAction;
use pontoon_api::etcdserverpb::{AlarmRequest, AlarmType, StatusRequest};
use pontoon_api::health::HealthCheckRequest;
use pontoon_api::health::health_check_response::ServingStatus;
use pontoon_api::health::health_client::HealthClient;
use pontoon_api::pontoonpb::ListRequest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::running::{Running, one, soon, three, until};

pub(crate) async fn ask(server: &Running, method: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(server.server.clients()[0])
        .await
        .unwrap();
    let request = format!("{method} {path} HTTP/1.0\r\nHost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_version() {
    let (server, _dir) = one().await;
    let get = |path: &'static str| ask(&server, "GET", path);
    let (status, version) = get("/version").await;
    assert_eq!(status, 200);
    assert!(version.starts_with("{\"etcdserver\":\"3."), "{version}");
    assert_eq!(ask(&server, "POST", "/version").await.0, 405);
    let healthy = (200, "{\"health\":\"true\",\"reason\":\"\"}".to_owned());
    assert_eq!(get("/health").await, healthy);
    assert_eq!(get("/health?serializable=true").await, healthy);
    assert_eq!(get("/livez").await, (200, "ok\n".to_owned()));
    assert_eq!(
        get("/livez?verbose").await,
        (200, "[+]serializable_read ok\n[+]disk ok\nok\n".to_owned())
    );
    assert_eq!(get("/readyz").await, (200, "ok\n".to_owned()));
    assert_eq!(
        get("/readyz/linearizable_read").await,
        (200, "ok\n".to_owned())
    );
    assert_eq!(get("/readyz/nothing").await.0, 404);
    let (status, checks) = get("/readyz?verbose").await;
    let checks: Vec<_> = checks.lines().collect();
    let expected = [
        "[+]data_corruption ok",
        "[+]serializable_read ok",
        "[+]linearizable_read ok",
        "[+]non_learner ok",
        "[+]disk ok",
        "[+]ranges ok",
        "ok",
    ];
    assert_eq!((status, &checks[..]), (200, &expected[..]));
    let (_, checks) = get("/readyz?verbose&exclude=ranges").await;
    assert!(!checks.contains("ranges"), "{checks}");
    assert_eq!(get("/readyz/ranges").await.0, 200);
    // It waits for a quorum, for which nobody is restarted.
    assert_eq!(get("/livez/ranges").await.0, 404);
    assert_eq!(get("/elsewhere").await.0, 404);

    let mut maintenance = server.maintenance();
    let id = maintenance
        .status(StatusRequest {})
        .await
        .unwrap()
        .into_inner();
    for alarm in [AlarmType::Nospace, AlarmType::Corrupt] {
        let request = AlarmRequest {
            action: AlarmAction::Activate.into(),
            member_id: id.header.unwrap().member_id,
            alarm: alarm.into(),
        };
        maintenance.alarm(request).await.unwrap();
    }
    let (status, reason) = get("/health").await;
    assert_eq!(status, 503);
    assert_eq!(
        reason,
        "{\"health\":\"false\",\"reason\":\"ALARM NOSPACE\"}\n"
    );
    assert_eq!(get("/health?exclude=NOSPACE").await.0, 503);
    assert_eq!(
        get("/health?exclude=NOSPACE&exclude=CORRUPT").await,
        healthy
    );
    let (status, reason) = get("/readyz").await;
    assert_eq!(status, 503);
    assert!(reason.contains("[-]data_corruption failed"), "{reason}");
    assert_eq!(get("/readyz?exclude=data_corruption").await.0, 200);
    assert_eq!(get("/livez").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_have_what_dashboards_look_for() {
    let (server, _dir) = one().await;
    server.put("k", "v").await;
    let (status, page) = ask(&server, "GET", "/metrics").await;
    assert_eq!(status, 200);
    let value = |name: &str| {
        let line = page
            .lines()
            .find(|line| line.starts_with(&format!("{name} ")));
        let line = line.unwrap_or_else(|| panic!("{name} is missing"));
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    for name in [
        "etcd_server_has_leader",
        "etcd_server_is_leader",
        "etcd_server_leader_changes_seen_total",
        "etcd_server_proposals_committed_total",
        "etcd_server_proposals_applied_total",
        "etcd_server_quota_backend_bytes",
        "etcd_mvcc_db_total_size_in_bytes",
        "etcd_mvcc_db_total_size_in_use_in_bytes",
        "etcd_network_client_grpc_received_bytes_total",
        "etcd_network_client_grpc_sent_bytes_total",
        "etcd_disk_wal_fsync_duration_seconds_count",
        "process_resident_memory_bytes",
    ] {
        assert!(value(name) > 0.0, "{name}");
    }
    assert_eq!(value("etcd_server_proposals_failed_total"), 0.0);
    let put = "grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"";
    assert_eq!(value(&format!("grpc_server_started_total{{{put}}}")), 1.0);
    let handled = format!("grpc_server_handled_total{{grpc_code=\"OK\",{put}}}");
    assert_eq!(value(&handled), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_health_is_served() {
    let (server, _dir) = one().await;
    let mut health = HealthClient::new(server.channel.clone());
    let check = |service: &str| HealthCheckRequest {
        service: service.to_owned(),
    };
    let answer = health.check(check("")).await.unwrap().into_inner();
    assert_eq!(answer.status(), ServingStatus::Serving);
    let unknown = health.check(check("x")).await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_health_watchers_are_told_of_a_stop() {
    let (server, _dir) = one().await;
    let mut health = HealthClient::new(server.channel.clone());
    let check = |service: &str| HealthCheckRequest {
        service: service.to_owned(),
    };
    let mut unknown = health.watch(check("x")).await.unwrap().into_inner();
    let first = soon(unknown.message()).await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::ServiceUnknown);
    let mut watch = health.watch(check("")).await.unwrap().into_inner();
    let first = soon(watch.message()).await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::Serving);
    let (second, ()) = soon(async { tokio::join!(watch.message(), server.server.stop()) }).await;
    assert_eq!(second.unwrap().unwrap().status(), ServingStatus::NotServing);
}

/// Without a quorum a member isn't ready, but nobody should restart it.
#[tokio::test(flavor = "multi_thread")]
async fn ranges_without_a_leader_end_readiness_and_not_liveness() {
    let (mut servers, _dir) = three(&["g", "n"]).await;
    for server in &servers {
        until(|| async { ask(server, "GET", "/readyz").await.0 == 200 }).await;
    }
    for server in servers.drain(1..) {
        server.server.stop().await;
    }
    let last = &servers[0];
    let get = |path: &'static str| ask(last, "GET", path);
    // Only when its leader is suspected.
    until(|| async { get("/readyz/ranges").await.0 == 503 }).await;
    let (_, reason) = get("/readyz/ranges").await;
    assert!(reason.starts_with("[-]ranges failed: range "), "{reason}");
    let (status, reason) = get("/health").await;
    assert_eq!(status, 503, "{reason}");
    for path in ["/livez", "/health?serializable=true"] {
        let (status, reason) = get(path).await;
        assert_eq!(status, 200, "{path}: {reason}");
    }
    let (_, page) = get("/metrics").await;
    let unserved = page
        .lines()
        .find_map(|line| line.strip_prefix("pontoon_ranges_unserved "));
    let unserved: u64 = unserved.unwrap().parse().unwrap();
    assert!((1..=3).contains(&unserved), "{unserved}");
    let mut status = last.maintenance().status(StatusRequest {}).await.unwrap();
    let errors = std::mem::take(&mut status.get_mut().errors);
    // The root group's missing leader has etcd's own line.
    let told = errors
        .iter()
        .any(|error| error == "etcdserver: no leader" || error.starts_with("ranges not served: "));
    assert!(told, "{errors:?}");
    let list = last.ranges().list(ListRequest {}).await.unwrap();
    let condition = list.into_inner().condition.unwrap();
    assert!(!condition.disk_stalled && condition.fault.is_empty());
    assert!(!condition.unserved.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn debug_vars_tell_of_the_process_and_the_root_group() {
    let (servers, _dir) = three(&[]).await;
    servers[0].put("k", "v").await;
    assert_eq!(ask(&servers[0], "POST", "/debug/vars").await.0, 405);
    for path in ["/debug", "/debug/", "/debug/vars/x", "/debug/pprof"] {
        assert_eq!(ask(&servers[0], "GET", path).await.0, 404, "{path}");
    }
    let mut leaders = 0;
    for server in &servers {
        let (status, vars) = ask(server, "GET", "/debug/vars").await;
        assert_eq!(status, 200);
        let vars: serde_json::Value = serde_json::from_str(&vars).unwrap();
        let program = vars["cmdline"][0].as_str().unwrap();
        assert!(program.contains("it-"), "{program}");
        assert!(vars["file_descriptor_limit"].as_u64().unwrap() > 0);
        let raft = &vars["raft.status"];
        assert!(raft["commit"].as_u64() >= raft["applied"].as_u64());
        assert!(raft["term"].as_u64().unwrap() > 0, "{raft}");
        let leads = raft["lead"] == raft["id"];
        assert_eq!(raft["raftState"] == "StateLeader", leads, "{raft}");
        leaders += usize::from(leads);
    }
    assert_eq!(leaders, 1);
}
