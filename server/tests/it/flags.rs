//! What flags change, seen from outside.

use std::time::Duration;

use pontoon_api::Error;
use pontoon_api::etcdserverpb::{LeaseGrantRequest, MemberAddRequest, MemberListRequest};
use pontoon_server::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::running::{Running, alone, free_ports, get, one, one_with, start, until};

/// Asks over HTTP: the status, the headers and the text.
async fn ask(at: &str, request: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(at).await.unwrap();
    let request = format!("{request}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), body.to_owned())
}

async fn page(at: &str, path: &str) -> u16 {
    ask(at, &format!("GET {path} HTTP/1.1\r\nHost: x")).await.0
}

fn clients_at(server: &Running) -> String {
    server.server.clients()[0].to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn members_are_told_their_name_and_urls() {
    let (server, _dir) = one_with(|config| {
        config.name = "m1".to_owned();
        config.advertise_client_urls = Some("http://10.1.2.3:2379".to_owned());
        config.initial_advertise_peer_urls = "http://10.1.2.3:2380".to_owned();
        config.initial_cluster = Some("m1=http://10.1.2.3:2380".to_owned());
    })
    .await;
    let mut cluster = server.cluster();
    let listed = cluster.member_list(MemberListRequest::default()).await;
    let member = &listed.unwrap().into_inner().members[0];
    assert_eq!(member.name, "m1");
    assert_eq!(member.client_urls, ["http://10.1.2.3:2379"]);
    assert_eq!(member.peer_urls, ["http://10.1.2.3:2380"]);
}

/// A member that never starts.
fn absent(port: u16, is_learner: bool) -> MemberAddRequest {
    MemberAddRequest {
        peer_urls: vec![format!("http://127.0.0.1:{port}")],
        is_learner,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_have_not_started_hold_others_up_unless_told_otherwise() {
    for strict in [true, false] {
        let (server, _dir) = one_with(|config| config.strict_reconfig = strict).await;
        let mut cluster = server.cluster();
        // From one to two members there is no other way.
        cluster.member_add(absent(1, false)).await.unwrap();
        let added = cluster.member_add(absent(2, false)).await;
        match strict {
            true => {
                let refused = added.unwrap_err();
                assert_eq!(refused.message(), Error::NotEnoughStartedMembers.text());
            }
            false => assert_eq!(added.unwrap().into_inner().members.len(), 3),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn there_are_as_many_learners_as_allowed() {
    for learners_max in [1, 2] {
        let (server, _dir) = one_with(|config| config.learners_max = learners_max).await;
        let mut cluster = server.cluster();
        for port in 0..learners_max {
            let learner = absent(1 + port as u16, true);
            cluster.member_add(learner).await.unwrap();
        }
        let refused = cluster.member_add(absent(9, true)).await.unwrap_err();
        assert_eq!(refused.message(), Error::TooManyLearners.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_lease_is_shorter_than_an_election_may_take() {
    for (election_ms, shortest) in [(1000, 2), (3000, 5)] {
        let (server, _dir) = one_with(|config| config.election_ms = election_ms).await;
        let request = LeaseGrantRequest { ttl: 1, id: 0 };
        let granted = server.lease().lease_grant(request).await;
        assert_eq!(granted.unwrap().into_inner().ttl, shortest);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_tells_clusters_apart() {
    let (one, _dir) = one().await;
    let (other, _dir) = one_with(|config| config.initial_cluster_token = "x".to_owned()).await;
    let cluster = async |server: &Running| {
        let found = server.range(get("k")).await.unwrap();
        found.header.unwrap().cluster_id
    };
    assert_ne!(cluster(&one).await, cluster(&other).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_served_at_every_url() {
    let (server, _dir) = one_with(|config| {
        config.listen_client_urls = "http://127.0.0.1:0,http://localhost:0".to_owned();
    })
    .await;
    assert_eq!(server.server.clients().len(), 2);
    for at in server.server.clients() {
        assert_eq!(page(&at.to_string(), "/health").await, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_are_heard_at_every_peer_url() {
    let ports = free_ports(2);
    let at = |port: &u16| format!("127.0.0.1:{port}");
    let urls: Vec<_> = ports
        .iter()
        .map(|port| format!("http://{}", at(port)))
        .collect();
    let (_server, _dir) = one_with(|config| config.listen_peer_urls = urls.join(",")).await;
    for port in &ports {
        assert_eq!(page(&at(port), "/members").await, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_have_a_port_of_their_own() {
    let port = free_ports(1)[0];
    let at = format!("127.0.0.1:{port}");
    let urls = format!("http://{at}");
    let (_server, _dir) = one_with(|config| config.listen_metrics_urls = Some(urls)).await;
    for path in ["/metrics", "/health", "/livez", "/readyz"] {
        assert_eq!(page(&at, path).await, 200, "{path}");
    }
    assert_eq!(page(&at, "/version").await, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn http_can_be_served_elsewhere() {
    let port = free_ports(1)[0];
    let at = format!("127.0.0.1:{port}");
    let urls = format!("http://{at}");
    let (server, _dir) = one_with(|config| config.listen_client_http_urls = Some(urls)).await;
    assert_eq!(page(&at, "/version").await, 200);
    assert_eq!(page(&clients_at(&server), "/version").await, 404);
    server.put("k", "v").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_and_origins_are_checked_over_http() {
    let (server, _dir) = one_with(|config| {
        config.host_whitelist = "localhost,db.example".to_owned();
        config.cors = "http://ui.example".to_owned();
    })
    .await;
    let at = clients_at(&server);
    assert_eq!(page(&at, "/version").await, 421);
    let (status, head, _) = ask(&at, "GET /version HTTP/1.1\r\nHost: db.example:2379").await;
    assert_eq!(status, 200);
    assert!(!head.contains("access-control"), "{head}");
    let known = "OPTIONS /version HTTP/1.1\r\nHost: localhost\r\nOrigin: http://ui.example";
    let (status, head, body) = ask(&at, known).await;
    assert_eq!((status, body.as_str()), (200, ""));
    assert!(
        head.contains("access-control-allow-origin: http://ui.example"),
        "{head}"
    );
    let unknown = "GET /version HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example";
    let (_, head, _) = ask(&at, unknown).await;
    assert!(!head.contains("access-control"), "{head}");
    // gRPC names no host that could be forged by a page.
    server.put("k", "v").await;

    let (open, _dir) = one().await;
    let (_, head, _) = ask(&clients_at(&open), unknown).await;
    assert!(head.contains("access-control-allow-origin: *"), "{head}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_can_be_shared() {
    let port = free_ports(1)[0];
    let (dirs, mut servers) = ([(); 2].map(|()| tempfile::tempdir().unwrap()), Vec::new());
    for dir in &dirs {
        let mut config = alone(dir.path());
        config.listen_client_urls = format!("http://127.0.0.1:{port}");
        config.reuse_port = true;
        servers.push(start(config).await);
    }
    let mut config = alone(dirs[0].path());
    config.data_dir = Some(dirs[0].path().join("third"));
    config.listen_client_urls = format!("http://127.0.0.1:{port}");
    assert!(Server::start(config).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn history_is_forgotten_by_itself() {
    let (server, _dir) = one_with(|config| {
        config.auto_compaction_retention = "100ms".to_owned();
    })
    .await;
    let first = server.put("k", "1").await;
    server.put("k", "2").await;
    let mut old = get("k");
    old.revision = first;
    until(|| async { server.range(old.clone()).await.is_err() }).await;
    let refused = server.range(old).await.unwrap_err();
    assert!(refused.message().contains("compacted"), "{refused}");
    assert_eq!(server.get("k").await.unwrap(), "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_written_as_asked() {
    let (server, _dir) = one_with(|config| {
        config.io_backend = pontoon_wal::disk::Backend::Syscalls;
    })
    .await;
    server.put("k", "v").await;
    let welcome = server.server.welcome();
    assert!(welcome.contains("system calls (chosen)"), "{welcome}");
}

fn disk_profile(dir: &std::path::Path) -> std::path::PathBuf {
    let path = dir.join("profile.json");
    let profile = pontoon_wal::Profile {
        directory: "/data".to_owned(),
        device: "nvme0n1".to_owned(),
        made_at_secs: 1,
        commit_bytes_max: 64 << 10,
        in_flight_max: 1,
        commit_p50_ns: 100_000,
        commit_p99_ns: 900_000,
        writes_per_s: 1000,
    };
    profile.write(&path).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_set_by_the_profile_of_its_disk() {
    let elsewhere = tempfile::tempdir().unwrap();
    let path = disk_profile(elsewhere.path());
    let (server, _dir) = one_with(|config| config.disk_profile = Some(path)).await;
    server.put("k", "v").await;
    assert_eq!(server.get("k").await.unwrap(), "v");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_profile_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = disk_profile(dir.path());
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("nvme0n1", "nvme0n2")).unwrap();
    let mut config = alone(dir.path());
    config.disk_profile = Some(path);
    let refused = Server::start(config).await.err().unwrap();
    let words = refused.to_string();
    assert!(
        words.contains("--disk-profile") && words.contains("checksum"),
        "{words}"
    );
    assert!(!dir.path().join("data").exists(), "nothing is made before");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_that_grows_is_split() {
    let (server, _dir) = one_with(|config| {
        config.range_bytes_max = Some(256 << 10);
        config.ranges_max = Some(2);
    })
    .await;
    let value = "v".repeat(8 << 10);
    for at in 0..100 {
        server.put(&format!("k{at:03}"), &value).await;
    }
    let at = clients_at(&server);
    let ranges = async || {
        let (_, _, page) = ask(&at, "GET /metrics HTTP/1.1\r\nHost: x").await;
        page.contains("\npontoon_groups 2\n")
    };
    tokio::time::timeout(Duration::from_secs(60), async {
        while !ranges().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .unwrap();
}
