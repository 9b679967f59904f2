//! A node in a process of its own, with clients that write down what they see.
//!
//! It does what it is told on its standard input, line by line, and says on
//! its standard output when it has:
//!
//! - `open` opens the accounts, `mark` makes a last write;
//! - `stop` ends the clients;
//! - `contents` tells the hashes of its replicas, `dump <revision>` writes
//!   everything through that revision to a file;
//! - `version` tells the version of the cluster, and how many entries it has
//!   applied of the kind that only the next release knows;
//! - `split <key>`, `remove <node>`, `add <node> <address>` (to listen) and
//!   `promote <node>` change the cluster, if nobody has done so before.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use pontoon_engine::{Answer, KeyRange, Range, Request, Revision};
use pontoon_raftgroup::{
    Config, Delivery, Failure, FormatVersion, Member as Joining, MemberReject, Node, NodeId, Plain,
    Scope, TcpConfig, TcpNetwork, Timing, Watch,
};
use pontoon_wal::disk::{Backend, Disk, RealDisk};
use pontoon_wal::{Clock, SystemClock};
use rand::rngs::SmallRng;
use rand::seq::IteratorRandom;
use rand::{RngExt, SeedableRng};
use tokio::sync::mpsc;

use crate::history::{Ask, Change, Content, Dump, Heard, Kv, Recorder, list};
use crate::load::{self, Client, Load};

const CLIENTS: usize = 6;

const WATCHERS: usize = 3;

/// Asks what the driver wants.
const SELF: usize = CLIENTS + WATCHERS;

/// Before a client gives up.
const WITHIN: Duration = Duration::from_secs(2);

/// Before a change of the cluster is given up, to be asked for again.
const CHANGE_WITHIN: Duration = Duration::from_secs(10);

/// What stands before all that is said to the driver.
pub(crate) const SAYS: &str = "member says: ";

/// Which node a process is, in words for its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) node: u64,
    /// Counts the processes of this node.
    pub(crate) start: u64,
    pub(crate) load: Load,
    /// Whether it comes to a cluster that is there.
    pub(crate) join: bool,
    pub(crate) release: Release,
    pub(crate) dir: PathBuf,
    /// Where node 1, 2 and so on are.
    pub(crate) addresses: Vec<String>,
}

/// Which release a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Release {
    /// The newest format that it understands.
    pub(crate) newest: u8,
    /// The newest version of the cluster that it agrees to.
    pub(crate) agrees: u8,
}

impl Release {
    const fn of(newest: u8, agrees: u8) -> Self {
        Self { newest, agrees }
    }

    /// This one.
    pub(crate) const THIS: Self = Self::of(FormatVersion::NEWEST.0, FormatVersion::NEWEST.0);
    /// The next one, which has one more kind of entry.
    pub(crate) const NEXT: Self = Self::of(Self::THIS.newest + 1, Self::THIS.newest + 1);
    /// The same, started so that there is a way back.
    pub(crate) const NEXT_HELD_BACK: Self = Self::of(Self::NEXT.newest, Self::THIS.newest);
}

impl Seat {
    pub(crate) fn to_words(&self) -> String {
        let load = self.load.name();
        let dir = self.dir.display();
        let addresses = self.addresses.join(" ");
        let Release { newest, agrees } = self.release;
        format!(
            "{} {} {load} {} {newest} {agrees} {dir} {addresses}",
            self.node, self.start, self.join
        )
    }

    pub(crate) fn from_words(words: &str) -> Option<Self> {
        let mut words = words.split(' ');
        Some(Self {
            node: words.next()?.parse().ok()?,
            start: words.next()?.parse().ok()?,
            load: Load::from_name(words.next()?)?,
            join: words.next()?.parse().ok()?,
            release: Release {
                newest: words.next()?.parse().ok()?,
                agrees: words.next()?.parse().ok()?,
            },
            dir: words.next()?.into(),
            addresses: words.map(str::to_owned).collect(),
        })
    }

    pub(crate) fn process(&self) -> String {
        format!("{}-{}", self.node, self.start)
    }

    pub(crate) fn history(&self) -> PathBuf {
        self.dir.join(format!("history-{}", self.process()))
    }

    pub(crate) fn dump(&self) -> PathBuf {
        self.dir.join(format!("dump-{}", self.node))
    }
}

/// Runs the node until it is killed or left alone.
pub(crate) fn run(seat: Seat) {
    // Nothing is known of a process in which something has panicked.
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        std::process::abort();
    }));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(serve(seat));
}

