//! What clients asked and heard, as lines of text.
//!
//! Kept true: an invocation is in the file before it is sent, its outcome
//! before the client goes on. So what a killed process leaves behind is true;
//! an invocation without an outcome may or may not have been done.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write as _};
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use parking_lot::Mutex;
use pontoon_engine::{EventKind, KeyValue};

/// Nanoseconds on the clock that all processes share.
pub(crate) fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let nanos = time.tv_sec * 1_000_000_000 + time.tv_nsec;
    u64::try_from(nanos).expect("the clock began at 0")
}

/// A key and its value. Neither has any of ` =@.;`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kv {
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) create: i64,
    pub(crate) modified: i64,
    pub(crate) version: i64,
}

impl Kv {
    fn parse(text: &str) -> Option<Self> {
        let (key, rest) = text.split_once('=')?;
        let (value, numbers) = rest.split_once('@')?;
        let mut numbers = numbers.split('.').map(|number| number.parse().ok());
        Some(Self {
            key: key.to_owned(),
            value: value.to_owned(),
            create: numbers.next()??,
            modified: numbers.next()??,
            version: numbers.next()??,
        })
    }
}

impl From<&KeyValue> for Kv {
    fn from(kv: &KeyValue) -> Self {
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        Self {
            key: text(&kv.key),
            value: text(&kv.value),
            create: kv.create.0,
            modified: kv.modified.0,
            version: kv.version,
        }
    }
}

impl Display for Kv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}={}@{}.{}.{}",
            self.key, self.value, self.create, self.modified, self.version
        )
    }
}

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) deleted: bool,
    pub(crate) kv: Kv,
}

impl Change {
    fn parse(text: &str) -> Option<Self> {
        Some(Self {
            deleted: text.starts_with('-'),
            kv: Kv::parse(text.get(1..)?)?,
        })
    }

    pub(crate) fn revision(&self) -> i64 {
        self.kv.modified
    }
}

impl From<&pontoon_engine::Event> for Change {
    fn from(event: &pontoon_engine::Event) -> Self {
        let mut kv = Kv::from(&event.kv);
        kv.modified = event.change.revision.0;
        Self {
            deleted: event.kind == EventKind::Delete,
            kv,
        }
    }
}

impl Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.deleted { '-' } else { '+' }, self.kv)
    }
}

/// `;` between them; `-` if there are none.
pub(crate) fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let mut text = String::new();
    for item in items {
        let between = if text.is_empty() { "" } else { ";" };
        write!(text, "{between}{item}").expect("to memory");
    }
    if text.is_empty() {
        text.push('-');
    }
    text
}

fn parse_list<T>(text: &str, parse: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    match text {
        "-" => Some(Vec::new()),
        text => text.split(';').map(parse).collect(),
    }
}

/// What a client asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Put {
        key: String,
        value: String,
    },
    Delete {
        key: String,
    },
    /// Put if the key's mod revision is this one; else read.
    Swap {
        key: String,
        modified: i64,
        value: String,
    },
    /// All keys in one revision.
    Together {
        keys: Vec<String>,
        value: String,
    },
    /// Both put if both mod revisions are these; else read.
    Transfer {
        keys: [String; 2],
        modified: [i64; 2],
        values: [String; 2],
    },
    /// A linearizable read of a key, or of all.
    Read {
        key: Option<String>,
    },
    /// The same of what the member has.
    Local {
        key: Option<String>,
    },
}

impl Ask {
    fn parse(words: &[&str]) -> Option<Self> {
        let key_or_all = |key: &str| (key != "*").then(|| key.to_owned());
        Some(match *words {
            ["put", key, value] => Self::Put {
                key: key.to_owned(),
                value: value.to_owned(),
            },
            ["delete", key] => Self::Delete {
                key: key.to_owned(),
            },
            ["swap", key, modified, value] => Self::Swap {
                key: key.to_owned(),
                modified: modified.parse().ok()?,
                value: value.to_owned(),
            },
            ["together", value, ref keys @ ..] => Self::Together {
                keys: keys.iter().map(|key| (*key).to_owned()).collect(),
                value: value.to_owned(),
            },
            ["transfer", from, taken_at, left, to, given_at, got] => Self::Transfer {
                keys: [from, to].map(str::to_owned),
                modified: [taken_at.parse().ok()?, given_at.parse().ok()?],
                values: [left, got].map(str::to_owned),
            },
            ["read", key] => Self::Read {
                key: key_or_all(key),
            },
            ["local", key] => Self::Local {
                key: key_or_all(key),
            },
            _ => return None,
        })
    }

