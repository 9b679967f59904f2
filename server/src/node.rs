//! From a configuration to a running member of a cluster.
//!
//! Kept true: who this member is, is durable before anything else is written,
//! and never changes; what was said at the first start counts for good.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pontoon_raftgroup::{
    FormatVersion, Node, NodeFailure, NodeId, Scope, TcpConfig, TcpNetwork, Timing,
};
use pontoon_wal::disk::{Disk, RealDisk};
use pontoon_wal::{Clock, Profile, ProfileError, SystemClock};
use tokio::time::Instant;

use crate::card::Card;
use crate::config::{ClusterState, Config, ConfigError, FirstMembers, Urls};
use crate::discovery;
use crate::identity::{Identity, IdentityError, check_empty, cluster_id, member_id};
use crate::peers::{self, PeerCounts, Peers, Reception};
use crate::url::Url;

/// How long one that joins looks for somebody who knows it.
const JOIN_WITHIN: Duration = Duration::from_secs(30);
/// How long other first members have to say of which cluster they are.
const GREET_WITHIN: Duration = Duration::from_secs(1);
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
    #[error("can't try out the disk in {0}: {1}")]
    Disk(PathBuf, std::io::Error),
    /// The profile of the disk can't be used.
    #[error("--disk-profile: {0}")]
    Profile(#[from] ProfileError),
    /// The first members can't be told.
    #[error(transparent)]
    FirstMembers(#[from] ConfigError),
    /// The first members can't be found.
    #[error("--discovery-srv: {0}")]
    Discovery(String),
    /// Another member is of another cluster.
    #[error(
        "the member at {url} is of cluster {theirs:x}, but these settings make cluster {ours:x}: \
         --initial-cluster and --initial-cluster-token must be the same for all first members; \
         to join a cluster that is there, add this member to it (etcdctl member add) and start \
         it with --initial-cluster-state existing"
    )]
    OtherCluster { url: String, theirs: u64, ours: u64 },
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
    pub(crate) counts: Arc<PeerCounts>,
    /// What the disk was found to do, if that is known.
    pub(crate) profile: Option<Profile>,
}

pub(crate) async fn open(config: &Config, urls: &Urls) -> Result<Opened, OpenError> {
    let profile = config.disk_profile.as_deref().map(Profile::read);
    let profile = profile.transpose()?;
    let dir = config.dir();
    let known = Identity::read(&dir)?;
    let is_new = known.is_none();
    let identity = match known {
        Some(identity) => {
            warn_of_change(config, &identity, &dir);
            identity
        }
        None => first(config, urls).await?,
    };
    let (me, cluster) = (identity.member(), identity.cluster());
    let clock = Arc::new(SystemClock::default());
    let reception = Reception::default();
    let tcp = TcpConfig::new(me, cluster.into(), clock.random());
    let network = listen_to_peers(&urls.listen_peer, tcp, &reception)?;
    if is_new {
        if let Some(dir) = &config.wal_dir {
            check_empty(dir)?;
        }
        identity.write(&dir)?;
    }
    // Where the log is: trees are never written with O_DIRECT.
    let log_disk = config.wal_dir.as_ref().unwrap_or(&dir);
    let disk = RealDisk::new(config.io_backend, log_disk);
    let disk = disk.map_err(|error| OpenError::Disk(log_disk.clone(), error))?;
    let io = disk.describe();
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let scope = Scope::new(clock.random());
    let mut settings = settings(config, &identity, dir);
    if let Some(profile) = &profile {
        settings.commit_bytes_max = profile.commit_bytes_max;
        settings.commits_in_flight_max = profile.in_flight_max;
    }
    let counts = Arc::new(PeerCounts::default());
    let network = Arc::new(Peers {
        network,
        counts: Arc::clone(&counts),
    });
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
        counts,
        profile,
    })
}

