//! A node in a process of its own, with clients that write down what they see.
//!
//! It does what it is told on its standard input: `stop` ends the clients,
//! `mark` makes a last write, `dump <revision>` writes everything through that
//! revision to a file. It says on its standard output when it has.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use pontoon_engine::{
    Answer, Compare, DeleteRange, KeyRange, Op, Operand, Put, Range, Relation, Request, Revision,
    Txn,
};
use pontoon_raftgroup::{
    Config, Delivery, Failure, Node, NodeId, Plain, Scope, TcpConfig, TcpNetwork, Timing, Watch,
};
use pontoon_wal::disk::{Backend, Disk, RealDisk};
use pontoon_wal::{Clock, SystemClock};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::mpsc;

use crate::history::{Ask, Change, Dump, Heard, Kv, Recorder, list};

/// The letters that keys begin with, one for each group.
const LETTERS: [&str; 5] = ["a", "c", "e", "g", "i"];

/// Keys of each letter.
const KEYS: u32 = 6;

const CLIENTS: usize = 6;

/// Before a client gives up.
const WITHIN: Duration = Duration::from_secs(2);

/// What stands before all that is said to the driver.
pub(crate) const SAYS: &str = "member says: ";

/// Which node a process is, in words for its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) node: u64,
    /// Counts the processes of this node.
    pub(crate) start: u64,
    pub(crate) dir: PathBuf,
    /// Where node 1, 2 and so on are.
    pub(crate) addresses: Vec<String>,
}

impl Seat {
    pub(crate) fn to_words(&self) -> String {
        let dir = self.dir.display();
        let addresses = self.addresses.join(" ");
        format!("{} {} {dir} {addresses}", self.node, self.start)
    }

