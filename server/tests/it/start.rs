//! Starting, stopping, starting again.

use pontoon_server::Server;

use crate::running::{alone, channel, get, one, start, start_again};

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
    let refused = Server::start(config).await.err().unwrap().to_string();
    assert!(
        refused.contains("is another server running there?"),
        "{refused}"
    );
    assert!(!dir.path().join("data").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_another_kind_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let snap = dir.path().join("data/member/snap");
    std::fs::create_dir_all(&snap).unwrap();
    std::fs::write(snap.join("db"), "an etcd's").unwrap();
    let refused = Server::start(alone(dir.path()))
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(refused.contains("holds the data of an etcd"), "{refused}");
    let left: Vec<_> = dir.path().join("data").read_dir().unwrap().collect();
    assert_eq!(left.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_words_say_what_is_needed() {
    let (running, dir) = one().await;
    let welcome = running.server.welcome();
    let at = running.server.clients()[0].to_string();
    let data = dir.path().join("data");
    for part in [at.as_str(), data.to_str().unwrap(), "etcdctl", "io "] {
        assert!(welcome.contains(part), "{part:?} is not in {welcome}");
    }
    // A connection that is open when the server stops doesn't keep it.
    let _idle = channel(&running.server);
    let stopping = tokio::time::timeout(crate::running::SOON, running.server.stop());
    stopping.await.unwrap();
}
