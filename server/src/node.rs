//! From a configuration to a running member of a cluster.
//!
//! Kept true: who this member is, is durable before anything else is written,
//! and never changes; what was said at the first start counts for good.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pontoon_raftgroup::{Node, NodeFailure, NodeId, Scope, TcpConfig, TcpNetwork, Timing};
use pontoon_wal::disk::{Backend, Disk, RealDisk};
use pontoon_wal::{Clock, SystemClock};
use tokio::time::Instant;

use crate::card::Card;
use crate::config::{ClusterState, Config, Urls};
use crate::identity::{Identity, IdentityError, cluster_id, member_id};
use crate::peers::{self, Peers, Reception};
use crate::url::Url;

/// How long one that joins looks for somebody who knows it.
const JOIN_WITHIN: Duration = Duration::from_secs(30);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(200);

/// Why a member can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The data directory can't be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The port for other members can't be had.
    #[error("can't listen for other members at {0}: {1}; is another member running there?")]
    Listen(String, std::io::Error),
    /// The disk can't be used.
    #[error("{0}: {1}")]
    Disk(PathBuf, std::io::Error),
    /// Two members are the same.
    #[error("--initial-cluster: {0} and another member have the same peer URLs")]
    SameUrls(String),
    /// Nobody took this member in.
    #[error("can't join the cluster: {0}")]
    Join(String),
    /// What is below can't.
    #[error(transparent)]
    Node(#[from] NodeFailure),
}

/// A member that runs.
pub(crate) struct Opened {
    pub(crate) node: Node,
    pub(crate) cluster_id: u64,
    /// How commits reach the disk, and why.
    pub(crate) io: String,
    /// What the others are to know of it.
    pub(crate) card: Card,
    pub(crate) reception: Reception,
}

pub(crate) async fn open(config: &Config, urls: &Urls) -> Result<Opened, OpenError> {
    let dir = config.dir();
    let identity = match Identity::read(&dir)? {
        Some(identity) => identity,
        None => {
            let identity = first(config, urls).await?;
            identity.write(&dir)?;
            identity
        }
    };
    let (me, cluster) = (identity.member(), identity.cluster());
    let clock = Arc::new(SystemClock::default());
    let reception = Reception::default();
    let tcp = TcpConfig::new(me, cluster.into(), clock.random());
    let authority = urls.listen_peer.authority.as_str();
    let network = TcpNetwork::bind(authority, tcp, reception.clone())
        .map_err(|error| OpenError::Listen(urls.listen_peer.to_string(), error))?;
    let disk = RealDisk::new(Backend::Auto, &dir);
    let disk = disk.map_err(|error| OpenError::Disk(dir.clone(), error))?;
    let io = disk.describe();
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let scope = Scope::new(clock.random());
    let settings = settings(config, &identity, dir);
    let network = Arc::new(Peers(network));
    let node = Node::open(settings, disk, clock, network, scope).await?;
    reception.open(cluster, &node);
    let mut card = Card::of(&config.name, &urls.advertise_peer);
    card.client_urls = urls.advertise_client.iter().map(Url::to_string).collect();
    Ok(Opened {
        node,
        cluster_id: cluster,
        io,
        card,
        reception,
    })
}

fn settings(config: &Config, identity: &Identity, dir: PathBuf) -> pontoon_raftgroup::Config {
    let members = identity.members().into_iter();
    let members = members.map(|(id, card)| (id, card.write())).collect();
    let cluster = identity.cluster().into();
    let mut settings = pontoon_raftgroup::Config::new(identity.member(), cluster, dir, members);
    let election = Duration::from_millis(config.election_ms);
    settings.wal_dir = config.wal_dir.clone();
    settings.join = identity.join;
    settings.splits = identity.splits().unwrap_or_default();
    settings.timing = Timing {
        heartbeat: Duration::from_millis(config.heartbeat_ms),
        election_min: election,
        election_max: election * 3 / 2,
    };
    settings.txn_ops_max = config.txn_ops_max;
    settings.log_entries_kept = config.snapshot_count;
    // etcd's shortest lease: one and a half election timeouts, in whole seconds.
    let shortest = (3 * config.election_ms).div_ceil(2000);
    settings.lease_ttl_secs_min = i64::try_from(shortest).unwrap_or(i64::MAX);
    settings
}

/// Who this member is at its first start.
async fn first(config: &Config, urls: &Urls) -> Result<Identity, OpenError> {
    match config.initial_cluster_state {
        ClusterState::New => found(config, urls),
        ClusterState::Existing => join(config, urls).await,
    }
}

fn found(config: &Config, urls: &Urls) -> Result<Identity, OpenError> {
    let mut members = BTreeMap::new();
    for (name, urls) in &urls.initial_cluster {
        let id = member_id(urls, &config.initial_cluster_token);
        if members.insert(id, Card::of(name, urls)).is_some() {
            return Err(OpenError::SameUrls(name.clone()));
        }
    }
    let me = member_id(&urls.advertise_peer, &config.initial_cluster_token);
    let cluster = cluster_id(members.keys());
    let splits = &config.initial_splits;
    Ok(Identity::new(cluster, me, false, &members, splits))
}

/// Asks the members that are there who this one is to be.
async fn join(config: &Config, urls: &Urls) -> Result<Identity, OpenError> {
    let deadline = Instant::now() + JOIN_WITHIN;
    let own: Vec<_> = urls.advertise_peer.iter().map(Url::to_string).collect();
    let others = urls.initial_cluster.iter();
    let others = others.filter(|(name, _)| *name != config.name);
    let others: Vec<&Url> = others.flat_map(|(_, urls)| urls).collect();
    if others.is_empty() {
        let reason = "--initial-cluster names no other member";
        return Err(OpenError::Join(reason.to_owned()));
    }
    loop {
        let mut reasons = Vec::new();
        for url in &others {
            match peers::ask(url).await {
                Ok((cluster, members)) => {
                    let me = members.iter().find(|member| member.card.peer_urls == own);
                    let Some(me) = me.map(|member| NodeId(member.id)) else {
                        return Err(OpenError::Join(format!(
                            "no member of it has the peer URLs {}; add one first \
                             (etcdctl member add)",
                            own.join(",")
                        )));
                    };
                    check_same(&members, urls).map_err(OpenError::Join)?;
                    let members = members.into_iter();
                    let members = members.map(|member| (NodeId(member.id), member.card));
                    return Ok(Identity::new(cluster, me, true, &members.collect(), &[]));
                }
                Err(error) => reasons.push(format!("{url}: {error}")),
            }
        }
        if Instant::now() >= deadline {
            return Err(OpenError::Join(reasons.join("; ")));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// etcd wants `--initial-cluster` to name exactly the members that are there.
fn check_same(members: &[peers::Listed], urls: &Urls) -> Result<(), String> {
    if members.len() != urls.initial_cluster.len() {
        return Err(format!(
            "member count is unequal: --initial-cluster names {}, the cluster has {}",
            urls.initial_cluster.len(),
            members.len()
        ));
    }
    for (name, urls) in &urls.initial_cluster {
        let urls: Vec<_> = urls.iter().map(Url::to_string).collect();
        if !members.iter().any(|member| member.card.peer_urls == urls) {
            return Err(format!(
                "PeerURLs: no match found for existing member {name} ({})",
                urls.join(",")
            ));
        }
    }
    Ok(())
}
