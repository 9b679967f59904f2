//! Histories that break a promise are found out, and the same ones without
//! the flaw are not.

use std::time::Duration;

use bytes::Bytes;
use pontoon_engine::{
    Answer, Change, Event, EventKind, KeyRange, KeyValue, Op, Put, PutAnswer, Range, RangeAnswer,
    Reject, Request, Revision, Txn,
};
use pontoon_raftgroup::{Failure, LeaseGranted, LeaseStatus, NodeId};

use super::{accounts, leases, lost, reads};
use crate::history::{Asked, History, Operation, Outcome};
use crate::plan::Plan;

fn plan() -> Plan {
    let mut plan = Plan::of(1);
    plan.shape.seconds = vec![90, 110, 100];
    (plan.letters, plan.accounts) = (2, 1);
    plan
}

impl History {
    /// Something asked and answered within 100 ms.
    fn did(&mut self, at_ms: u64, asked: Asked, outcome: Outcome) {
        let (invoked, returned) = (self.tick(), self.tick());
        self.operations.push(Operation {
            client: 1,
            node: NodeId(1),
            start: 1,
            at: Duration::from_millis(at_ms),
            invoked,
            returned,
            until: Duration::from_millis(at_ms + 100),
            asked,
            outcome,
        });
    }

    fn grants(&mut self, at_ms: u64) {
        let (id, ttl_secs) = (7, 10);
        let revision = Revision(1);
        let granted = LeaseGranted {
            id,
            ttl_secs,
            revision,
        };
        let outcome = Outcome::Granted(granted);
        self.did(at_ms, Asked::Grant { id, ttl_secs }, outcome);
    }

    /// Puts a key on the lease, in the revision after that of the newest write.
    fn puts(&mut self, at_ms: u64, key: &'static str) {
        let value = Bytes::from(self.operations.len().to_string());
        let last = self.truth.writes.keys().next_back();
        let revision = Revision(last.map_or(2, |last| last + 1));
        let put = Put {
            key: key.into(),
            value: value.clone(),
            lease: 7,
            ..Put::default()
        };
        let answer = PutAnswer {
            revision,
            prev_kv: None,
        };
        let asked = Asked::Request(Request::Put(put));
        self.did(at_ms, asked, Outcome::Answer(Answer::Put(answer)));
        let kv = KeyValue {
            key: key.into(),
            value,
            create: revision,
            modified: revision,
            version: 1,
            lease: 7,
        };
        self.sees(at_ms, revision.0, 0, EventKind::Put, kv);
    }

    fn deletes(&mut self, at_ms: u64, revision: i64, sub: u32, key: &'static str) {
        let key = key.into();
        let kv = KeyValue {
            key,
            ..KeyValue::default()
        };
        self.sees(at_ms, revision, sub, EventKind::Delete, kv);
    }

    fn sees(&mut self, at_ms: u64, revision: i64, sub: u32, kind: EventKind, kv: KeyValue) {
        let revision = Revision(revision);
        let event = Event {
            change: Change { revision, sub },
            kind,
            kv,
            prev_kv: None,
        };
        let now = Duration::from_millis(at_ms);
        self.truth.add(now, NodeId(1), &[event]);
    }
}

/// A lease that is granted at 0 for ten seconds, with two keys.
fn leased() -> History {
    let mut history = History::default();
    history.grants(0);
    history.puts(200, "a0");
    history.puts(400, "b0");
    history
}

#[test]
fn a_lease_that_ends_early_is_found_out() {
    // The shortest second of a node is 90 % of one.
    for (at_ms, is_right) in [(8_800, false), (9_100, true)] {
        let mut history = leased();
        history.deletes(at_ms, 4, 0, "a0");
        history.deletes(at_ms, 4, 1, "b0");
        assert_eq!(lost::check(&history), Ok(()));
        assert_eq!(leases::check(&plan(), &history).is_ok(), is_right);

        let mut history = History::default();
        history.grants(0);
        history.did(at_ms, Asked::KeepAlive(7), Outcome::Alive(None));
        assert_eq!(leases::check(&plan(), &history).is_ok(), is_right);
    }
}

