//! What is served without gRPC.

use pontoon_api::etcdserverpb::alarm_request::AlarmAction;
use pontoon_api::etcdserverpb::{AlarmRequest, AlarmType, StatusRequest};
use pontoon_api::health::HealthCheckRequest;
use pontoon_api::health::health_check_response::ServingStatus;
use pontoon_api::health::health_client::HealthClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::running::{Running, one};

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
        (200, "[+]serializable_read ok\nok\n".to_owned())
    );
    assert_eq!(get("/readyz").await, (200, "ok\n".to_owned()));
    assert_eq!(
        get("/readyz/linearizable_read").await,
        (200, "ok\n".to_owned())
    );
    assert_eq!(get("/readyz/nothing").await.0, 404);
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
