//! etcd's quirks, each as it was seen on a running etcd, and what is and isn't
//! known of revisions that are not granted.

use std::path::Path;

use pontoon_wal::disk::Disk;
use pontoon_wal::disk::sim::SimDisk;

use super::*;
use crate::entry::{Entry, Step};
use crate::position::Applied;
use crate::request::{Compare, Operand, Relation, SortOrder, SortTarget, Txn};
use crate::store::Config;

/// A store with lease 7, where requests are done one after the other.
struct Fixture {
    store: Store,
    pending: Pending,
}

impl Fixture {
    fn new() -> Self {
        let disk = SimDisk::new(0);
        disk.create_dir(Path::new("/engine")).unwrap();
        Self {
            store: Store::open(&disk, Path::new("/engine/tree"), Config::default()).unwrap(),
            pending: Pending::new(),
        }
    }

    /// Evaluates without doing it.
    fn evaluate(
        &self,
        own: Revision,
        request: impl Into<Request>,
    ) -> Result<Evaluated, EngineError> {
        let request = request.into();
        check(&request, 128)?;
        let base = self.store.revision();
        evaluate(
            &self.store,
            &self.pending,
            base,
            own,
            &|lease| lease == 7,
            &request,
        )
    }

    fn run(&self, request: impl Into<Request>) -> Result<Answer, EngineError> {
        let revision = self.store.revision().next();
        let Evaluated {
            answer, effects, ..
        } = self.evaluate(revision, request)?;
        if !effects.is_empty() {
            self.append(Step::Write { revision, effects });
        }
        Ok(answer)
    }

    fn append(&self, step: Step) {
        let index = self.store.applied().index + 1;
        let applied = Applied {
            index,
            ..Applied::default()
        };
        let steps = vec![step];
        self.store.apply(&Entry { applied, steps }).unwrap();
    }

    /// Evaluates, and leaves it waiting without a revision.
    fn queue(&mut self, ticket: Ticket, request: impl Into<Request>) -> Evaluated {
        let own = Revision::of(ticket);
        let evaluated = self.evaluate(own, request).unwrap();
        self.pending.add(ticket, own, evaluated.changes.clone());
        evaluated
    }
}

impl From<Range> for Request {
    fn from(range: Range) -> Self {
        Self::Range(range)
    }
}

impl From<Put> for Request {
    fn from(put: Put) -> Self {
        Self::Put(put)
    }
}

impl From<DeleteRange> for Request {
    fn from(delete: DeleteRange) -> Self {
        Self::DeleteRange(delete)
    }
}

impl From<Txn> for Request {
    fn from(txn: Txn) -> Self {
        Self::Txn(txn)
    }
}

fn put(key: &'static str, value: &'static str) -> Put {
    Put {
        key: key.into(),
        value: value.into(),
        ..Put::default()
    }
}

fn delete(key: &'static str, end: &'static str) -> DeleteRange {
    DeleteRange {
        keys: KeyRange::new(key, end),
        prev_kv: false,
    }
}

fn all() -> Range {
    Range::of(KeyRange::all())
}

/// A transaction without conditions.
fn then<const N: usize>(success: [Op; N]) -> Txn {
    Txn {
        success: success.into(),
        ..Txn::default()
    }
}

fn when(key: &'static str, operand: Operand, relation: Relation) -> Txn {
    Txn {
        compare: vec![Compare {
            keys: KeyRange::one(key),
            operand,
            relation,
        }],
        ..Txn::default()
    }
}

fn ranged(answer: Answer) -> RangeAnswer {
    match answer {
        Answer::Range(answer) => answer,
        other => panic!("{other:?} is no answer to a range"),
    }
}

fn txned(answer: Answer) -> TxnAnswer {
    match answer {
        Answer::Txn(answer) => answer,
        other => panic!("{other:?} is no answer to a transaction"),
    }
}

fn keys(answer: &RangeAnswer) -> Vec<&str> {
    let keys = answer.kvs.iter().map(|kv| std::str::from_utf8(&kv.key));
    keys.collect::<Result<_, _>>().unwrap()
}