#[test]
fn a_lease_that_goes_in_parts_is_found_out() {
    let mut history = leased();
    history.deletes(12_000, 4, 0, "a0");
    history.deletes(12_000, 5, 0, "b0");
    assert!(lost::check(&history).is_err());
}

#[test]
fn a_lease_that_comes_back_is_found_out() {
    let mut history = History::default();
    history.grants(0);
    let not_found = Outcome::Failed(Failure::Reject(Reject::LeaseNotFound));
    history.did(11_000, Asked::Revoke(7), not_found);
    history.did(12_000, Asked::KeepAlive(7), Outcome::Alive(Some(10)));
    assert!(leases::check(&plan(), &history).is_err());

    // That it was granted again explains it.
    let mut history = History::default();
    history.did(0, Asked::KeepAlive(7), Outcome::Alive(None));
    history.grants(1_000);
    history.did(2_000, Asked::KeepAlive(7), Outcome::Alive(Some(10)));
    assert_eq!(leases::check(&plan(), &history), Ok(()));
}

#[test]
fn a_key_that_outlives_its_lease_is_found_out() {
    let history = leased();
    assert!(leases::check(&plan(), &history).is_err());
}

#[test]
fn a_status_with_the_wrong_keys_is_found_out() {
    let told = [
        (&["a0", "b0"][..], true),
        (&["a0"], false),
        (&["a0", "b0", "c0"], false),
    ];
    for (keys, is_right) in told {
        let mut history = leased();
        let status = LeaseStatus {
            ttl_secs: 9,
            granted_secs: 10,
            keys: keys
                .iter()
                .map(|key| Bytes::from_static(key.as_bytes()))
                .collect(),
        };
        let asked = Asked::Status { id: 7, keys: true };
        history.did(600, asked, Outcome::Status(Some(status)));
        history.puts(800, "c0");
        for (sub, key) in (0..).zip(["a0", "b0", "c0"]) {
            history.deletes(12_000, 5, sub, key);
        }
        assert_eq!(leases::check(&plan(), &history).is_ok(), is_right);
    }
}

#[test]
fn a_torn_transfer_is_found_out() {
    for (balances, is_right) in [([70, 130], true), ([70, 100], false)] {
        let kv = |(key, balance): (&'static str, i64)| KeyValue {
            key: key.into(),
            value: format!("0={balance}").into(),
            ..KeyValue::default()
        };
        let answer = RangeAnswer {
            kvs: ["a!0", "b!0"].into_iter().zip(balances).map(kv).collect(),
            count: 2,
            ..RangeAnswer::default()
        };
        let mut history = History::default();
        let asked = Asked::Serializable(Range::of(KeyRange::all()));
        history.did(0, asked, Outcome::Answer(Answer::Range(answer)));
        assert_eq!(accounts::check(&plan(), &history).is_ok(), is_right);
    }
}

/// Nobody was told what came of it, but it must have been all or nothing.
#[test]
fn a_torn_transaction_is_found_out() {
    for (keys, is_right) in [(&["a0", "b0"][..], true), (&["b0"], false)] {
        let put = |key: &'static str| Put {
            key: key.into(),
            value: "0".into(),
            ..Put::default()
        };
        let txn = Txn {
            success: ["a0", "b0"].map(|key| Op::Put(put(key))).into(),
            ..Txn::default()
        };
        let mut history = History::default();
        let asked = Asked::Request(Request::Txn(txn));
        history.did(0, asked, Outcome::Unknown("timed out"));
        for (sub, key) in (0..).zip(["a0", "b0"]) {
            let kv = KeyValue {
                key: key.into(),
                value: "0".into(),
                create: Revision(2),
                modified: Revision(2),
                version: 1,
                lease: 0,
            };
            if keys.contains(&key) {
                history.sees(0, 2, sub, EventKind::Put, kv);
            }
        }
        assert_eq!(reads::check(&history).is_ok(), is_right);
    }
}
