//! What the clients of a load ask, and what a good answer is.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use clap::ValueEnum;
use pontoon_api::etcdserverpb::compare::{CompareTarget, TargetUnion};
use pontoon_api::etcdserverpb::request_op::Request;
use pontoon_api::etcdserverpb::{Compare, PutRequest, RangeRequest, RequestOp, TxnRequest};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

use super::answers::{RangeAnswer, TxnAnswer, revision};
use super::connection::Rpc;
use super::failure::Failure;
use super::templates::{Keys, REVISION_MARK, Template};

/// A kind of load. All keys are drawn evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Puts.
    Put,
    /// Transactions as kube-apiserver makes them: put if the revision is the
    /// one that was seen last, else range. Every client has keys of its own.
    Cas,
    /// Linearizable gets.
    Get,
    /// Serializable gets.
    GetSerializable,
    /// Linearizable ranges with a limit, from any key to the last one.
    Range,
    /// Puts, and watchers that see every one of them.
    Watch,
}

impl Workload {
    /// As it is called on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Cas => "cas",
            Self::Get => "get",
            Self::GetSerializable => "get-serializable",
            Self::Range => "range",
            Self::Watch => "watch",
        }
    }

    /// Whether all keys must be there before.
    #[must_use]
    pub fn reads(self) -> bool {
        match self {
            Self::Put | Self::Watch => false,
            Self::Cas | Self::Get | Self::GetSerializable | Self::Range => true,
        }
    }

    /// One of its clients.
    #[must_use]
    pub fn client(self, plan: &Plan, number: usize) -> Box<dyn Client> {
        let mut rng = SmallRng::seed_from_u64(plan.seed ^ (number as u64) << 32);
        match self {
            Self::Put | Self::Watch => Box::new(Puts::new(plan, rng)),
            Self::Cas => {
                let turn = rng.random_range(0..plan.keys.count) as usize;
                Box::new(Swaps::new(plan, number, turn, rng))
            }
            Self::Get => Box::new(Ranges::new(plan, rng, None, false)),
            Self::GetSerializable => Box::new(Ranges::new(plan, rng, None, true)),
            Self::Range => Box::new(Ranges::new(plan, rng, Some(plan.limit), false)),
        }
    }
}

/// What all clients of a load know.
pub struct Plan {
    /// Their keys.
    pub keys: Keys,
    /// How many clients there are.
    pub clients: usize,
    /// Most keys of a range.
    pub limit: u64,
    /// Where chance begins.
    pub seed: u64,
    /// Values tell when they were sent, counted from here.
    pub origin: Instant,
    /// The revision of each key before the load, if the load must know.
    pub revisions: Arc<Vec<i64>>,
}