    pub(crate) fn is_write(&self) -> bool {
        !matches!(self, Self::Read { .. } | Self::Local { .. })
    }

    /// The keys that it names; if there are none, it is about all.
    pub(crate) fn keys(&self) -> Vec<&str> {
        match self {
            Self::Put { key, .. } | Self::Delete { key } | Self::Swap { key, .. } => vec![key],
            Self::Together { keys, .. } => keys.iter().map(String::as_str).collect(),
            Self::Transfer { keys, .. } => keys.iter().map(String::as_str).collect(),
            Self::Read { key } | Self::Local { key } => key.as_deref().into_iter().collect(),
        }
    }

    /// What it makes of its keys, if it is done.
    pub(crate) fn changes(&self) -> Changes<'_> {
        let keys = self.keys().into_iter();
        match self {
            Self::Put { value, .. } | Self::Swap { value, .. } | Self::Together { value, .. } => {
                keys.map(|key| (key, Some(&**value))).collect()
            }
            Self::Transfer { values, .. } => {
                let values = values.iter().map(|value| Some(&**value));
                keys.zip(values).collect()
            }
            Self::Delete { .. } => keys.map(|key| (key, None)).collect(),
            Self::Read { .. } | Self::Local { .. } => Vec::new(),
        }
    }
}

/// What becomes of which keys, in order; `None`: it is gone.
pub(crate) type Changes<'a> = Vec<(&'a str, Option<&'a str>)>;

/// What is in an account, by its value; `None` if that is of no account.
pub(crate) fn balance(value: &str) -> Option<i64> {
    value.split_once('/')?.0.parse().ok()
}

impl Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_all = |key: &Option<String>| key.clone().unwrap_or("*".to_owned());
        match self {
            Self::Put { key, value } => write!(f, "put {key} {value}"),
            Self::Delete { key } => write!(f, "delete {key}"),
            Self::Swap {
                key,
                modified,
                value,
            } => write!(f, "swap {key} {modified} {value}"),
            Self::Together { keys, value } => write!(f, "together {value} {}", keys.join(" ")),
            Self::Transfer {
                keys: [from, to],
                modified: [taken_at, given_at],
                values: [left, got],
            } => write!(f, "transfer {from} {taken_at} {left} {to} {given_at} {got}"),
            Self::Read { key } => write!(f, "read {}", or_all(key)),
            Self::Local { key } => write!(f, "local {}", or_all(key)),
        }
    }
}

/// What a client heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Done {
        /// Of the answer's header.
        revision: i64,
        /// Whether something was changed.
        changed: bool,
        /// What was there before, or what was read.
        kvs: Vec<Kv>,
    },
    /// Certainly not done.
    Failed(String),
    /// Done or not.
    Unknown(String),
}

impl Heard {
    fn parse(words: &[&str]) -> Option<Self> {
        Some(match *words {
            ["ok", revision, changed, kvs] => Self::Done {
                revision: revision.parse().ok()?,
                changed: changed == "1",
                kvs: parse_list(kvs, Kv::parse)?,
            },
            ["failed", ref why @ ..] => Self::Failed(why.join(" ")),
            ["unknown", ref why @ ..] => Self::Unknown(why.join(" ")),
            _ => return None,
        })
    }
}

impl Display for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done {
                revision,
                changed,
                kvs,
            } => write!(f, "ok {revision} {} {}", u8::from(*changed), list(kvs)),
            Self::Failed(why) => write!(f, "failed {why}"),
            Self::Unknown(why) => write!(f, "unknown {why}"),
        }
    }
}

/// One request and what came of it.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// The process it was asked in.
    pub(crate) process: String,
    pub(crate) ask: Ask,
    pub(crate) asked_at: u64,
    pub(crate) heard: Heard,
    /// When it was heard; never, if the process was killed before.
    pub(crate) heard_at: Option<u64>,
}

impl Step {
    /// The revision of the answer, if there is one.
    pub(crate) fn revision(&self) -> Option<i64> {
        match &self.heard {
            Heard::Done { revision, .. } => Some(*revision),
            _ => None,
        }
    }

    /// The revision that the write is known to have.
    pub(crate) fn written(&self) -> Option<i64> {
        match &self.heard {
            Heard::Done {
                revision,
                changed: true,
                ..
            } if self.ask.is_write() => Some(*revision),
            _ => None,
        }
    }

