//! What clients ask for.
//!
//! Kept true: no two writes of a run put the same value, so a write is known
//! by its value; and a transfer takes from one account what it gives to the
//! other.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use pontoon_engine::{
    Answer, Compare, DeleteRange, KeyRange, Op, Operand, Put, Range, Relation, Request, Txn,
};
use pontoon_raftgroup::Failure;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::history::{Ask, Heard, Kv, balance};

/// What the clients of a run are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Keys that are put, swapped and deleted, each in one group.
    Keys,
    /// Money that goes from one account to another, in any two groups.
    Transfers,
}

/// Keys of each letter.
const KEYS: u32 = 6;

/// What is in an account at first.
const BALANCE: i64 = 100;

/// The most that is transferred at once.
const AMOUNT_MAX: i64 = 20;

impl Load {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Keys => "keys",
            Self::Transfers => "transfers",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let all = [Self::Keys, Self::Transfers];
        all.into_iter().find(|load| load.name() == name)
    }

    /// What keys begin with. A group has all keys of a letter or none.
    pub(crate) fn letters(self) -> impl Iterator<Item = char> + Clone {
        match self {
            Self::Keys => "acegi".chars(),
            Self::Transfers => "abcdefghijklmnop".chars(),
        }
    }

    /// Where the keys of a new cluster are cut.
    pub(crate) fn first_splits(self) -> impl Iterator<Item = char> {
        let letters_of_group = match self {
            Self::Keys => 1,
            Self::Transfers => 2,
        };
        self.letters().step_by(letters_of_group).skip(1)
    }

    /// Where they can be cut besides.
    pub(crate) fn later_splits(self) -> impl Iterator<Item = char> {
        let first: Vec<char> = self.first_splits().collect();
        let mut letters = self.letters().skip(1);
        std::iter::from_fn(move || letters.find(|letter| !first.contains(letter)))
    }

    /// The first write, which opens all accounts; `None` if there are none.
    pub(crate) fn opening(self, name: &str) -> Option<Ask> {
        (self == Self::Transfers).then(|| Ask::Together {
            keys: accounts(),
            value: format!("{BALANCE}/{name}"),
        })
    }

    /// A write to all groups.
    pub(crate) fn mark(self, name: &str) -> Ask {
        Ask::Together {
            keys: self.letters().map(|letter| format!("{letter}z")).collect(),
            value: name.to_owned(),
        }
    }
}

/// Five for each of the first groups.
fn accounts() -> Vec<String> {
    let letters = Load::Transfers.letters().zip([3, 2].into_iter().cycle());
    letters
        .flat_map(|(letter, count)| (0..count).map(move |number| format!("{letter}{number}")))
        .collect()
}

/// One who asks for one thing after another.
pub(crate) struct Client {
    load: Load,
    rng: SmallRng,
    /// Nobody else's.
    name: String,
    asked: u64,
    known: BTreeMap<String, Known>,
    /// Accounts that had changed when a transfer came.
    again: Option<[String; 2]>,
}

/// What a client has heard of a key.
#[derive(Clone, Copy)]
struct Known {
    modified: i64,
    balance: i64,
}

impl Client {
    pub(crate) fn new(load: Load, name: String) -> Self {
        let seed = name
            .bytes()
            .fold(u64::from(std::process::id()), |sum, byte| {
                sum.wrapping_mul(31).wrapping_add(u64::from(byte))
            });
        Self {
            load,
            rng: SmallRng::seed_from_u64(seed),
            name,
            asked: 0,
            known: BTreeMap::new(),
            again: None,
        }
    }

    /// The next thing to ask for.
    pub(crate) fn next(&mut self) -> Ask {
        self.asked += 1;
        match self.load {
            Load::Keys => self.some_key(),
            Load::Transfers => match self.rng.random_range(0..10) {
                0..2 => Ask::Read { key: None },
                2..4 => Ask::Local { key: None },
                _ => self.transfer().unwrap_or(Ask::Read { key: None }),
            },
        }
    }

    fn value(&self) -> String {
        format!("n{}i{}", self.name, self.asked)
    }

    fn some_key(&mut self) -> Ask {
        let letters = self.load.letters();
        let at = self.rng.random_range(0..letters.clone().count());
        let letter = letters.clone().nth(at).expect("it is one of them");
        let number = self.rng.random_range(0..KEYS);
        let key = format!("{letter}{number}");
        let value = self.value();
        match self.rng.random_range(0..100) {
            0..35 => Ask::Put { key, value },
            35..45 => Ask::Delete { key },
            45..60 => Ask::Swap {
                modified: self.known.get(&key).map_or(0, |known| known.modified),
                key,
                value,
            },
            60..70 => Ask::Together {
                keys: vec![key, format!("{letter}{}", (number + 1) % KEYS)],
                value,
            },
            70..82 => Ask::Read { key: Some(key) },
            82..88 => Ask::Read { key: None },
            88..94 => Ask::Local { key: Some(key) },
            _ => Ask::Local { key: None },
        }
    }

