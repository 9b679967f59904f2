//! Clients that write.

use std::sync::Arc;
use std::time::Instant;

use pontoon_api::etcdserverpb::PutRequest;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::super::answers::{TxnAnswer, revision};
use super::super::connection::Rpc;
use super::super::draw::Draw;
use super::super::failure::Failure;
use super::super::templates::{REVISION_MARK, Template};
use super::super::txns::swap;
use super::{Ask, Client, Outcome, Plan, stamp_since};
use bytes::Bytes;

/// Templates that sizes are drawn for, if they differ.
const VARIANTS: usize = 256;

/// One template for each size that values have.
fn templates(plan: &Plan, of: impl Fn(Bytes) -> Template) -> Arc<[Template]> {
    let mut rng = SmallRng::seed_from_u64(plan.seed);
    let count = if plan.keys.values.is_fixed() {
        1
    } else {
        VARIANTS
    };
    (0..count)
        .map(|_| of(plan.keys.values.value(&mut rng)))
        .collect()
}

/// Any of them.
fn any<'a>(templates: &'a [Template], rng: &mut SmallRng) -> &'a Template {
    match templates {
        [one] => one,
        many => &many[rng.random_range(0..many.len())],
    }
}

pub(super) struct Puts {
    templates: Arc<[Template]>,
    draw: Draw,
    origin: Instant,
    rng: SmallRng,
}

impl Puts {
    pub(super) fn new(plan: &Plan, rng: SmallRng) -> Self {
        let made = plan.puts.get_or_init(|| {
            templates(plan, |value| {
                let request = PutRequest {
                    key: plan.keys.mark(),
                    value: value.clone(),
                    ..Default::default()
                };
                Template::new(&request, &value)
            })
        });
        Self {
            templates: made.clone(),
            draw: plan.draw(),
            origin: plan.origin,
            rng,
        }
    }
}

impl Client for Puts {
    fn ask(&mut self) -> Ask {
        let key = self.draw.key(&mut self.rng);
        let template = any(&self.templates, &mut self.rng);
        Ask::new(Rpc::Put, template.fill(key, 0, stamp_since(self.origin)))
    }

    fn check(&mut self, answer: &[u8]) -> Result<Outcome, Failure> {
        match revision(answer)? {
            0 => Err(Failure::Answer("a put without a revision")),
            revision => Ok(Outcome::Written(revision)),
        }
    }
}

pub(super) struct Swaps {
    templates: Arc<[Template]>,
    /// Its keys with the revision that each had when it was last seen.
    keys: Vec<(u64, i64)>,
    turn: usize,
    origin: Instant,
    rng: SmallRng,
}

impl Swaps {
    pub(super) fn new(plan: &Plan, number: usize, turn: usize) -> Self {
        let made = plan.swaps.get_or_init(|| {
            templates(plan, |value| {
                let request = swap(plan.keys.mark(), REVISION_MARK, value.clone(), 0);
                Template::new(&request, &value)
            })
        });
        let own = (number as u64..plan.keys.count).step_by(plan.clients);
        let keys: Vec<_> = own.map(|key| (key, plan.revisions[key as usize])).collect();
        assert!(!keys.is_empty(), "settings are checked: a key per client");
        Self {
            templates: made.clone(),
            turn: turn % keys.len(),
            keys,
            origin: plan.origin,
            rng: SmallRng::seed_from_u64(plan.seed ^ number as u64),
        }
    }
}

impl Client for Swaps {
    fn ask(&mut self) -> Ask {
        self.turn = (self.turn + 1) % self.keys.len();
        let (key, revision) = self.keys[self.turn];
        let template = any(&self.templates, &mut self.rng);
        let stamp = stamp_since(self.origin);
        Ask::new(Rpc::Txn, template.fill(key, revision, stamp))
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
