//! Starting, stopping, starting again.

use pontoon_server::{ClusterState, Config, Server};

use futures_util::future::join_all;

use crate::running::{
    Running, alone, channel, free_ports, get, one, start, start_again, together, until,
};

#[tokio::test(flavor = "multi_thread")]
async fn what_was_put_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let first = start(alone(dir.path())).await;
    first.put("k", "v").await;
    let before = first.range(get("k")).await.unwrap().header.unwrap();
    first.server.stop().await;
    // What was said at the first start counts for good.
    let mut config = alone(dir.path());
    config.initial_cluster_token = "another".to_owned();
    let second = start_again(config).await;
    let after = second.range(get("k")).await.unwrap();
    assert_eq!(after.kvs[0].value, "v");
    let after = after.header.unwrap();
    assert_eq!(
        (after.cluster_id, after.member_id, after.revision),
        (before.cluster_id, before.member_id, before.revision)
    );
    assert!(after.raft_term > before.raft_term);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_can_be_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = alone(dir.path());
    config.wal_dir = Some(dir.path().join("log"));
    let first = start(config.clone()).await;
    first.put("k", "v").await;
    first.server.stop().await;
    assert!(dir.path().join("log").read_dir().unwrap().next().is_some());
    assert!(!dir.path().join("data/wal").exists());
    let second = start_again(config).await;
    assert_eq!(second.get("k").await.unwrap(), "v");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_taken_is_said() {
    let (running, _dir) = one().await;
    let dir = tempfile::tempdir().unwrap();
    let mut config = alone(dir.path());
    config.listen_client_urls = format!("http://{}", running.server.clients()[0]);
    let refused = refused(config).await;
    assert!(
        refused.contains("is another server running there?"),
        "{refused}"
    );
    assert!(!dir.path().join("data").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_another_kind_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    // As an etcd leaves it.
    let files = [
        "data/member/snap/db",
        "data/member/snap/0000000000000002-0000000000000007.snap",
        "data/member/wal/0000000000000000-0000000000000000.wal",
        "data/member/wal/0.tmp",
    ];
    for file in files {
        let file = dir.path().join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "an etcd's").unwrap();
    }
    let refused = refused(alone(dir.path())).await;
    assert!(refused.contains("holds the data of an etcd"), "{refused}");
    assert!(refused.contains("etcdctl --endpoints"), "{refused}");
    let left: Vec<_> = dir.path().join("data").read_dir().unwrap().collect();
    assert_eq!(left.len(), 1);
    for file in files {
        assert_eq!(std::fs::read(dir.path().join(file)).unwrap(), b"an etcd's");
    }
}