fn listen_to_peers(
    urls: &[Url],
    config: TcpConfig,
    reception: &Reception,
) -> Result<Arc<TcpNetwork>, OpenError> {
    let listening = urls.iter().map(|url| {
        let listener = TcpListener::bind(url.authority.as_str());
        listener.map_err(|error| OpenError::Listen(url.to_string(), error))
    });
    let listeners = listening.collect::<Result<_, _>>()?;
    let all = || {
        urls.iter()
            .map(Url::to_string)
            .collect::<Vec<_>>()
            .join(",")
    };
    TcpNetwork::new(listeners, config, reception.clone())
        .map_err(|error| OpenError::Listen(all(), error))
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
    settings.log_entries_kept = config.snapshot_count.max(config.catchup_entries);
    settings.keep_log_within(config.log_bytes_max);
    settings.replicas = identity.replicas;
    settings.range_bytes_max = config.range_bytes_max.unwrap_or(settings.range_bytes_max);
    settings.range_writes_max = config.range_writes_max;
    settings.groups_max = config.ranges_max.unwrap_or(settings.groups_max);
    settings.stall_max = config.disk_stall_max;
    settings.slow_apply = config.slow_apply;
    if let Some(version) = config.cluster_version_max {
        settings.cluster_version_max = FormatVersion(version);
    }
    if !config.corrupt_check.is_zero() {
        settings.compare_every = config.corrupt_check;
    }
    // etcd's shortest lease: one and a half election timeouts, in whole seconds.
    let shortest = (3 * config.election_ms).div_ceil(2000);
    settings.lease_ttl_secs_min = i64::try_from(shortest).unwrap_or(i64::MAX);
    settings
}

/// A member that runs without data of its own says what it was told to be;
/// one that has data is what the data says.
fn warn_of_change(config: &Config, identity: &Identity, dir: &Path) {
    let members = identity.members();
    let name = members.get(&identity.member()).map(|card| &card.name);
    if let Some(name) = name.filter(|name| !name.is_empty() && **name != config.name) {
        tracing::warn!(
            "{} holds the data of the member {name:?}, which is now started as --name {:?}: \
             is it the right --data-dir?",
            dir.display(),
            config.name
        );
    }
}

/// Who this member is at its first start.
async fn first(config: &Config, urls: &Urls) -> Result<Identity, OpenError> {
    let members = match config.discovery_srv {
        Some(_) => discovery::first_members(config, &urls.advertise_peer)
            .await
            .map_err(OpenError::Discovery)?,
        None => config.first_members(&urls.advertise_peer)?,
    };
    match config.initial_cluster_state {
        ClusterState::New => {
            let identity = found(config, &members)?;
            check_cluster(config, urls, &members, identity.cluster()).await?;
            Ok(identity)
        }
        ClusterState::Existing => join(config, urls, &members).await,
    }
}

/// The most members of which each has a replica of every range.
pub(crate) const FULLY_REPLICATED_MAX: usize = 9;

fn found(config: &Config, first: &FirstMembers) -> Result<Identity, OpenError> {
    if first.len() > FULLY_REPLICATED_MAX && config.replicas == 0 {
        let reason = format!(
            "a cluster of more than {FULLY_REPLICATED_MAX} members needs --replicas 3 or 5; \
             --initial-cluster has {}",
            first.len()
        );
        return Err(ConfigError(reason).into());
    }
    let mut members = BTreeMap::new();
    let mut me = NodeId(0);
    for (name, urls) in first {
        let id = member_id(urls, &config.initial_cluster_token);
        if *name == config.name {
            me = id;
        }
        if members.insert(id, Card::of(name, urls)).is_some() {
            return Err(OpenError::SameUrls(name.clone()));
        }
    }
    let cluster = cluster_id(members.keys());
    let mut identity = Identity::new(cluster, me, false, &members, &config.initial_splits);
    identity.replicas = config.replicas;
    Ok(identity)
}

/// A member at one of the first members' URLs that is of another cluster.
/// Members that don't answer have not started yet.
///
/// If that cluster doesn't know this member, the settings are wrong, and nothing
/// is written. If it does, a cluster is created anew where it was (with another
/// token), member by member: they find each other when all are replaced.
async fn check_cluster(
    config: &Config,
    urls: &Urls,
    first: &FirstMembers,
    ours: u64,
) -> Result<(), OpenError> {
    let own: Vec<_> = urls.advertise_peer.iter().map(Url::to_string).collect();
    let others = first.iter().filter(|(name, _)| *name != config.name);
    let asked = others.flat_map(|(_, urls)| urls).map(|url| async move {
        let answer = tokio::time::timeout(GREET_WITHIN, peers::ask(url)).await;
        answer
            .ok()?
            .ok()
            .map(|(theirs, members)| (url, theirs, members))
    });
    let answers = futures_util::future::join_all(asked).await;
    for (url, theirs, members) in answers.into_iter().flatten() {
        if theirs == ours {
            continue;
        }
        if !members.iter().any(|member| member.card.peer_urls == own) {
            return Err(OpenError::OtherCluster {
                url: url.to_string(),
                theirs,
                ours,
            });
        }
        tracing::warn!(
            %url,
            theirs = format!("{theirs:x}"),
            ours = format!("{ours:x}"),
            "the member at this URL is of another cluster; it is waited for as one of this cluster"
        );
    }
    Ok(())
}

