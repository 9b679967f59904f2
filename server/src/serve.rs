//! The server: started, served, stopped.
//!
//! Kept true: clients are served once this member has told the others of
//! itself, so it has had a quorum. When it stops, it hands over what it leads.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use pontoon_raftgroup::{Fault, GroupId, Node, NodeId};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::bounds::ProcessBounds;
use crate::calls::Calls;
use crate::card::Card;
use crate::compactor;
use crate::config::{AutoCompaction, Config, ConfigError};
use crate::door::{Behind, ConnectionConfig, Door, listen};
use crate::drift::{self, Drift};
use crate::endpoints::Visitors;
use crate::front::Fronts;
use crate::host::{Host, Limits};
use crate::metrics::{Tallies, Traffic};
use crate::node::{OpenError, Opened, open};
use crate::peers::{self, Reception};
use crate::quota::Quota;
use crate::stop::{self, Stop, Stopper};
use crate::url::Url;
use crate::voters::Voters;

/// Between two looks at sizes, the leader and the members.
const LOOK: Duration = Duration::from_millis(100);
/// Looks between two questions whether this member was removed, if it has
/// reason to ask.
const REMOVED_LOOKS: u64 = 10;
/// And if it has none: one that was away when it was removed may not notice.
const REMOVED_LOOKS_CALM: u64 = 50;
/// Before it is tried again to tell the others.
const PAUSE: Duration = Duration::from_millis(50);
/// Between two explanations of what a start waits for.
const EXPLAIN_EVERY: Duration = Duration::from_secs(5);
/// The share of the file system that the data may use by default.
const QUOTA_PERCENT: u64 = 80;
/// Files that connections of clients may not use up, as in etcd.
const FILES_RESERVED: usize = 150;
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
    /// There are no threads for clients.
    #[error("can't start the threads that serve clients: {0}")]
    Threads(std::io::Error),
    /// The others have removed it.
    #[error(
        "this member was removed from its cluster and can't come back; to take the machine in \
         again, add a new member (etcdctl member add) and start it with an empty --data-dir"
    )]
    Removed,
    /// It failed before it served.
    #[error("{0}")]
    Failed(Fault),
}

/// Waits for the failure of a member, from when it is opened.
pub struct FailureWatch {
    node: Node,
    stopper: Stopper,
    reception: Reception,
}

impl FailureWatch {
    /// Returns when the member has failed: the process should exit. Needs no
    /// runtime but the caller's.
    pub async fn failed(&self) -> Fault {
        self.node.failed().await
    }

    /// Gives the order to stop and waits for nothing: connections are ended,
    /// watchers of the health service are told, other members are not answered.
    pub fn stop_serving(&self) {
        self.stopper.stop();
        self.reception.close();
    }
}

/// A server that serves.
pub struct Server {
    host: Arc<Host>,
    stopper: Stopper,
    doors: Vec<JoinHandle<()>>,
    fronts: Vec<std::thread::JoinHandle<()>>,
    tasks: Vec<JoinHandle<()>>,
    clients: Vec<SocketAddr>,
    reception: Reception,
    dir: std::path::PathBuf,
}