async fn refused(config: Config) -> String {
    Server::start(config).await.err().unwrap().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_for_the_log_must_be_empty_at_first() {
    let dir = tempfile::tempdir().unwrap();
    let wal = dir.path().join("wal");
    std::fs::create_dir(&wal).unwrap();
    std::fs::write(
        wal.join("0000000000000000-0000000000000000.wal"),
        "an etcd's",
    )
    .unwrap();
    let mut config = alone(dir.path());
    config.wal_dir = Some(wal);
    let refused = refused(config).await;
    assert!(refused.contains("is not Pontoon's"), "{refused}");
    assert!(!dir.path().join("data").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_has_one_user() {
    let (_running, dir) = one().await;
    let refused = refused(alone(dir.path())).await;
    assert!(
        refused.contains("is in use by another process"),
        "{refused}"
    );
}

/// Nothing is founded beside a cluster that is there.
#[tokio::test(flavor = "multi_thread")]
async fn another_cluster_is_not_founded_anew() {
    let (first, dir) = one_at_a_port().await;
    let mut config = alone(dir.path());
    config.name = "m2".to_owned();
    config.data_dir = Some(dir.path().join("m2"));
    let (own, other) = ("http://127.0.0.1:1", first.1);
    config.initial_advertise_peer_urls = own.to_owned();
    config.initial_cluster = Some(format!("m2={own},default={other}"));
    let refused = refused(config).await;
    assert!(
        refused.contains("--initial-cluster-token must be the same"),
        "{refused}"
    );
    assert!(refused.contains(&other), "{refused}");
    assert!(!dir.path().join("m2").exists());
}

/// A cluster is created anew where one is, with another token: members of both
/// have the same URLs until all are replaced.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_can_be_created_anew_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let old = together(&dir.path().join("old"), &[]);
    let first = join_all(old.clone().into_iter().map(start)).await;
    first[0].put("k", "v").await;
    let mut starting = Vec::new();
    for (at, running) in first.into_iter().enumerate() {
        running.server.stop().await;
        let mut config = old[at].clone();
        config.initial_cluster_token = "anew".to_owned();
        config.data_dir = Some(dir.path().join(format!("new{at}")));
        starting.push(tokio::spawn(start_again(config)));
        // It has met those of the old cluster that are still there.
        let identity = dir.path().join(format!("new{at}"));
        until(|| async { identity.exists() }).await;
    }
    for started in starting {
        let started = started.await.unwrap();
        assert_eq!(started.get("k").await, None);
    }
}

async fn one_at_a_port() -> ((Running, String), tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = alone(dir.path());
    let url = format!("http://127.0.0.1:{}", free_ports(1)[0]);
    config.listen_peer_urls.clone_from(&url);
    config.initial_advertise_peer_urls.clone_from(&url);
    ((start(config).await, url), dir)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_joins_must_know_whom() {
    let (first, dir) = one_at_a_port().await;
    let mut config = alone(dir.path());
    config.name = "m2".to_owned();
    config.data_dir = Some(dir.path().join("m2"));
    config.initial_cluster_state = ClusterState::Existing;
    let own = "http://127.0.0.1:1";
    config.initial_advertise_peer_urls = own.to_owned();
    config.initial_cluster = Some(format!("m2={own},default={}", first.1));
    let unknown = refused(config.clone()).await;
    assert!(unknown.contains("etcdctl member add"), "{unknown}");
    config.initial_cluster = Some(format!("m2={own}"));
    let alone = refused(config.clone()).await;
    assert!(alone.contains("names no other member"), "{alone}");
    config.initial_cluster = Some(format!("default={}", first.1));
    let nameless = refused(config).await;
    assert!(
        nameless.contains("has no member with this one's --name"),
        "{nameless}"
    );
    assert!(!dir.path().join("m2").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn other_members_are_heard_at_every_url() {
    let dir = tempfile::tempdir().unwrap();
    let urls = free_ports(2).into_iter();
    let urls: Vec<_> = urls
        .map(|port| format!("http://127.0.0.1:{port}"))
        .collect();
    let mut config = alone(&dir.path().join("m1"));
    config.listen_peer_urls = urls.join(",");
    config.initial_advertise_peer_urls.clone_from(&urls[0]);
    let _first = start(config).await;
    for url in urls {
        let mut config = alone(&dir.path().join("m2"));
        config.name = "m2".to_owned();
        config.initial_cluster_state = ClusterState::Existing;
        let own = "http://127.0.0.1:1";
        config.initial_advertise_peer_urls = own.to_owned();
        config.initial_cluster = Some(format!("m2={own},default={url}"));
        // Only who was heard is told that it is no member.
        let refused = refused(config).await;
        assert!(refused.contains("etcdctl member add"), "{url}: {refused}");
    }
}

/// What counts at the first start only need not be right later.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_members_count_only_once() {
    let dir = tempfile::tempdir().unwrap();
    let first = start(alone(dir.path())).await;
    first.server.stop().await;
    let mut config = alone(dir.path());
    config.initial_cluster = Some("other=http://127.0.0.1:1".to_owned());
    let second = start_again(config).await;
    second.put("k", "v").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_words_say_what_is_needed() {
    let (running, dir) = one().await;
    let welcome = running.server.welcome();
    let at = running.server.clients()[0].to_string();
    let data = dir.path().join("data");
    for part in [at.as_str(), data.to_str().unwrap(), "pontoonctl", "io "] {
        assert!(welcome.contains(part), "{part:?} is not in {welcome}");
    }
    // A connection that is open when the server stops doesn't keep it.
    let _idle = channel(&running.server);
    let stopping = tokio::time::timeout(crate::running::SOON, running.server.stop());
    stopping.await.unwrap();
}
