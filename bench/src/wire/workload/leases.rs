//! Clients that live by leases.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use pontoon_api::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, PutRequest,
};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::super::answers::{lease, lease_ttl, revision};
use super::super::connection::Rpc;
use super::super::expiries::Expiries;
use super::super::failure::Failure;
use super::super::fill::framed;
use super::super::templates::{Keys, with_stamp};
use super::super::values::ValueSizes;
use super::{Ask, Client, Outcome, Plan, stamp_since};

pub(super) const CLASSES: [(&str, bool); 4] = [
    ("grant", false),
    ("attach", false),
    ("keep-alive", false),
    ("revoke", false),
];

/// Signs of life before a lease is revoked or left.
const SIGNS: u32 = 3;

/// As values tell time.
const SECOND: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug)]
enum Step {
    Grant,
    Attach,
    KeepAlive(u32),
    Revoke,
}

pub(super) struct Leases {
    keys: Keys,
    number: u64,
    clients: u64,
    ttl_secs: i64,
    origin: Instant,
    rng: SmallRng,
    step: Step,
    lease: i64,
    /// What is attached to it.
    key: Bytes,
    /// When the last sign of life was sent.
    sign: u64,
    expiries: Arc<Expiries>,
    /// Leases that it had; every second one is left to expire.
    had: u64,
}

impl Leases {
    pub(super) fn new(plan: &Plan, number: usize, mut rng: SmallRng) -> Self {
        Self {
            keys: plan.keys.clone(),
            number: number as u64,
            clients: plan.clients as u64,
            ttl_secs: plan.lease_ttl_secs,
            origin: plan.origin,
            had: rng.random_range(0..2),
            rng,
            step: Step::Grant,
            lease: 0,
            key: Bytes::new(),
            sign: 0,
            expiries: plan.expiries.clone(),
        }
    }

    fn next_lease(&mut self) {
        self.had += 1;
        self.step = Step::Grant;
    }
}

impl Client for Leases {
    fn ask(&mut self) -> Ask {
        let id = self.lease;
        match self.step {
            Step::Grant => {
                let ttl = self.ttl_secs;
                Ask::new(Rpc::Grant, framed(&LeaseGrantRequest { ttl, id: 0 }))
            }
            Step::Attach => {
                // A key whose last lease was left would be deleted by it, were
                // it not another key's turn.
                let key = (self.number + self.had * self.clients) % self.keys.count;
                self.key = self.keys.key(key);
                self.expiries.forget(&self.key);
                let sizes: ValueSizes = self.keys.values;
                let request = PutRequest {
                    key: self.key.clone(),
                    value: with_stamp(sizes.value(&mut self.rng), stamp_since(self.origin)),
                    lease: id,
                    ..Default::default()
                };
                Ask::new(Rpc::Put, framed(&request)).of_class(1)
            }
            Step::KeepAlive(_) => {
                self.sign = stamp_since(self.origin);
                let request = LeaseKeepAliveRequest { id };
                Ask::new(Rpc::KeepAlive, framed(&request)).of_class(2)
            }
            Step::Revoke => Ask::new(Rpc::Revoke, framed(&LeaseRevokeRequest { id })).of_class(3),
        }
    }

    fn check(&mut self, answer: &[u8]) -> Result<Outcome, Failure> {
        match self.step {
            Step::Grant => {
                self.lease = lease(answer)?;
                if self.lease == 0 {
                    return Err(Failure::Answer("a grant without a lease"));
                }
                self.step = Step::Attach;
            }
            Step::Attach => {
                self.step = Step::KeepAlive(1);
                return Ok(Outcome::Written(revision(answer)?));
            }
            Step::KeepAlive(count) => {
                let ttl_secs = lease_ttl(answer)?;
                if ttl_secs <= 0 {
                    return Err(Failure::Answer("a lease ended that was kept alive"));
                }
                match count {
                    SIGNS if self.had.is_multiple_of(2) => self.step = Step::Revoke,
                    SIGNS => {
                        // Since it was sent then, no server may end it sooner.
                        let ttl = ttl_secs.cast_unsigned().saturating_mul(SECOND);
                        let due = self.sign.saturating_add(ttl);
                        self.expiries.expect(self.key.clone(), due);
                        self.next_lease();
                    }
                    count => self.step = Step::KeepAlive(count + 1),
                }
            }
            Step::Revoke => self.next_lease(),
        }
        Ok(Outcome::Read)
    }

    fn give_up(&mut self) {
        self.next_lease();
    }
}