impl Server {
    /// Starts one; returns when it serves.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        Self::start_watched(config, drop).await
    }

    /// The same. `opened` is called once, when the member can fail but may still
    /// be far from serving.
    pub async fn start_watched(
        config: Config,
        opened: impl FnOnce(FailureWatch),
    ) -> Result<Self, StartError> {
        config.check()?;
        let urls = config.urls()?;
        let listen_all = |urls: &[Url]| listen_all(urls, config.reuse_port);
        let listeners = listen_all(&urls.listen_client)?;
        let http_listeners = listen_all(&urls.listen_http)?;
        let metrics_listeners = listen_all(&urls.listen_metrics)?;
        let mut member = open(&config, &urls).await?;
        let card = std::mem::take(&mut member.card);
        let reception = member.reception.clone();
        let (stopper, stop) = stop::channel();
        opened(FailureWatch {
            node: member.node.clone(),
            stopper: stopper.clone(),
            reception: reception.clone(),
        });
        let host = host(&config, member, stop.clone());
        let dir = config.dir();
        tokio::select! {
            () = publish(&host, &card) => {}
            () = removed(&host.node, host.member_id) => {
                reception.close();
                host.node.clone().close().await;
                return Err(StartError::Removed);
            }
            fault = host.node.failed() => {
                reception.close();
                return Err(StartError::Failed(fault));
            }
            never = explain(&host, &dir) => match never {},
        }
        let mut tasks = vec![tokio::spawn(look_after(Arc::clone(&host)))];
        tasks.push(tokio::spawn(drift::run(Arc::clone(&host))));
        tasks.push(tokio::spawn(Arc::clone(&host.bounds).run()));
        let (node, counts) = (host.node.clone(), Arc::clone(&host.peers));
        tasks.push(tokio::spawn(peers::measure_round_trips(node, counts)));
        let wanted = config.auto_compaction()?;
        if wanted != AutoCompaction::Off {
            tasks.push(tokio::spawn(compactor::run(Arc::clone(&host), wanted)));
        }
        let door = Door::new(&host, host.limits.connections_max);
        let connections = ConnectionConfig::of(&config);
        let clients = listeners.iter().map(TcpListener::local_addr);
        let clients = clients.filter_map(Result::ok).collect();
        let (threads, fronts) = Fronts::start(&host.node, &stop).map_err(StartError::Threads)?;
        let threads = Arc::new(threads);
        let mut doors = Vec::new();
        let mut open_door = |listeners: Vec<TcpListener>, behind: Behind| {
            for listener in listeners {
                let serving = door.to(behind);
                let serving =
                    serving.serve(listener, Arc::clone(&threads), connections, stop.clone());
                doors.push(tokio::spawn(serving));
            }
        };
        let for_clients = match http_listeners.is_empty() {
            true => Behind::All,
            false => Behind::Grpc,
        };
        open_door(listeners, for_clients);
        open_door(http_listeners, Behind::Http);
        open_door(metrics_listeners, Behind::Metrics);
        Ok(Self {
            host,
            stopper,
            doors,
            fronts,
            tasks,
            clients,
            reception,
            dir,
        })
    }

    /// Where clients are served.
    #[must_use]
    pub fn clients(&self) -> &[SocketAddr] {
        &self.clients
    }

    fn endpoints(&self) -> Vec<String> {
        let clients = self.clients.iter();
        clients.map(|at| format!("http://{at}")).collect()
    }

    /// Logs what [`Server::welcome`] says.
    pub fn log_welcome(&self) {
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            etcd_version = crate::version::API_VERSION,
            member_id = format!("{:x}", self.host.member_id.0),
            cluster_id = format!("{:x}", self.host.cluster_id),
            data_dir = %self.dir.display(),
            client_urls = self.endpoints().join(","),
            io = self.host.io,
            "serving client traffic"
        );
    }

    /// Lines for whoever starts it for the first time.
    #[must_use]
    pub fn welcome(&self) -> String {
        let endpoints = self.endpoints();
        let first = endpoints.first().map_or("", String::as_str);
        format!(
            "Pontoon {version} (speaks etcd {api}) is ready\n\
             member    {member:x} of cluster {cluster:x}\n\
             data      {dir}\n\
             clients   {endpoints}\n\
             io        {io}\n\
             try       pontoonctl --endpoints {first} put hello world",
            version = env!("CARGO_PKG_VERSION"),
            api = crate::version::API_VERSION,
            member = self.host.member_id.0,
            cluster = self.host.cluster_id,
            dir = self.dir.display(),
            endpoints = endpoints.join(","),
            io = self.host.io,
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
        for front in self.fronts {
            // Clients have some time to come to their end; a thread that
            // panicked has said so.
            let _ = tokio::task::spawn_blocking(|| front.join()).await;
        }
        for task in self.tasks {
            task.abort();
        }
        self.reception.close();
        self.host.node.clone().leave(LEAVE_WITHIN).await;
    }
}