    /// A transfer between two accounts; `None` if they are not known.
    fn transfer(&mut self) -> Option<Ask> {
        let keys = self.again.take().unwrap_or_else(|| {
            let mut accounts = accounts();
            let mut any = || accounts.swap_remove(self.rng.random_range(0..accounts.len()));
            [any(), any()]
        });
        let [from, to] = [*self.known.get(&keys[0])?, *self.known.get(&keys[1])?];
        let most = from.balance.min(AMOUNT_MAX);
        let amount = self.rng.random_range(0..=most);
        let name = self.value();
        Some(Ask::Transfer {
            keys,
            modified: [from.modified, to.modified],
            values: [from.balance - amount, to.balance + amount]
                .map(|balance| format!("{balance}/{name}")),
        })
    }

    /// Learns from an answer; returns after which pause to go on.
    pub(crate) fn hear(&mut self, ask: &Ask, heard: &Heard) -> Duration {
        let Heard::Done {
            revision,
            changed,
            kvs,
        } = heard
        else {
            return Duration::from_millis(self.rng.random_range(20..60));
        };
        for key in ask.keys() {
            self.known.remove(key);
        }
        let there = kvs
            .iter()
            .map(|kv| (kv.key.as_str(), Some(kv.value.as_str()), kv.modified));
        let changes = ask.changes().into_iter().filter(|_| *changed);
        let changes = changes.map(|(key, value)| (key, value, *revision));
        for (key, value, modified) in there.chain(changes) {
            self.known.remove(key);
            if let Some(value) = value {
                let balance = balance(value).unwrap_or_default();
                let known = Known { modified, balance };
                self.known.insert(key.to_owned(), known);
            }
        }
        match ask {
            Ask::Transfer { keys, .. } if !changed => self.again = Some(keys.clone()),
            _ => {}
        }
        Duration::from_millis(self.rng.random_range(2..15))
    }
}

/// A key, or all.
pub(crate) fn keys(key: Option<&str>) -> KeyRange {
    key.map_or(KeyRange::all(), |key| KeyRange::one(key.to_owned()))
}

/// What a node is asked for.
pub(crate) fn request(ask: &Ask) -> Request {
    let put = |key: &str, value: &str, prev_kv| Put {
        key: key.to_owned().into(),
        value: Bytes::from(value.to_owned()),
        prev_kv,
        ..Put::default()
    };
    let unchanged = |key: &str, modified: i64| Compare {
        keys: keys(Some(key)),
        operand: Operand::Modified(modified),
        relation: Relation::Equal,
    };
    let read = |key: &str| Op::Range(Range::of(keys(Some(key))));
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
            compare: vec![unchanged(key, *modified)],
            success: vec![Op::Put(put(key, value, false))],
            failure: vec![read(key)],
        }),
        Ask::Together { keys, value } => Request::Txn(Txn {
            success: keys
                .iter()
                .map(|key| Op::Put(put(key, value, false)))
                .collect(),
            ..Txn::default()
        }),
        Ask::Transfer {
            keys,
            modified,
            values,
        } => {
            let both = || keys.iter();
            let puts = both().zip(values);
            Request::Txn(Txn {
                compare: both()
                    .zip(modified)
                    .map(|(key, modified)| unchanged(key, *modified))
                    .collect(),
                success: puts
                    .map(|(key, value)| Op::Put(put(key, value, false)))
                    .collect(),
                failure: both().map(|key| read(key)).collect(),
            })
        }
        Ask::Read { key } | Ask::Local { key } => Request::Range(Range::of(keys(key.as_deref()))),
    }
}

/// What a client hears in an answer.
pub(crate) fn heard(answer: Result<Answer, Failure>) -> Heard {
    let kvs = |kvs: &[pontoon_engine::KeyValue]| kvs.iter().map(Kv::from).collect();
    let (revision, changed, kvs) = match answer {
        Ok(Answer::Range(answer)) => (answer.revision, false, kvs(&answer.kvs)),
        Ok(Answer::Put(answer)) => (answer.revision, true, kvs(answer.prev_kv.as_slice())),
        Ok(Answer::DeleteRange(answer)) => {
            (answer.revision, answer.deleted > 0, kvs(&answer.prev_kvs))
        }
        Ok(Answer::Txn(answer)) => {
            let found = answer.answers.iter().flat_map(|answer| match answer {
                Answer::Range(found) => &found.kvs[..],
                _ => &[],
            });
            let found = found.map(Kv::from).collect();
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
