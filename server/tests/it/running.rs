//! Servers to test, and clients of them.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use pontoon_api::etcdserverpb::cluster_client::ClusterClient;
use pontoon_api::etcdserverpb::kv_client::KvClient;
use pontoon_api::etcdserverpb::lease_client::LeaseClient;
use pontoon_api::etcdserverpb::maintenance_client::MaintenanceClient;
use pontoon_api::etcdserverpb::watch_client::WatchClient;
use pontoon_api::etcdserverpb::{PutRequest, RangeRequest, RangeResponse};
use pontoon_api::pontoonpb::ranges_client::RangesClient;
use pontoon_api::v3electionpb::election_client::ElectionClient;
use pontoon_api::v3lockpb::lock_client::LockClient;
use pontoon_server::{Config, Server};
use tempfile::TempDir;
use tokio::net::TcpSocket;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// How long something may take that takes no time.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// A server and a connection to it.
pub(crate) struct Running {
    pub(crate) server: Server,
    pub(crate) channel: Channel,
}

impl Running {
    pub(crate) fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone())
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX)
    }

    pub(crate) fn watch(&self) -> WatchClient<Channel> {
        WatchClient::new(self.channel.clone())
    }

    pub(crate) fn lease(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel.clone())
    }

    pub(crate) fn cluster(&self) -> ClusterClient<Channel> {
        ClusterClient::new(self.channel.clone())
    }

    pub(crate) fn maintenance(&self) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(self.channel.clone())
    }

    pub(crate) fn ranges(&self) -> RangesClient<Channel> {
        RangesClient::new(self.channel.clone())
    }

    pub(crate) fn lock(&self) -> LockClient<Channel> {
        LockClient::new(self.channel.clone())
    }

    pub(crate) fn election(&self) -> ElectionClient<Channel> {
        ElectionClient::new(self.channel.clone())
    }

    /// Puts, and returns the revision.
    pub(crate) async fn put(&self, key: &str, value: &str) -> i64 {
        let put = self.kv().put(put(key, value)).await.unwrap();
        put.into_inner().header.unwrap().revision
    }

    pub(crate) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        Ok(self.kv().range(request).await?.into_inner())
    }

    pub(crate) async fn get(&self, key: &str) -> Option<Bytes> {
        let found = self.range(get(key)).await.unwrap();
        found.kvs.into_iter().next().map(|kv| kv.value)
    }
}

/// One server with a directory of its own.
pub(crate) async fn one() -> (Running, TempDir) {
    one_with(|_| {}).await
}

/// The same, set up in another way.
pub(crate) async fn one_with(set_up: impl FnOnce(&mut Config)) -> (Running, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = alone(dir.path());
    set_up(&mut config);
    (start(config).await, dir)
}

/// How a server that is alone is run.
pub(crate) fn alone(dir: &Path) -> Config {
    Config {
        data_dir: Some(dir.join("data")),
        listen_client_urls: "http://127.0.0.1:0".to_owned(),
        advertise_client_urls: Some("http://127.0.0.1:1".to_owned()),
        listen_peer_urls: "http://127.0.0.1:0".to_owned(),
        ..Config::default()
    }
}

pub(crate) async fn start(config: Config) -> Running {
    let server = Server::start(config).await.unwrap();
    let channel = channel(&server);
    Running { server, channel }
}

/// Starts on the data of one that was stopped, as soon as that has let it go.
pub(crate) async fn start_again(config: Config) -> Running {
    let server = soon(async {
        loop {
            match Server::start(config.clone()).await {
                Ok(server) => return server,
                Err(error) => assert!(error.to_string().contains("is in use"), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let channel = channel(&server);
    Running { server, channel }
}

/// A new connection.
pub(crate) fn channel(server: &Server) -> Channel {
    let at = format!("http://{}", server.clients()[0]);
    Endpoint::from_shared(at).unwrap().connect_lazy()
}

/// Three servers that are a cluster.
pub(crate) async fn three(splits: &[&str]) -> (Vec<Running>, TempDir) {
    three_with(splits, |_| {}).await
}

/// The same, set up in another way.
pub(crate) async fn three_with(
    splits: &[&str],
    set_up: impl Fn(&mut Config),
) -> (Vec<Running>, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut configs = together(dir.path(), splits);
    configs.iter_mut().for_each(set_up);
    let starting = configs.into_iter().map(start);
    (futures_util::future::join_all(starting).await, dir)
}

pub(crate) fn together(dir: &Path, splits: &[&str]) -> Vec<Config> {
    let ports = free_ports(3);
    let member = |at: usize| format!("m{at}=http://127.0.0.1:{}", ports[at]);
    let cluster: Vec<_> = (0..3).map(member).collect();
    let config = |at: usize| Config {
        name: format!("m{at}"),
        data_dir: Some(dir.join(at.to_string())),
        listen_client_urls: "http://127.0.0.1:0".to_owned(),
        advertise_client_urls: Some("http://127.0.0.1:1".to_owned()),
        listen_peer_urls: format!("http://127.0.0.1:{}", ports[at]),
        initial_advertise_peer_urls: format!("http://127.0.0.1:{}", ports[at]),
        initial_cluster: Some(cluster.join(",")),
        initial_splits: splits
            .iter()
            .map(|key| Bytes::from((*key).to_owned()))
            .collect(),
        ..Config::default()
    };
    (0..3).map(config).collect()
}

/// Whether nobody listens there. It doesn't listen itself: a process that is
/// being started beside this would inherit the listener until it runs its
/// program, and the port would be taken meanwhile.
fn is_free(port: &u16) -> bool {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(([127, 0, 0, 1], *port).into()).is_ok()
}

/// Ports in a row that nobody has now, and that no other call returns. They are
/// below those that the system assigns, so no connection takes them meanwhile.
pub(crate) fn free_ports(count: u16) -> Vec<u16> {
    const FIRST: u16 = 10_000;
    const SPAN: u16 = 20_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Test binaries that run side by side begin at different places.
    let start = std::process::id().wrapping_mul(97);
    loop {
        let number = start.wrapping_add(NEXT.fetch_add(count.into(), Relaxed));
        let first = FIRST + (number % u32::from(SPAN)) as u16;
        let ports: Vec<_> = (first..first + count).collect();
        if ports.iter().all(is_free) {
            return ports;
        }
    }
}

pub(crate) fn put(key: &str, value: &str) -> PutRequest {
    PutRequest {
        key: key.to_owned().into(),
        value: value.to_owned().into(),
        ..PutRequest::default()
    }
}

pub(crate) fn get(key: &str) -> RangeRequest {
    RangeRequest {
        key: key.to_owned().into(),
        ..RangeRequest::default()
    }
}

/// All keys that begin with a letter.
pub(crate) fn prefix(key: &str) -> RangeRequest {
    let mut end = key.as_bytes().to_vec();
    *end.last_mut().unwrap() += 1;
    RangeRequest {
        key: key.to_owned().into(),
        range_end: end.into(),
        ..RangeRequest::default()
    }
}

/// Waits for what must come soon.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future)
        .await
        .expect("it takes too long")
}

/// Waits until something holds.
pub(crate) async fn until<F: Future<Output = bool>>(mut holds: impl FnMut() -> F) {
    soon(async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}