fn listen_all(urls: &[Url], reuse_port: bool) -> Result<Vec<TcpListener>, StartError> {
    let listening = urls.iter().map(|url| {
        let listener = listen(url, reuse_port);
        listener.map_err(|error| StartError::Listen(url.to_string(), error))
    });
    listening.collect()
}

fn host(config: &Config, opened: Opened, stop: Stop) -> Arc<Host> {
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
        slow_request: config.slow_request,
        connections_max: match config.connections_max {
            0 => connections_by_files(),
            most => most,
        },
        metrics_extensive: config.metrics_extensive,
    };
    Arc::new(Host {
        member_id: opened.node.id(),
        node: opened.node,
        cluster_id: opened.cluster_id,
        limits,
        quota: Quota::new(quota_bytes),
        bounds: ProcessBounds::new(),
        calls: Arc::new(Calls::default()),
        traffic: Arc::new(Traffic::default()),
        tallies: Tallies::default(),
        peers: opened.counts,
        drift: Drift::from(opened.profile),
        io: opened.io,
        feature_gates: config.feature_gates.clone(),
        started: SystemTime::now(),
        visitors: Visitors::new(&config.cors, &config.host_whitelist),
        learner: AtomicBool::new(false),
        stop,
    })
}

/// As many as the system's limit of open files allows.
fn connections_by_files() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let files = usize::try_from(limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    files.saturating_sub(FILES_RESERVED).max(1)
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

/// Says every now and then why this member isn't ready.
async fn explain(host: &Host, dir: &std::path::Path) -> Infallible {
    loop {
        tokio::time::sleep(EXPLAIN_EVERY).await;
        let mut silent = Vec::new();
        for (id, member) in host.node.members() {
            if id == host.member_id {
                continue;
            }
            for url in Card::read(&member.address).peer_urls {
                let asked = match Url::parse(&url) {
                    Ok(url) => peers::ask(&url).await.ok(),
                    Err(_) => None,
                };
                match asked {
                    None => silent.push(url),
                    Some((cluster, _)) if cluster != host.cluster_id => tracing::error!(
                        "the member at {url} is of cluster {cluster:x}, but the data in {} is of \
                         cluster {:x}. Either this is the wrong --data-dir, or the two were \
                         started with different --initial-cluster or --initial-cluster-token: \
                         then stop the wrong one, remove its data and start it with the right ones",
                        dir.display(),
                        host.cluster_id
                    ),
                    Some(_) => {}
                }
            }
        }
        tracing::warn!(
            "not ready: no quorum of members is found. No answer from: {}",
            match silent.is_empty() {
                true => "nobody, so they may need some more time".to_owned(),
                false => silent.join(", "),
            }
        );
    }
}

/// Keeps up to date what would be dear to look up for every request.
async fn look_after(host: Arc<Host>) {
    let mut leader = None;
    let mut voters = Voters::default();
    loop {
        host.measure();
        let members = host.node.members();
        let learner = members
            .get(&host.member_id)
            .is_some_and(|member| member.learner);
        host.learner.store(learner, Relaxed);
        voters.look(members.values().filter(|member| !member.learner).count());
        let known = host.node.leadership().1;
        if known.is_some() && known != leader {
            leader = known;
            host.tallies.leader_changes.fetch_add(1, Relaxed);
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn removed(node: &Node, me: NodeId) {
    // The first question comes soon.
    let mut looks = REMOVED_LOOKS_CALM - REMOVED_LOOKS;
    loop {
        tokio::time::sleep(LOOK).await;
        looks += 1;
        let doubtful = !node.members().contains_key(&me) || !node.has_leader(GroupId::ROOT);
        let every = match doubtful {
            true => REMOVED_LOOKS,
            false => REMOVED_LOOKS_CALM,
        };
        if looks.is_multiple_of(every) && node.is_removed().await == Some(true) {
            return;
        }
    }
}