/// Asks the members that are there who this one is to be.
async fn join(config: &Config, urls: &Urls, first: &FirstMembers) -> Result<Identity, OpenError> {
    let deadline = Instant::now() + JOIN_WITHIN;
    let own: Vec<_> = urls.advertise_peer.iter().map(Url::to_string).collect();
    let others = first.iter().filter(|(name, _)| *name != config.name);
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
                    check_same(&members, first).map_err(OpenError::Join)?;
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
fn check_same(members: &[peers::Listed], first: &FirstMembers) -> Result<(), String> {
    if members.len() != first.len() {
        return Err(format!(
            "member count is unequal: --initial-cluster names {}, the cluster has {}; \
             name all of them, as `etcdctl member list` does",
            first.len(),
            members.len()
        ));
    }
    for (name, urls) in first {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn settings_of(change: impl FnOnce(&mut Config)) -> pontoon_raftgroup::Config {
        let mut config = Config::default();
        change(&mut config);
        let urls = config.urls().unwrap();
        let members = config.first_members(&urls.advertise_peer).unwrap();
        let identity = found(&config, &members).unwrap();
        settings(&config, &identity, PathBuf::from("x"))
    }

    #[test]
    fn more_than_nine_members_need_a_number_of_replicas() {
        for (count, replicas, refused) in [(9, 0, false), (10, 0, true), (10, 3, false)] {
            let urls = |n: usize| vec![Url::parse(&format!("http://m{n}:2380")).unwrap()];
            let first = (0..count).map(|n| (format!("m{n}"), urls(n))).collect();
            let config = Config {
                name: "m0".to_owned(),
                replicas,
                ..Config::default()
            };
            assert_eq!(
                found(&config, &first).is_err(),
                refused,
                "{count} {replicas}"
            );
        }
    }

    /// What is honoured further down gets there.
    #[test]
    fn settings_are_handed_on() {
        let defaults = settings_of(|_| {});
        assert_eq!(defaults.log_entries_kept, 10_000);
        assert_eq!(defaults.lease_ttl_secs_min, 2);
        assert_eq!(
            settings_of(|c| c.snapshot_count = 20_000).log_entries_kept,
            20_000
        );
        assert_eq!(
            settings_of(|c| c.catchup_entries = 30_000).log_entries_kept,
            30_000
        );
        assert_eq!(defaults.cluster_version_max, FormatVersion::NEWEST);
        let held_back = settings_of(|c| c.cluster_version_max = Some(7));
        assert_eq!(held_back.cluster_version_max, FormatVersion(7));
        let slow = settings_of(|c| (c.heartbeat_ms, c.election_ms) = (500, 5000));
        assert_eq!(slow.timing.heartbeat, Duration::from_millis(500));
        assert_eq!(slow.timing.election_min, Duration::from_secs(5));
        assert_eq!(slow.lease_ttl_secs_min, 8);
        assert_eq!(settings_of(|c| c.replicas = 3).replicas, 3);
        assert_eq!(
            settings_of(|c| c.range_bytes_max = Some(7)).range_bytes_max,
            7
        );
        assert_eq!(settings_of(|c| c.range_writes_max = 7).range_writes_max, 7);
        assert_eq!(defaults.log_kept_bytes, 384 << 20);
        let roomy = settings_of(|c| c.log_bytes_max = 4 << 30);
        assert_eq!(roomy.log_kept_bytes, (2 << 30) - (128 << 20));
        assert_eq!(settings_of(|c| c.ranges_max = Some(7)).groups_max, 7);
        assert_eq!(settings_of(|c| c.txn_ops_max = 7).txn_ops_max, 7);
        let checked = settings_of(|c| c.corrupt_check = Duration::from_secs(7));
        assert_eq!(checked.compare_every, Duration::from_secs(7));
        assert!(!defaults.compare_every.is_zero());
        assert_eq!(defaults.stall_max, Duration::from_secs(60));
        let patient = settings_of(|c| c.disk_stall_max = Duration::from_secs(7));
        assert_eq!(patient.stall_max, Duration::from_secs(7));
        let apart = settings_of(|c| c.wal_dir = Some("y".into()));
        assert_eq!(apart.wal_dir, Some("y".into()));
    }
}