/// The revisions that the answers inside a transaction tell.
fn headers(answer: &TxnAnswer) -> Vec<i64> {
    let headers = answer.answers.iter().map(|answer| match answer {
        Answer::Range(answer) => answer.revision.0,
        Answer::Put(answer) => answer.revision.0,
        Answer::DeleteRange(answer) => answer.revision.0,
        Answer::Txn(answer) => answer.revision.0,
        Answer::LeaseRevoke(revision) => revision.0,
    });
    headers.collect()
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(outcome: Result<T, EngineError>, why: Reject) {
    match outcome {
        Err(EngineError::Reject(reject)) => assert_eq!(reject, why),
        other => panic!("{other:?} instead of {why:?}"),
    }
}

#[test]
fn a_range_the_wrong_way_round_is_empty() {
    let store = Fixture::new();
    store.run(put("b", "1")).unwrap();
    for end in ["b", "a"] {
        let range = Range::of(KeyRange::new("b", end));
        assert_eq!(ranged(store.run(range).unwrap()).count, 0);
    }
}

#[test]
fn a_negative_revision_is_the_newest_but_not_in_a_transaction() {
    let store = Fixture::new();
    store.run(put("a", "1")).unwrap();
    let negative = Range {
        revision: -1,
        ..all()
    };
    // -1 is where the floor is at first.
    store.run(then([Op::Range(negative.clone())])).unwrap();
    store.append(Step::Compact { floor: Revision(2) });
    assert_eq!(ranged(store.run(negative.clone()).unwrap()).count, 1);
    let txn = then([Op::Range(negative)]);
    assert_refused(store.run(txn), Reject::Compacted);
}

#[test]
fn count_ignores_limit_and_filters() {
    let store = Fixture::new();
    for key in ["a", "b", "c"] {
        store.run(put(key, "1")).unwrap();
    }
    let answer = ranged(
        store
            .run(Range {
                limit: 1,
                modified_min: 3,
                ..all()
            })
            .unwrap(),
    );
    assert_eq!(
        (keys(&answer), answer.more, answer.count),
        (vec!["b"], true, 3)
    );
    let answer = ranged(
        store
            .run(Range {
                limit: 1,
                modified_min: 4,
                ..all()
            })
            .unwrap(),
    );
    assert_eq!(
        (keys(&answer), answer.more, answer.count),
        (vec!["c"], false, 3)
    );
}

#[test]
fn count_only_ignores_the_limit_and_has_no_more() {
    let store = Fixture::new();
    store.run(put("a", "1")).unwrap();
    store.run(put("b", "1")).unwrap();
    let answer = ranged(
        store
            .run(Range {
                limit: 1,
                count_only: true,
                ..all()
            })
            .unwrap(),
    );
    assert_eq!((answer.kvs.len(), answer.more, answer.count), (0, false, 2));
}

#[test]
fn an_order_that_is_not_said_sorts_one_more_than_the_limit() {
    let store = Fixture::new();
    for (key, value) in [("a", "5"), ("b", "1"), ("c", "2"), ("d", "0")] {
        store.run(put(key, value)).unwrap();
    }
    let range = Range {
        limit: 2,
        target: SortTarget::Value,
        ..all()
    };
    let answer = ranged(store.run(range).unwrap());
    assert_eq!(
        (keys(&answer), answer.more, answer.count),
        (vec!["b", "c"], true, 4)
    );
}

#[test]
fn keys_without_values_have_no_lease_unless_sorted_by_value() {
    let store = Fixture::new();
    store
        .run(Put {
            lease: 7,
            ..put("a", "1")
        })
        .unwrap();
    for (target, lease) in [
        (SortTarget::Key, 0),
        (SortTarget::Version, 0),
        (SortTarget::Value, 7),
    ] {
        let range = Range {
            keys_only: true,
            target,
            ..all()
        };
        let kv = &ranged(store.run(range).unwrap()).kvs[0];
        assert_eq!((kv.lease, kv.value.len()), (lease, 0), "{target:?}");
    }
}

#[test]
fn deleting_nothing_makes_no_revision() {
    let store = Fixture::new();
    store.run(put("a", "1")).unwrap();
    let Answer::DeleteRange(answer) = store.run(delete("b", "\0")).unwrap() else {
        panic!("not an answer to a deletion");
    };
    assert_eq!((answer.deleted, answer.revision.0), (0, 2));
    assert_eq!(store.store.revision().0, 2);
}

#[test]
fn comparisons_count_as_operations_and_nesting_uses_them_up() {
    let compares = |count| {
        let one = when("a", Operand::Version(0), Relation::Equal).compare;
        Txn {
            compare: vec![one[0].clone(); count],
            ..Txn::default()
        }
    };
    assert_eq!(check(&compares(3).into(), 3), Ok(()));
    assert_eq!(check(&compares(4).into(), 3), Err(Reject::TooManyOps));
    // Two siblings of two each are four steps, but only three deep.
    let siblings = |count| then([Op::Txn(compares(count)), Op::Txn(compares(count))]);
    assert_eq!(check(&siblings(2).into(), 4), Ok(()));
    assert_eq!(check(&siblings(3).into(), 4), Err(Reject::TooManyOps));
}

#[test]
fn a_step_that_says_nothing_is_a_key_not_found() {
    assert_eq!(
        check(&then([Op::Missing]).into(), 128),
        Err(Reject::KeyNotFound)
    );
}

#[test]
fn a_key_is_changed_twice_only_where_etcd_does_not_notice() {
    let a = || Op::Put(put("a", "1"));
    let deleted = |end| Op::DeleteRange(delete("a", end));
    let inside = |op| Op::Txn(then([op]));
    let either = || {
        Op::Txn(Txn {
            success: vec![a()],
            failure: vec![a()],
            ..Txn::default()
        })
    };
    let (no, yes) = (Err(Reject::DuplicateKey), Ok(()));
    let table = [
        (then([a(), a()]), &no),
        (then([a(), deleted("")]), &no),
        (then([deleted("b"), a()]), &no),
        (then([deleted("b"), deleted("c")]), &yes),
        (then([a(), Op::Range(all())]), &yes),
        (then([a(), inside(a())]), &no),
        (then([inside(a()), inside(a())]), &no),
        (then([either()]), &yes),
        (then([either(), a()]), &no),
        (then([inside(a()), deleted("b")]), &no),
        (then([inside(deleted("b")), a()]), &no),
        (then([inside(deleted("b")), inside(a())]), &no),
        // Not held against later deletions of siblings.
        (then([inside(a()), inside(deleted("b"))]), &yes),
        // Deletions from a key on are empty in its eyes.
        (then([a(), deleted("\0")]), &yes),
        (then([deleted("\0"), a()]), &yes),
    ];
    for (txn, expected) in table {
        assert_eq!(check(&txn.clone().into(), 128), *expected, "{txn:?}");
    }
}

#[test]
fn deleting_from_a_key_on_and_putting_it_run_in_order_in_one_revision() {
    let store = Fixture::new();
    store.run(put("x1", "1")).unwrap();
    store
        .run(then([
            Op::DeleteRange(delete("x1", "\0")),
            Op::Put(put("x1", "2")),
        ]))
        .unwrap();
    let kv = store.store.get(b"x1", Revision(3)).unwrap().unwrap();
    assert_eq!((kv.create.0, kv.version), (3, 1));
    store
        .run(then([
            Op::Put(put("x3", "3")),
            Op::DeleteRange(delete("x1", "\0")),
        ]))
        .unwrap();
    assert_eq!(ranged(store.run(all()).unwrap()).count, 0);
    assert_eq!(store.store.revision().0, 4);
}

#[test]
fn a_value_to_keep_may_be_deleted_on_the_way() {
    // etcd panics here; we refuse.
    let store = Fixture::new();
    store.run(put("x1", "1")).unwrap();
    let keep = Put {
        ignore_value: true,
        ..put("x1", "")
    };
    let txn = then([Op::DeleteRange(delete("x1", "\0")), Op::Put(keep)]);
    assert_refused(store.run(txn), Reject::KeyNotFound);
}

#[test]
fn answers_inside_tell_the_revision_before_until_the_first_change() {
    let store = Fixture::new();
    store.run(put("a", "1")).unwrap();
    let read = || Op::Range(all());
    let txn = then([
        read(),
        Op::DeleteRange(delete("z", "")),
        Op::Put(put("b", "1")),
        read(),
        Op::DeleteRange(delete("z", "")),
        Op::Txn(then([])),
    ]);
    let answer = txned(store.run(txn).unwrap());
    assert_eq!(headers(&answer), [2, 2, 3, 3, 3, 0]);
    assert_eq!(answer.revision.0, 3);
    // The second read saw the put.
    assert_eq!(ranged(answer.answers[3].clone()).count, 2);
}

#[test]
fn a_transaction_that_changes_nothing_makes_no_revision() {
    let store = Fixture::new();
    store.run(put("a", "1")).unwrap();
    let txn = then([Op::Range(all()), Op::DeleteRange(delete("z", ""))]);
    let answer = txned(store.run(txn).unwrap());
    assert_eq!((headers(&answer), answer.revision.0), (vec![2, 2], 2));
    assert_eq!(store.store.revision().0, 2);
}

#[test]
fn comparisons_inside_see_the_state_before_all() {
    let store = Fixture::new();
    let inner = when("a", Operand::Version(0), Relation::Equal);
    let answer = store
        .run(then([Op::Put(put("a", "1")), Op::Txn(inner)]))
        .unwrap();
    assert!(txned(txned(answer).answers.remove(1)).succeeded);
}

#[test]
fn a_missing_key_compares_as_zeros_but_has_no_value() {
    let store = Fixture::new();
    let value = || Operand::Value("".into());
    let table = [
        (Operand::Version(0), Relation::Equal, true),
        (Operand::Create(0), Relation::Equal, true),
        (Operand::Modified(1), Relation::Less, true),
        (Operand::Lease(0), Relation::NotEqual, false),
        (Operand::Unknown, Relation::Equal, true),
        (Operand::Version(5), Relation::Unknown, true),
        (value(), Relation::Equal, false),
        (value(), Relation::NotEqual, false),
        (value(), Relation::Unknown, false),
    ];
    for (operand, relation, holds) in table {
        let txn = when("a", operand, relation);
        assert_eq!(
            txned(store.run(txn.clone()).unwrap()).succeeded,
            holds,
            "{txn:?}"
        );
    }
}

#[test]
fn revoking_deletes_in_one_revision_and_makes_none_without_keys() {
    let store = Fixture::new();
    assert_eq!(
        store.run(Request::LeaseRevoke(7)).unwrap(),
        Answer::LeaseRevoke(Revision(1))
    );
    for (key, lease) in [("b", 7), ("a", 7), ("c", 7), ("c", 0)] {
        store
            .run(Put {
                lease,
                ..put(key, "1")
            })
            .unwrap();
    }
    let evaluated = store
        .evaluate(Revision(6), Request::LeaseRevoke(7))
        .unwrap();
    let deleted: Vec<_> = evaluated.effects.iter().map(Effect::key).collect();
    assert_eq!(deleted, ["a", "b"]);
    assert_eq!(evaluated.answer, Answer::LeaseRevoke(Revision(6)));
    assert_refused(store.run(Request::LeaseRevoke(8)), Reject::LeaseNotFound);
    assert_refused(store.run(Request::LeaseRevoke(0)), Reject::LeaseNotFound);
}

#[test]
fn a_revision_that_is_not_granted_is_above_all_that_are_applied() {
    let mut store = Fixture::new();
    store.run(put("a", "1")).unwrap();
    store.queue(Ticket(4), put("b", "1"));
    let greater = |given| when("b", Operand::Create(given), Relation::Greater);
    let own = Revision::of(Ticket(5));
    let evaluated = store.evaluate(own, greater(2)).unwrap();
    assert!(txned(evaluated.answer).succeeded);
    assert_eq!(evaluated.depends_on, Some(Ticket(4)));
    let undecided = store.evaluate(own, greater(3));
    assert!(matches!(undecided, Err(EngineError::Ungranted(Ticket(4)))));
    store.pending.grant(Ticket(4), Revision(3));
    assert!(!txned(store.evaluate(own, greater(3)).unwrap().answer).succeeded);
}

#[test]
fn a_transaction_can_await_itself() {
    let store = Fixture::new();
    let range = Range {
        modified_min: 2,
        ..all()
    };
    let txn = || then([Op::Put(put("a", "1")), Op::Range(range.clone())]);
    let undecided = store.evaluate(Revision::of(Ticket(0)), txn());
    assert!(matches!(undecided, Err(EngineError::Ungranted(Ticket(0)))));
    store.run(txn()).unwrap();
}

#[test]
fn answers_are_completed_with_what_was_granted() {
    let mut store = Fixture::new();
    store.queue(Ticket(0), put("a", "1"));
    let mut evaluated = store.queue(Ticket(1), then([Op::Range(all()), Op::Put(put("a", "2"))]));
    evaluated
        .answer
        .complete(&|ticket| Revision(10 + 2 * i64::from(ticket.0)));
    let answer = txned(evaluated.answer);
    // Ticket 0 got 10, ticket 1 got 12; somebody else had 11.
    assert_eq!((headers(&answer), answer.revision.0), (vec![11, 12], 12));
    assert_eq!(ranged(answer.answers[0].clone()).kvs[0].modified.0, 10);
    // What changes nothing tells the newest it saw.
    let mut read = store.evaluate(Revision::of(Ticket(2)), all()).unwrap();
    assert_eq!(read.depends_on, Some(Ticket(1)));
    read.answer
        .complete(&|ticket| Revision(10 + 2 * i64::from(ticket.0)));
    let answer = ranged(read.answer);
    let kv = &answer.kvs[0];
    assert_eq!(
        (answer.revision.0, kv.create.0, kv.modified.0, kv.version),
        (12, 10, 12, 2)
    );
}

#[test]
fn what_does_not_look_at_pending_keys_does_not_depend_on_them() {
    let mut store = Fixture::new();
    store.queue(Ticket(0), put("a", "1"));
    assert_eq!(store.queue(Ticket(1), put("b", "1")).depends_on, None);
    assert_eq!(
        store.queue(Ticket(2), put("a", "2")).depends_on,
        Some(Ticket(0))
    );
}

#[test]
fn what_is_withdrawn_was_never_there() {
    let mut f = Fixture::new();
    f.queue(Ticket(0), put("a", "0"));
    f.queue(Ticket(1), put("a", "1"));
    f.queue(Ticket(2), put("b", "2"));
    f.pending.withdraw(Ticket(1));
    let seen = f.evaluate(Revision::of(Ticket(1)), all()).unwrap();
    let seen = ranged(seen.answer);
    assert_eq!(keys(&seen), ["a"]);
    assert_eq!(seen.kvs[0].value, "0");
    // Its ticket can be given again.
    f.queue(Ticket(1), put("b", "3"));
    f.pending.withdraw(Ticket(0));
    assert!(f.pending.is_empty());
    let seen = f.evaluate(Revision(2), all()).unwrap();
    assert_eq!(ranged(seen.answer).count, 0);
}

#[test]
fn a_floor_that_is_decided_counts_before_it_is_applied() {
    let mut f = Fixture::new();
    for value in ["0", "1", "2"] {
        f.run(put("a", value)).unwrap();
    }
    let mut past = all();
    past.revision = 2;
    let txn = || then([Op::Range(past.clone())]);
    assert!(f.evaluate(Revision(5), txn()).is_ok());
    f.pending.raise_floor(Revision(3));
    assert_refused(f.evaluate(Revision(5), txn()), Reject::Compacted);
    f.pending.raise_floor(Revision(2));
    assert_refused(f.evaluate(Revision(5), txn()), Reject::Compacted);
}

#[test]
fn a_store_that_reached_a_revision_writes_only_above_it() {
    let f = Fixture::new();
    f.run(put("a", "0")).unwrap();
    f.append(Step::Reach {
        revision: Revision(9),
    });
    assert_eq!(f.store.revision(), Revision(9));
    assert_eq!(f.store.last_revision(), Revision(9));
    // So a floor above its own last write fits.
    f.append(Step::Compact { floor: Revision(7) });
    let seen = ranged(f.run(all()).unwrap());
    assert_eq!((seen.count, seen.revision), (1, Revision(9)));
    let Answer::Put(answer) = f.run(put("a", "1")).unwrap() else {
        panic!()
    };
    assert_eq!(answer.revision, Revision(10));
    f.append(Step::Reach {
        revision: Revision(4),
    });
    assert_eq!(f.store.last_revision(), Revision(10));
}

/// What is read in parts and joined is what is read at once.
#[test]
fn parts_join_to_the_whole() {
    let f = Fixture::new();
    for (key, value) in [("a", "3"), ("c", "1"), ("d", "2"), ("f", "5"), ("h", "4")] {
        f.run(put(key, value)).unwrap();
    }
    f.run(put("c", "9")).unwrap();
    let cuts = [("\0", "c"), ("c", "e"), ("e", "g"), ("g", "\0")];
    let orders = [SortOrder::None, SortOrder::Ascend, SortOrder::Descend];
    let targets = [
        SortTarget::Key,
        SortTarget::Version,
        SortTarget::Create,
        SortTarget::Modified,
        SortTarget::Value,
    ];
    for limit in 0..7 {
        for (order, target) in orders.iter().flat_map(|o| targets.map(|t| (*o, t))) {
            for (keys_only, count_only, modified_min) in [
                (false, false, 0),
                (true, false, 0),
                (false, true, 0),
                (false, false, 4),
                (true, false, 3),
            ] {
                let wanted = Range {
                    limit,
                    order,
                    target,
                    keys_only,
                    count_only,
                    modified_min,
                    ..all()
                };
                let at = f.store.revision();
                let mut found = Vec::new();
                for (key, end) in cuts {
                    let mut asked = part(&wanted, &found);
                    asked.keys = KeyRange::new(key, end);
                    found.push(crate::range(&f.store, at, &asked).unwrap());
                }
                let whole = crate::range(&f.store, at, &wanted).unwrap();
                assert_eq!(join(&wanted, found), whole, "{wanted:?}");
            }
        }
    }
}