async fn serve(seat: Seat) {
    let mut told = listen();
    let node = open(&seat).await;
    let recorder = Recorder::create(&seat.history()).expect("a new file");
    let member = Arc::new(Member {
        node,
        load: seat.load,
        process: seat.process(),
        recorder,
        stop: AtomicBool::new(false),
        newest: AtomicI64::new(1),
    });
    tokio::spawn({
        let member = Arc::clone(&member);
        async move { panic!("{}", member.node.failed().await) }
    });
    say("ready");
    let clients = (0..CLIENTS).map(|client| tokio::spawn(Arc::clone(&member).ask_on(client)));
    let mut clients: Vec<_> = clients.collect();
    for watcher in CLIENTS..CLIENTS + WATCHERS {
        tokio::spawn(Arc::clone(&member).watch_on(watcher));
    }
    while let Some(line) = told.recv().await {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["open"] => {
                let opening = |name: &str| member.load.opening(name).expect("there are accounts");
                say(&format!("opened {}", member.write("open", opening).await));
            }
            ["mark"] => {
                let mark = |name: &str| member.load.mark(name);
                say(&format!("marked {}", member.write("mark", mark).await));
            }
            ["stop"] => {
                member.stop.store(true, Ordering::Relaxed);
                for client in clients.drain(..) {
                    client.await.expect("a client ends in order");
                }
                say("stopped");
            }
            ["version"] => {
                let version = member.node.cluster_version().cluster;
                say(&format!(
                    "version {version} {}",
                    member.node.trial_entries()
                ));
            }
            ["contents"] => say(&format!("contents {}", list(member.contents()))),
            ["dump", through] => {
                let through = through.parse().expect("a revision");
                let dump = member.dump(through).await;
                std::fs::write(seat.dump(), dump.to_string()).expect("a file");
                say("dumped");
            }
            ref change => match member.change(change).await {
                Ok(()) => say(&format!("done {line}")),
                Err(failure) => say(&format!("failed {line}: {failure}")),
            },
        }
    }
    // Whoever started it is gone.
    std::process::exit(1);
}

fn say(what: &str) {
    println!("{SAYS}{what}");
}

/// What comes on the standard input, line by line.
fn listen() -> mpsc::UnboundedReceiver<String> {
    let (lines, told) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            // Nobody listens any more: fine.
            let _ = lines.send(line);
        }
    });
    told
}

async fn open(seat: &Seat) -> Node {
    let id = NodeId(seat.node);
    let addresses = (1..).map(NodeId).zip(seat.addresses.iter().cloned());
    let members: BTreeMap<_, _> = addresses.collect();
    let dir = seat.dir.join(format!("node-{id}"));
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(Backend::Auto, &dir).expect("a disk"));
    let clock = Arc::new(SystemClock::default());
    let mut config = Config::new(id, 1, dir, members);
    config.join = seat.join;
    config.splits = seat
        .load
        .first_splits()
        .map(|letter| Bytes::from(letter.to_string()))
        .collect();
    config.timing = Timing {
        heartbeat: Duration::from_millis(100),
        election_min: Duration::from_millis(500),
        election_max: Duration::from_millis(800),
    };
    // Small, so that logs are cut and those who were away get snapshots.
    config.log_entries_kept = 300;
    config.log_bytes_max = 256 << 10;
    config.log_kept_bytes = 1 << 20;
    config.segment_bytes = 1 << 20;
    config.newest_format = FormatVersion(seat.release.newest);
    config.cluster_version_max = FormatVersion(seat.release.agrees);
    let tcp = TcpConfig::new(id, 1, clock.random());
    let address = config.members[&id].clone();
    let network = TcpNetwork::bind(address, tcp, Plain).expect("its address is free");
    let scope = Scope::new(clock.random());
    let node = Node::open(config, disk, clock, network, scope).await;
    node.expect("it opens")
}

struct Member {
    node: Node,
    load: Load,
    process: String,
    recorder: Recorder,
    stop: AtomicBool,
    /// The highest revision that was seen here.
    newest: AtomicI64,
}

impl Member {
    /// A client that asks for one thing after another.
    async fn ask_on(self: Arc<Self>, client: usize) {
        let mut asks = Client::new(self.load, format!("{}c{client}", self.process));
        while !self.stop.load(Ordering::Relaxed) {
            let ask = asks.next();
            let heard = self.ask(client, &ask).await;
            if let Heard::Done { revision, .. } = &heard {
                self.newest.fetch_max(*revision, Ordering::Relaxed);
            }
            tokio::time::sleep(asks.hear(&ask, &heard)).await;
        }
    }

    /// Asks once, and writes down what was asked and heard.
    async fn ask(&self, client: usize, ask: &Ask) -> Heard {
        self.recorder.note(client, format_args!("ask {ask}"));
        let answer = match ask {
            Ask::Local { key } => {
                let range = Range::of(load::keys(key.as_deref()));
                let answer = self.node.read_serializable(&range, WITHIN).await;
                answer.map(Answer::Range)
            }
            ask => self.node.request(load::request(ask), WITHIN).await,
        };
        let heard = load::heard(answer);
        self.recorder.note(client, &heard);
        heard
    }

