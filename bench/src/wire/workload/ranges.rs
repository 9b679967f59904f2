//! Clients that read.

use bytes::Bytes;
use pontoon_api::etcdserverpb::RangeRequest;
use rand::RngExt;
use rand::rngs::SmallRng;

use super::super::answers::{RangeAnswer, revision};
use super::super::connection::Rpc;
use super::super::draw::Draw;
use super::super::failure::Failure;
use super::super::templates::{REVISION_MARK, Template};
use super::{Ask, Client, Outcome, Plan};

pub(super) struct Ranges {
    template: Template,
    draw: Draw,
    keys: u64,
    /// None: a single key.
    limit: Option<u64>,
    /// Revisions, from the one to the other; none: the newest.
    history: Option<(i64, i64)>,
    asked: u64,
    rng: SmallRng,
}

impl Ranges {
    pub(super) fn new(plan: &Plan, rng: SmallRng, limit: Option<u64>, serializable: bool) -> Self {
        Self::with(plan, rng, limit, serializable, None)
    }

    /// At revisions before the last ones.
    pub(super) fn old(plan: &Plan, rng: SmallRng) -> Self {
        Self::with(plan, rng, Some(plan.limit), false, Some(plan.history))
    }

    fn with(
        plan: &Plan,
        rng: SmallRng,
        limit: Option<u64>,
        serializable: bool,
        history: Option<(i64, i64)>,
    ) -> Self {
        let end = match limit {
            Some(_) => plan.keys.key(plan.keys.count),
            None => Bytes::new(),
        };
        let request = RangeRequest {
            key: plan.keys.mark(),
            range_end: end,
            limit: limit.unwrap_or(0).cast_signed(),
            revision: history.map_or(0, |_| REVISION_MARK),
            serializable,
            ..Default::default()
        };
        Self {
            template: Template::new(&request, &[]),
            draw: plan.draw(),
            keys: plan.keys.count,
            limit,
            history,
            asked: 0,
            rng,
        }
    }
}

impl Client for Ranges {
    fn ask(&mut self) -> Ask {
        self.asked = self.draw.key(&mut self.rng);
        let revision = match self.history {
            Some((first, last)) => self.rng.random_range(first..=last),
            None => 0,
        };
        Ask::new(Rpc::Range, self.template.fill(self.asked, revision, 0))
    }

    fn check(&mut self, answer: &[u8]) -> Result<Outcome, Failure> {
        let in_range = match self.limit {
            Some(_) => self.keys - self.asked,
            None => 1,
        };
        check_page(answer, in_range, self.limit.unwrap_or(0))?;
        Ok(Outcome::Read)
    }
}

/// Looks whether a page of a range has what it must have; a limit of 0 is none.
fn check_page(answer: &[u8], in_range: u64, limit: u64) -> Result<RangeAnswer, Failure> {
    let answer = RangeAnswer::read(answer)?;
    if answer.count != in_range {
        return Err(Failure::Answer("a range with a wrong count"));
    }
    let returned = match limit {
        0 => in_range,
        limit => in_range.min(limit),
    };
    match answer.kvs == returned {
        true => Ok(answer),
        false => Err(Failure::Answer("a range with too few or too many keys")),
    }
}

/// Reads all keys page by page, again and again.
pub(super) struct Pages {
    template: Template,
    keys: u64,
    limit: u64,
    next: u64,
    /// Of the first page; 0 before it.
    revision: i64,
}

impl Pages {
    pub(super) fn new(plan: &Plan, mut rng: SmallRng) -> Self {
        let request = RangeRequest {
            key: plan.keys.mark(),
            range_end: plan.keys.key(plan.keys.count),
            limit: plan.limit.cast_signed(),
            revision: REVISION_MARK,
            ..Default::default()
        };
        Self {
            template: Template::new(&request, &[]),
            keys: plan.keys.count,
            limit: plan.limit,
            // Not all at the same page.
            next: rng.random_range(0..plan.keys.count),
            revision: 0,
        }
    }
}

impl Client for Pages {
    fn ask(&mut self) -> Ask {
        Ask::new(Rpc::Range, self.template.fill(self.next, self.revision, 0))
    }

    fn check(&mut self, answer: &[u8]) -> Result<Outcome, Failure> {
        let page = check_page(answer, self.keys - self.next, self.limit)?;
        if self.revision == 0 {
            self.revision = revision(answer)?;
        }
        self.next += page.kvs;
        if self.next >= self.keys {
            self.give_up();
        }
        Ok(Outcome::Read)
    }

    fn give_up(&mut self) {
        (self.next, self.revision) = (0, 0);
    }
}
