//! The server: started, served, stopped.
//!
//! Kept true: clients are served once this member has told the others of
//! itself, so it has had a quorum. When it stops, it hands over what it leads.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use pontoon_raftgroup::{GroupId, Node, NodeId};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::calls::Calls;
use crate::card::Card;
use crate::compactor;
use crate::config::{AutoCompaction, Config, ConfigError};
use crate::door::{ConnectionConfig, Door, listen};
use crate::header::Told;
use crate::host::{Host, Limits};
use crate::metrics::Traffic;
use crate::node::{OpenError, Opened, open};
use crate::peers::Reception;
use crate::quota::Quota;
use crate::stop::{self, Stop, Stopper};
use crate::url::Url;

/// Between two looks at sizes, the leader and the members.
const LOOK: Duration = Duration::from_millis(100);
/// Looks between two questions whether this member was removed.
const REMOVED_LOOKS: u64 = 10;
/// Before it is tried again to tell the others.
const PAUSE: Duration = Duration::from_millis(50);
/// The share of the file system that the data may use by default.
const QUOTA_PERCENT: u64 = 80;
/// How long others have to take over what this member leads.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// Why a server doesn't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A port can't be had.
    #[error("can't listen for clients at {0}: {1}; is another server running there?")]
    Listen(String, std::io::Error),
    /// The member can't be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It was told to stop before it served.
    #[error("stopped before it served")]
    Stopped,
}

/// A server that serves.
pub struct Server {
    host: Arc<Host>,
    stopper: Stopper,
    doors: Vec<JoinHandle<()>>,
    tasks: Vec<JoinHandle<()>>,
    clients: Vec<SocketAddr>,
    reception: Reception,
    io: String,
    dir: std::path::PathBuf,
}

impl Server {
    /// Starts one; returns when it serves.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        config.check()?;
        let urls = config.urls()?;
        let listeners = listen_all(&urls.listen_client)?;
        let plain_listeners = listen_all(&urls.listen_metrics)?;
        let Opened {
            node,
            cluster_id,
            io,
            card,
            reception,
        } = open(&config, &urls).await?;
        let (stopper, stop) = stop::channel();
        let host = host(&config, node, cluster_id, stop.clone());
        publish(&host, &card).await;
        let mut tasks = vec![tokio::spawn(look_after(Arc::clone(&host)))];
        let wanted = config.auto_compaction()?;
        if wanted != AutoCompaction::Off {
            tasks.push(tokio::spawn(compactor::run(Arc::clone(&host), wanted)));
        }
        let door = Door::new(&host);
        let connections = ConnectionConfig::of(&config);
        let clients = listeners.iter().map(TcpListener::local_addr);
        let clients = clients.filter_map(Result::ok).collect();
        let mut doors = Vec::new();
        for listener in listeners {
            let serving = door.clone().serve(listener, connections, stop.clone());
            doors.push(tokio::spawn(serving));
        }
        for listener in plain_listeners {
            let serving = door.plain().serve(listener, connections, stop.clone());
            doors.push(tokio::spawn(serving));
        }
        Ok(Self {
            host,
            stopper,
            doors,
            tasks,
            clients,
            reception,
            io,
            dir: config.dir(),
        })
    }

    /// Where clients are served.
    #[must_use]
    pub fn clients(&self) -> &[SocketAddr] {
        &self.clients
    }

    /// Lines for whoever starts it for the first time.
    #[must_use]
    pub fn welcome(&self) -> String {
        let endpoints: Vec<_> = self
            .clients
            .iter()
            .map(|at| format!("http://{at}"))
            .collect();
        let first = endpoints.first().map_or("", String::as_str);
        format!(
            "Pontoon {version} (speaks etcd {api}) is ready\n\
             member    {member:x} of cluster {cluster:x}\n\
             data      {dir}\n\
             clients   {endpoints}\n\
             io        {io}\n\
             try       etcdctl --endpoints {first} put hello world",
            version = env!("CARGO_PKG_VERSION"),
            api = crate::version::API_VERSION,
            member = self.host.member_id.0,
            cluster = self.host.cluster_id,
            dir = self.dir.display(),
            endpoints = endpoints.join(","),
            io = self.io,
        )
    }

    /// Returns when this member was removed from its cluster.
    pub async fn removed(&self) {
        removed(&self.host.node, self.host.member_id).await;
    }

    /// Stops: finishes what is under way, hands over, closes.
    pub async fn stop(self) {
        self.stopper.stop();
        for door in self.doors {
            // It can't fail, only be ended.
            let _ = door.await;
        }
        for task in self.tasks {
            task.abort();
        }
        self.reception.close();
        let node = self.host.node.clone();
        match has_heirs(&self.host) {
            true => node.leave(LEAVE_WITHIN).await,
            false => node.close().await,
        }
    }
}