    pub(crate) fn from_words(words: &str) -> Option<Self> {
        let mut words = words.split(' ');
        Some(Self {
            node: words.next()?.parse().ok()?,
            start: words.next()?.parse().ok()?,
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
        process: seat.process(),
        recorder,
        stop: AtomicBool::new(false),
        newest: AtomicI64::new(1),
    });
    say("ready");
    let clients = (0..CLIENTS).map(|client| tokio::spawn(Arc::clone(&member).ask_on(client)));
    let clients: Vec<_> = clients.collect();
    for watcher in 0..3 {
        tokio::spawn(Arc::clone(&member).watch_on(CLIENTS + watcher));
    }
    let mut clients = Some(clients);
    while let Some(line) = told.recv().await {
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("stop", _) => {
                member.stop.store(true, Ordering::Relaxed);
                for client in clients.take().into_iter().flatten() {
                    client.await.expect("a client ends in order");
                }
                say("stopped");
            }
            ("mark", _) => say(&format!("marked {}", member.mark().await)),
            ("dump", through) => {
                let through = through.parse().expect("a revision");
                let dump = member.dump(through).await;
                std::fs::write(seat.dump(), dump.to_string()).expect("a file");
                say("dumped");
            }
            _ => panic!("what is {line:?}?"),
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
    config.splits = LETTERS[1..]
        .iter()
        .map(|letter| Bytes::from_static(letter.as_bytes()))
        .collect();
    config.timing = Timing {
        heartbeat: Duration::from_millis(100),
        election_min: Duration::from_millis(500),
        election_max: Duration::from_millis(800),
    };
    // Small, so that logs are cut and those who were away get snapshots.
    config.log_entries_kept = 300;
    config.log_bytes_max = 256 << 10;
    config.segment_bytes = 1 << 20;
    let tcp = TcpConfig::new(id, 1, clock.random());
    let address = config.members[&id].clone();
    let network = TcpNetwork::bind(address, tcp, Plain).expect("its address is free");
    let scope = Scope::new(clock.random());
    let node = Node::open(config, disk, clock, network, scope).await;
    node.expect("it opens")
}

struct Member {
    node: Node,
    process: String,
    recorder: Recorder,
    stop: AtomicBool,
    /// The highest revision that was seen here.
    newest: AtomicI64,
}

impl Member {
    /// A client that asks for one thing after another.
    async fn ask_on(self: Arc<Self>, client: usize) {
        let mut rng = SmallRng::seed_from_u64(self.node.id().0 << 32 | client as u64);
        // Other choices in each process.
        for _ in 0..self.process.len() + std::process::id() as usize % 64 {
            rng.random::<u64>();
        }
        let mut known: BTreeMap<String, i64> = BTreeMap::new();
        let mut count = 0;
        while !self.stop.load(Ordering::Relaxed) {
            count += 1;
            let value = format!("n{}c{client}i{count}", self.process);
            let ask = choose(&mut rng, &known, value);
            let heard = self.ask(client, &ask).await;
            if let Heard::Done {
                revision,
                changed,
                kvs,
            } = &heard
            {
                self.newest.fetch_max(*revision, Ordering::Relaxed);
                for kv in kvs {
                    known.insert(kv.key.clone(), kv.modified);
                }
                match &ask {
                    Ask::Put { key, .. } | Ask::Swap { key, .. } if *changed => {
                        known.insert(key.clone(), *revision);
                    }
                    Ask::Delete { key } => {
                        known.remove(key);
                    }
                    _ => {}
                }
            }
            let pause = match heard {
                Heard::Done { .. } => rng.random_range(2..15),
                _ => rng.random_range(20..60),
            };
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }

    /// Asks once, and writes down what was asked and heard.
    async fn ask(&self, client: usize, ask: &Ask) -> Heard {
        self.recorder.note(client, format_args!("ask {ask}"));
        let answer = match ask {
            Ask::Local { key } => {
                let range = Range::of(keys(key.as_deref()));
                let answer = self.node.read_serializable(&range, WITHIN).await;
                answer.map(Answer::Range)
            }
            ask => self.node.request(request(ask), WITHIN).await,
        };
        let heard = heard(answer);
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
                false => Some(LETTERS[rng.random_range(0..LETTERS.len())]),
            };
            let mut stream = self.node.watch(Watch {
                keys: prefix.map_or(KeyRange::all(), |prefix| {
                    KeyRange::new(prefix, format!("{prefix}~"))
                }),
                from: Revision(from),
                prev_kv: false,
            });
            if from == 0 && stream.delivered().0 == 0 {
                // The node has just started and can't say yet what "now" is.
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
            let began = format!("watch {} {from}", prefix.unwrap_or("*"));
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

    /// A write behind all others; returns its revision.
    async fn mark(&self) -> i64 {
        for count in 0.. {
            let value = format!("n{}mark{count}", self.process);
            let key = "z".to_owned();
            let ask = Ask::Put { key, value };
            if let Heard::Done { revision, .. } = self.ask(0, &ask).await {
                return revision;
            }
        }
        unreachable!("it tries on and on")
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

fn choose(rng: &mut SmallRng, known: &BTreeMap<String, i64>, value: String) -> Ask {
    let letter = LETTERS[rng.random_range(0..LETTERS.len())];
    let number = rng.random_range(0..KEYS);
    let key = format!("{letter}{number}");
    match rng.random_range(0..100) {
        0..35 => Ask::Put { key, value },
        35..45 => Ask::Delete { key },
        45..60 => Ask::Swap {
            modified: known.get(&key).copied().unwrap_or_default(),
            key,
            value,
        },
        60..70 => Ask::Pair {
            keys: [key, format!("{letter}{}", (number + 1) % KEYS)],
            value,
        },
        70..82 => Ask::Read { key: Some(key) },
        82..88 => Ask::Read { key: None },
        88..94 => Ask::Local { key: Some(key) },
        _ => Ask::Local { key: None },
    }
}

fn keys(key: Option<&str>) -> KeyRange {
    key.map_or(KeyRange::all(), |key| KeyRange::one(key.to_owned()))
}

fn request(ask: &Ask) -> Request {
    let put = |key: &str, value: &str, prev_kv| Put {
        key: key.to_owned().into(),
        value: value.to_owned().into(),
        prev_kv,
        ..Put::default()
    };
    match ask {
        Ask::Put { key, value } => Request::Put(put(key, value, true)),
        Ask::Delete { key } => Request::DeleteRange(DeleteRange {
            keys: keys(Some(key)),
            prev_kv: true,
        }),
        Ask::Swap {
            key,
            modified,
            value,
        } => Request::Txn(Txn {
            compare: vec![Compare {
                keys: keys(Some(key)),
                operand: Operand::Modified(*modified),
                relation: Relation::Equal,
            }],
            success: vec![Op::Put(put(key, value, false))],
            failure: vec![Op::Range(Range::of(keys(Some(key))))],
        }),
        Ask::Pair { keys, value } => Request::Txn(Txn {
            success: keys
                .iter()
                .map(|key| Op::Put(put(key, value, false)))
                .collect(),
            ..Txn::default()
        }),
        Ask::Read { key } | Ask::Local { key } => Request::Range(Range::of(keys(key.as_deref()))),
    }
}

fn heard(answer: Result<Answer, Failure>) -> Heard {
    let kvs = |kvs: &[pontoon_engine::KeyValue]| kvs.iter().map(Kv::from).collect();
    let (revision, changed, kvs) = match answer {
        Ok(Answer::Range(answer)) => (answer.revision, false, kvs(&answer.kvs)),
        Ok(Answer::Put(answer)) => (answer.revision, true, kvs(answer.prev_kv.as_slice())),
        Ok(Answer::DeleteRange(answer)) => {
            (answer.revision, answer.deleted > 0, kvs(&answer.prev_kvs))
        }
        Ok(Answer::Txn(answer)) => {
            let found = match &answer.answers[..] {
                [Answer::Range(found)] => kvs(&found.kvs),
                _ => Vec::new(),
            };
            (answer.revision, answer.succeeded, found)
        }
        Ok(Answer::LeaseRevoke(_)) => unreachable!("nobody asks for it"),
        Err(failure) if failure.is_certain() => return Heard::Failed(failure.to_string()),
        Err(failure) => return Heard::Unknown(failure.to_string()),
    };
    Heard::Done {
        revision: revision.0,
        changed,
        kvs,
    }
}