/// Now, as values tell it.
#[must_use]
pub fn stamp_since(origin: Instant) -> u64 {
    u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// One client: it asks, waits, and asks again.
pub trait Client: Send {
    /// The next request, with its prefix.
    fn ask(&mut self) -> (Rpc, Bytes);
    /// What the answer to it means.
    fn check(&mut self, answer: &[u8]) -> Result<Outcome, Failure>;
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It read.
    Read,
    /// It wrote, and this is the revision.
    Written(i64),
    /// It compared with what is no longer true.
    Conflict,
}

struct Puts {
    template: Template,
    keys: u64,
    origin: Instant,
    rng: SmallRng,
}

impl Puts {
    fn new(plan: &Plan, mut rng: SmallRng) -> Self {
        let value = value(&plan.keys, &mut rng);
        let request = PutRequest {
            key: plan.keys.mark(),
            value: value.clone(),
            ..Default::default()
        };
        Self {
            template: Template::new(&request, &value),
            keys: plan.keys.count,
            origin: plan.origin,
            rng,
        }
    }
}

impl Client for Puts {
    fn ask(&mut self) -> (Rpc, Bytes) {
        let key = self.rng.random_range(0..self.keys);
        let stamp = stamp_since(self.origin);
        (Rpc::Put, self.template.fill(key, 0, stamp))
    }

    fn check(&mut self, answer: &[u8]) -> Result<Outcome, Failure> {
        match revision(answer)? {
            0 => Err(Failure::Answer("a put without a revision")),
            revision => Ok(Outcome::Written(revision)),
        }
    }
}

struct Swaps {
    template: Template,
    /// Its keys with the revision that each had when it was last seen.
    keys: Vec<(u64, i64)>,
    turn: usize,
    origin: Instant,
}

impl Swaps {
    fn new(plan: &Plan, number: usize, turn: usize, mut rng: SmallRng) -> Self {
        let value = value(&plan.keys, &mut rng);
        let key = plan.keys.mark();
        let op = |request| RequestOp {
            request: Some(request),
        };
        let request = TxnRequest {
            compare: vec![Compare {
                target: CompareTarget::Mod.into(),
                key: key.clone(),
                target_union: Some(TargetUnion::ModRevision(REVISION_MARK)),
                ..Default::default()
            }],
            success: vec![op(Request::RequestPut(PutRequest {
                key: key.clone(),
                value: value.clone(),
                ..Default::default()
            }))],
            failure: vec![op(Request::RequestRange(RangeRequest {
                key,
                ..Default::default()
            }))],
        };
        let own = (number as u64..plan.keys.count).step_by(plan.clients);
        let keys: Vec<_> = own.map(|key| (key, plan.revisions[key as usize])).collect();
        assert!(!keys.is_empty(), "settings are checked: a key per client");
        Self {
            template: Template::new(&request, &value),
            turn: turn % keys.len(),
            keys,
            origin: plan.origin,
        }
    }
}

impl Client for Swaps {
    fn ask(&mut self) -> (Rpc, Bytes) {
        self.turn = (self.turn + 1) % self.keys.len();
        let (key, revision) = self.keys[self.turn];
        let stamp = stamp_since(self.origin);
        (Rpc::Txn, self.template.fill(key, revision, stamp))
    }

    fn check(&mut self, answer: &[u8]) -> Result<Outcome, Failure> {
        let (revision, outcome) = match TxnAnswer::read(answer)? {
            TxnAnswer::Succeeded(0) => {
                return Err(Failure::Answer("a transaction without a revision"));
            }
            TxnAnswer::Succeeded(revision) => (revision, Outcome::Written(revision)),
            TxnAnswer::Failed(range) => (range.mod_revision, Outcome::Conflict),
        };
        self.keys[self.turn].1 = revision;
        Ok(outcome)
    }
}

struct Ranges {
    template: Template,
    keys: u64,
    /// None: a single key.
    limit: Option<u64>,
    asked: u64,
    rng: SmallRng,
}

impl Ranges {
    fn new(plan: &Plan, rng: SmallRng, limit: Option<u64>, serializable: bool) -> Self {
        let end = match limit {
            Some(_) => plan.keys.key(plan.keys.count),
            None => Bytes::new(),
        };
        let request = RangeRequest {
            key: plan.keys.mark(),
            range_end: end,
            limit: limit.unwrap_or(0).cast_signed(),
            serializable,
            ..Default::default()
        };
        Self {
            template: Template::new(&request, &[]),
            keys: plan.keys.count,
            limit,
            asked: 0,
            rng,
        }
    }
}

impl Client for Ranges {
    fn ask(&mut self) -> (Rpc, Bytes) {
        self.asked = self.rng.random_range(0..self.keys);
        (Rpc::Range, self.template.fill(self.asked, 0, 0))
    }

    fn check(&mut self, answer: &[u8]) -> Result<Outcome, Failure> {
        let answer = RangeAnswer::read(answer)?;
        let in_range = match self.limit {
            Some(_) => self.keys - self.asked,
            None => 1,
        };
        if answer.count != in_range {
            return Err(Failure::Answer("a range with a wrong count"));
        }
        let returned = match self.limit {
            None | Some(0) => in_range,
            Some(limit) => in_range.min(limit),
        };
        match answer.kvs == returned {
            true => Ok(Outcome::Read),
            false => Err(Failure::Answer("a range with too few or too many keys")),
        }
    }
}

fn value(keys: &Keys, rng: &mut SmallRng) -> Bytes {
    let mut value = vec![0; keys.value_bytes];
    rng.fill_bytes(&mut value);
    value.into()
}