/// Whether somebody is there who could take over.
fn has_heirs(host: &Host) -> bool {
    let members = host.node.members();
    members
        .into_iter()
        .any(|(id, member)| id != host.member_id && !member.learner && host.node.is_alive(id))
}

fn listen_all(urls: &[Url]) -> Result<Vec<TcpListener>, StartError> {
    let listening = urls.iter().map(|url| {
        let listener = listen(url);
        listener.map_err(|error| StartError::Listen(url.to_string(), error))
    });
    listening.collect()
}

fn host(config: &Config, node: Node, cluster_id: u64, stop: Stop) -> Arc<Host> {
    let quota_bytes = match config.quota_bytes {
        0 => quota_of_file_system(&config.dir()),
        bytes => bytes,
    };
    let limits = Limits {
        request_bytes_max: config.request_bytes_max,
        txn_ops_max: config.txn_ops_max,
        learners_max: config.learners_max,
        strict_reconfig: config.strict_reconfig,
        election: Duration::from_millis(config.election_ms),
        progress_notify: config.progress_notify,
        quota_bytes,
    };
    let member_id = node.id();
    Arc::new(Host {
        node,
        cluster_id,
        member_id,
        limits,
        quota: Quota::new(quota_bytes),
        calls: Arc::new(Calls::default()),
        traffic: Arc::new(Traffic::default()),
        told: Told::default(),
        learner: AtomicBool::new(false),
        stop,
    })
}

fn quota_of_file_system(dir: &std::path::Path) -> i64 {
    let quota = rustix::fs::statvfs(dir).map(|fs| {
        let bytes = fs.f_blocks.saturating_mul(fs.f_frsize);
        i64::try_from(bytes / 100 * QUOTA_PERCENT).unwrap_or(i64::MAX)
    });
    match quota {
        Ok(bytes) => {
            tracing::info!(
                "quota: {} MiB, {QUOTA_PERCENT} % of the file system",
                bytes >> 20
            );
            bytes
        }
        Err(error) => {
            tracing::warn!("no quota: the size of the file system is not known: {error}");
            -1
        }
    }
}

/// Tells the others the name and URLs of this member, as soon as it is one.
async fn publish(host: &Host, card: &Card) {
    let id = host.member_id;
    loop {
        let known = host.node.members().remove(&id);
        let has_leader = host.node.leadership().1.is_some();
        if let Some(known) = known.filter(|_| has_leader) {
            let mut told = Card::read(&known.address);
            // Its peer URLs may have been changed since it was first started.
            told.name.clone_from(&card.name);
            told.client_urls.clone_from(&card.client_urls);
            host.learner.store(known.learner, Relaxed);
            if told.write() == known.address {
                return;
            }
            let update = host
                .node
                .member_update(id, told.write(), host.limits.within());
            match update.await {
                Ok(()) => return,
                Err(failure) => tracing::warn!("the others don't know of this member: {failure}"),
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Keeps up to date what would be dear to look up for every request.
async fn look_after(host: Arc<Host>) {
    let mut leader = None;
    loop {
        let replicas = host.node.status();
        let used = replicas
            .iter()
            .map(|replica| replica.file_bytes.saturating_sub(replica.free_bytes));
        host.quota.measure(used.sum());
        let members = host.node.members();
        let learner = members
            .get(&host.member_id)
            .is_some_and(|member| member.learner);
        host.learner.store(learner, Relaxed);
        let known = host.node.leadership().1;
        if known.is_some() && known != leader {
            leader = known;
            host.traffic.leader_changes.fetch_add(1, Relaxed);
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn removed(node: &Node, me: NodeId) {
    let mut looks = 0_u64;
    loop {
        tokio::time::sleep(LOOK).await;
        looks += 1;
        let doubtful = !node.members().contains_key(&me) || !node.has_leader(GroupId::ROOT);
        if doubtful && looks.is_multiple_of(REMOVED_LOOKS) && node.is_removed().await == Some(true)
        {
            return;
        }
    }
}