    /// A watch of all keys, or of one group's, from some revision on; now and
    /// then it begins anew.
    async fn watch_on(self: Arc<Self>, client: usize) {
        let mut rng = SmallRng::seed_from_u64(u64::from(std::process::id()) << 8 | client as u64);
        loop {
            let newest = self.newest.load(Ordering::Relaxed);
            let from = match rng.random_range(0..3) {
                0 => 0,
                1 => rng.random_range(2..newest.max(3)),
                _ => (newest - 100).max(2),
            };
            let prefix = match rng.random_bool(0.5) {
                true => None,
                false => self.load.letters().choose(&mut rng),
            };
            let mut stream = self.node.watch(Watch {
                keys: prefix.map_or(KeyRange::all(), |prefix| {
                    KeyRange::new(prefix.to_string(), format!("{prefix}~"))
                }),
                from: Revision(from),
                prev_kv: false,
            });
            if from == 0 && stream.delivered().0 == 0 {
                // The node has just started and can't say yet what "now" is.
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
            let began = format!("watch {} {from}", prefix.unwrap_or('*'));
            self.recorder.note(client, began);
            let mut left = rng.random_range(500..10_000_usize);
            while left > 0 {
                match stream.next().await {
                    Some(Delivery::Events(events)) => {
                        let changes = events.iter().map(Change::from);
                        self.recorder
                            .note(client, format_args!("events {}", list(changes)));
                        left = left.saturating_sub(events.len());
                    }
                    other => panic!("a watch ended with {other:?}"),
                }
            }
        }
    }

    /// Writes, however often it takes; returns the revision.
    async fn write(&self, name: &str, ask: impl Fn(&str) -> Ask) -> i64 {
        for count in 0.. {
            let ask = ask(&format!("n{}{name}{count}", self.process));
            if let Heard::Done { revision, .. } = self.ask(SELF, &ask).await {
                return revision;
            }
        }
        unreachable!("it tries on and on")
    }

    /// Changes the cluster.
    async fn change(&self, words: &[&str]) -> Result<(), Failure> {
        let id = |word: &str| NodeId(word.parse().expect("a node"));
        let (changed, if_done_before) = match *words {
            ["split", key] => {
                let key = Bytes::from(key.to_owned());
                let child = self.node.split(key, CHANGE_WITHIN).await;
                (child.map(drop), None)
            }
            ["remove", node] => {
                let removed = self.node.member_remove(id(node), CHANGE_WITHIN);
                (removed.await, Some(MemberReject::NotFound))
            }
            ["add", node, address] => {
                let address = address.to_owned();
                let learner = true;
                let member = Joining { address, learner };
                let added = self.node.member_add(id(node), member, CHANGE_WITHIN);
                (added.await, Some(MemberReject::Exists))
            }
            ["promote", node] => {
                let promoted = self.node.member_promote(id(node), CHANGE_WITHIN);
                (promoted.await, Some(MemberReject::NotLearner))
            }
            _ => panic!("what is {words:?}?"),
        };
        match changed {
            Err(Failure::Member(reject)) if Some(reject) == if_done_before => Ok(()),
            changed => changed,
        }
    }

    /// What each replica here has.
    fn contents(&self) -> Vec<Content> {
        let map = self.node.map();
        let ranges = map.iter().flat_map(|map| map.ranges());
        let contents = ranges.filter_map(|(placed, _)| {
            let (index, hash) = self.node.content(placed.group)?;
            Some(Content {
                group: placed.group.0,
                index: index.0,
                hash: format!("{:x}-{:x}", hash.keys, hash.records),
            })
        });
        contents.collect()
    }

    /// All events and, in the end, keys, as of a revision.
    async fn dump(&self, through: i64) -> Dump {
        for replica in self.node.status() {
            assert_eq!(replica.failure, None, "{replica:?}");
        }
        let mut stream = self.node.watch(Watch {
            keys: KeyRange::all(),
            from: Revision(2),
            prev_kv: true,
        });
        let mut dump = Dump::default();
        let last = |dump: &Dump| dump.events.last().map_or(0, |(event, _)| event.revision());
        while last(&dump) < through {
            let Some(Delivery::Events(events)) = stream.next().await else {
                panic!("the watch ended");
            };
            let events = events.iter().map(|event| {
                let before = event.prev_kv.as_ref().map(Kv::from);
                (Change::from(event), before)
            });
            dump.events.extend(events);
        }
        dump.events.retain(|(event, _)| event.revision() <= through);
        let mut range = Range::of(KeyRange::all());
        range.revision = through;
        while dump.state.is_empty() {
            let answer = self.node.request(Request::Range(range.clone()), WITHIN);
            if let Ok(Answer::Range(answer)) = answer.await {
                dump.state = answer.kvs.iter().map(Kv::from).collect();
            }
        }
        dump
    }
}
