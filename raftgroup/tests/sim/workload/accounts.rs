//! Accounts, spread over all letters, between which clients transfer.
//!
//! Kept true: an account is written by nothing else, so the sum of all
//! balances never changes.

use bytes::Bytes;
use pontoon_engine::{
    Compare, KeyRange, KeyValue, Op, Operand, Put, Range, Relation, Request, Txn,
};

use super::first;
use super::make::Maker;
use crate::history::Asked;
use crate::plan::Plan;

/// What is in each account at first.
const DEPOSIT: i64 = 100;

/// All accounts. They sort before the other keys with their letter.
pub(crate) fn all(plan: &Plan) -> Vec<Bytes> {
    let letters = 0..plan.letters;
    let accounts = letters.flat_map(|letter| {
        let of_letter = 0..plan.accounts;
        of_letter.map(move |number| format!("{}!{number}", first(letter)).into())
    });
    accounts.collect()
}

/// What all accounts have together.
pub(crate) fn total(plan: &Plan) -> i64 {
    DEPOSIT * all(plan).len() as i64
}

/// What is in an account; its value also names who wrote it.
pub(crate) fn balance(kv: &KeyValue) -> Option<i64> {
    let text = std::str::from_utf8(&kv.value).ok()?;
    text.split_once('=')?.1.parse().ok()
}

/// A transfer, or a look at all accounts; the first ones open them.
pub(super) fn asked(maker: &mut Maker<'_>, id: usize) -> Asked {
    let accounts = all(maker.plan);
    let rng = &mut *maker.rng;
    if rng.chance(1, 3) {
        maker.kind = "ask: all accounts";
        let range = Range::of(KeyRange::all());
        return match rng.chance(1, 2) {
            true => Asked::Request(Request::Range(range)),
            false => Asked::Serializable(range),
        };
    }
    let mut any = || accounts[rng.below(accounts.len() as u64) as usize].clone();
    let (one, other) = (any(), any());
    let by_value = rng.chance(1, 4);
    let amount = rng.below(50) as i64;
    let known = |key| maker.known.get(key).and_then(|kv| Some((kv, balance(kv)?)));
    let (Some(from), Some(to)) = (known(&one), known(&other)) else {
        maker.kind = "ask: open accounts";
        return open(accounts, id);
    };
    maker.kind = "ask: transfer";
    if one == other {
        maker.kind = "ask: an account";
        return Asked::Request(Request::Range(Range::of(KeyRange::one(one))));
    }
    let unchanged = |kv: &KeyValue| Compare {
        keys: KeyRange::one(kv.key.clone()),
        operand: match by_value {
            true => Operand::Value(kv.value.clone()),
            false => Operand::Modified(kv.modified.0),
        },
        relation: Relation::Equal,
    };
    let read = |key: &Bytes| Op::Range(Range::of(KeyRange::one(key.clone())));
    Asked::Request(Request::Txn(Txn {
        compare: vec![unchanged(from.0), unchanged(to.0)],
        success: vec![
            put(&one, id, from.1 - amount),
            put(&other, id, to.1 + amount),
            // So that what was written is known.
            read(&one),
            read(&other),
        ],
        failure: vec![read(&one), read(&other)],
    }))
}

fn open(accounts: Vec<Bytes>, id: usize) -> Asked {
    let absent = accounts.iter().map(|key| Compare {
        keys: KeyRange::one(key.clone()),
        operand: Operand::Create(0),
        relation: Relation::Equal,
    });
    Asked::Request(Request::Txn(Txn {
        compare: absent.collect(),
        success: accounts.iter().map(|key| put(key, id, DEPOSIT)).collect(),
        failure: vec![Op::Range(Range::of(KeyRange::all()))],
    }))
}

fn put(key: &Bytes, id: usize, balance: i64) -> Op {
    Op::Put(Put {
        key: key.clone(),
        value: format!("{id}={balance}").into(),
        ..Put::default()
    })
}