    pub(crate) fn is_unknown_write(&self) -> bool {
        self.ask.is_write() && matches!(self.heard, Heard::Unknown(_))
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "[process {} at {}] {} -> {}",
            self.process, self.asked_at, self.ask, self.heard
        )
    }
}

/// A watch and what it was given.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) process: String,
    /// The first letter of its keys; all keys if there is none.
    pub(crate) prefix: Option<String>,
    /// 0: from then on.
    pub(crate) from: i64,
    pub(crate) began_at: u64,
    pub(crate) deliveries: Vec<Vec<Change>>,
}

/// What all clients of all processes saw.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) steps: Vec<Step>,
    pub(crate) watches: Vec<Watched>,
}

impl History {
    /// Adds what one process wrote. Its last line may be torn.
    pub(crate) fn add(&mut self, process: &str, text: &str) -> Result<(), String> {
        let mut asked: BTreeMap<&str, usize> = BTreeMap::new();
        let mut watching: BTreeMap<&str, usize> = BTreeMap::new();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in whole.lines() {
            let nonsense = || format!("process {process}: what is {line:?}?");
            let words: Vec<&str> = line.split(' ').collect();
            let [at, client, what, rest @ ..] = &words[..] else {
                return Err(nonsense());
            };
            let at = at.parse().map_err(|_| nonsense())?;
            match (*what, rest) {
                ("ask", ask) => {
                    asked.insert(client, self.steps.len());
                    self.steps.push(Step {
                        process: process.to_owned(),
                        ask: Ask::parse(ask).ok_or_else(nonsense)?,
                        asked_at: at,
                        heard: Heard::Unknown("killed".to_owned()),
                        heard_at: None,
                    });
                }
                ("watch", [prefix, from]) => {
                    watching.insert(client, self.watches.len());
                    self.watches.push(Watched {
                        process: process.to_owned(),
                        prefix: (*prefix != "*").then(|| (*prefix).to_owned()),
                        from: from.parse().map_err(|_| nonsense())?,
                        began_at: at,
                        deliveries: Vec::new(),
                    });
                }
                ("events", [changes]) => {
                    let watch = watching.get(client).ok_or_else(nonsense)?;
                    let changes = parse_list(changes, Change::parse).ok_or_else(nonsense)?;
                    self.watches[*watch].deliveries.push(changes);
                }
                _ => {
                    let step = asked.remove(client).ok_or_else(nonsense)?;
                    self.steps[step].heard = Heard::parse(&words[2..]).ok_or_else(nonsense)?;
                    self.steps[step].heard_at = Some(at);
                }
            }
        }
        Ok(())
    }
}

/// Where a process writes its history.
pub(crate) struct Recorder(Mutex<File>);

impl Recorder {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self(Mutex::new(File::create_new(path)?)))
    }

    /// One line; it outlives the process when this returns.
    pub(crate) fn note(&self, client: usize, what: impl Display) {
        let mut file = self.0.lock();
        let line = format!("{} {client} {what}\n", now());
        file.write_all(line.as_bytes())
            .expect("the history is kept");
    }
}

/// All events of a node from the first revision on, each with what was there
/// before, and its keys at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dump {
    pub(crate) events: Vec<(Change, Option<Kv>)>,
    pub(crate) state: Vec<Kv>,
}

impl Dump {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut dump = Self::default();
        for line in text.lines() {
            let nonsense = || format!("dump: what is {line:?}?");
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["event", change, before] => {
                    let change = Change::parse(change).ok_or_else(nonsense)?;
                    let before = parse_list(before, Kv::parse).ok_or_else(nonsense)?;
                    dump.events.push((change, before.into_iter().next()));
                }
                ["state", kvs] => {
                    dump.state = parse_list(kvs, Kv::parse).ok_or_else(nonsense)?;
                }
                _ => return Err(nonsense()),
            }
        }
        Ok(dump)
    }
}

impl Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (change, before) in &self.events {
            writeln!(f, "event {change} {}", list(before))?;
        }
        writeln!(f, "state {}", list(&self.state))
    }
}

/// What a replica has at an entry of its log, as a hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) group: u64,
    pub(crate) index: u64,
    pub(crate) hash: String,
}

impl Content {
    pub(crate) fn parse_all(text: &str) -> Option<Vec<Self>> {
        parse_list(text, |text| {
            let (position, hash) = text.split_once('=')?;
            let (group, index) = position.split_once('@')?;
            Some(Self {
                group: group.parse().ok()?,
                index: index.parse().ok()?,
                hash: hash.to_owned(),
            })
        })
    }
}

impl Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}={}", self.group, self.index, self.hash)
    }
}
