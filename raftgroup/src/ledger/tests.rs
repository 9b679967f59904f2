//! The rules, one test each.

use super::*;

const NODE: NodeId = NodeId(1);
const GROUP: GroupId = GroupId(1);
const OTHER: GroupId = GroupId(2);

fn stamp(group: GroupId, session: u64) -> Stamp {
    Stamp {
        epoch: Term(5),
        group,
        term: Term(3),
        session,
    }
}

fn hello(stamp: Stamp) -> Hello {
    Hello {
        stamp,
        pending: Vec::new(),
        applied: LogIndex(10),
    }
}

fn ask(stamp: Stamp, count: u64) -> Ask {
    Ask {
        stamp,
        count,
        root: LogIndex(100),
        leases: Vec::new(),
        applied: (Revision(0), LogIndex(0)),
    }
}

/// Epoch 5, ready to grant 1001 and more, two groups.
fn ledger() -> Ledger {
    let mut ledger = Ledger::new(
        Term(5),
        Revision(7),
        &[],
        Some(Revision(1000)),
        LogIndex(50),
        LogIndex(90),
    );
    ledger.ceiling_committed(Revision(2000));
    assert!(ledger.hello(NODE, &hello(stamp(GROUP, 1))));
    assert!(ledger.hello(NODE, &hello(stamp(OTHER, 1))));
    ledger
}

fn granted(ledger: &mut Ledger, stamp: Stamp, count: u64) -> Revision {
    match ledger.ask(&ask(stamp, count), true) {
        Asked::Granted(first, _) => first,
        other => panic!("{other:?}"),
    }
}

fn closed(ledger: &Ledger, group: GroupId) -> i64 {
    ledger.closed(group).expect("announced").revision.0
}

#[test]
fn what_is_open_and_what_was_done_can_be_looked_at() {
    let tally = Arc::new(Tally::default());
    let mut ledger = ledger().counted(Arc::clone(&tally));
    let nothing = LedgerOpen {
        groups: 3,
        grants: 0,
        revisions: 0,
        below_ceiling: 1000,
    };
    assert_eq!(ledger.open(), nothing);
    let first = granted(&mut ledger, stamp(GROUP, 1), 3);
    granted(&mut ledger, stamp(OTHER, 1), 2);
    ledger.own(5);
    let open = LedgerOpen {
        grants: 3,
        revisions: 10,
        below_ceiling: 990,
        ..nothing
    };
    assert_eq!(ledger.open(), open);
    // A part of the oldest is applied.
    let mut resolved = Resolved {
        stamp: stamp(GROUP, 1),
        revision: first,
        index: LogIndex(11),
    };
    assert!(ledger.resolved(&resolved));
    assert_eq!((ledger.open().grants, ledger.open().revisions), (3, 9));
    resolved.revision = Revision(first.0 + 2);
    assert!(ledger.resolved(&resolved));
    assert_eq!((ledger.open().grants, ledger.open().revisions), (2, 7));
    // What is refused or must wait is no grant.
    assert_eq!(ledger.ask(&ask(stamp(GROUP, 1), 5000), true), Asked::Wait);
    assert_eq!(ledger.ask(&ask(stamp(GROUP, 1), 1), false), Asked::Stale);
    assert_eq!(ledger.ask(&ask(stamp(GROUP, 2), 1), true), Asked::Ignored);
    let done = [&tally.grants, &tally.revisions, &tally.stale];
    assert_eq!(done.map(|count| count.load(Relaxed)), [3, 10, 1]);
}

#[test]
fn rule_2_nothing_is_granted_above_the_committed_ceiling() {
    let mut ledger = Ledger::new(
        Term(5),
        Revision(7),
        &[],
        Some(Revision(9)),
        LogIndex(1),
        LogIndex(1),
    );
    ledger.hello(NODE, &hello(stamp(GROUP, 1)));
    // It starts above the ceiling, which another may have granted up to.
    assert_eq!(ledger.next(), Revision(10));
    assert_eq!(ledger.ask(&ask(stamp(GROUP, 1), 1), true), Asked::Wait);
    let wanted = ledger.ceiling_wanted().expect("it is time");
    ledger.ceiling_committed(wanted);
    assert_eq!(granted(&mut ledger, stamp(GROUP, 1), 1), Revision(10));
    assert_eq!(
        ledger.ask(
            &ask(stamp(GROUP, 1), u64::try_from(wanted.0).expect("small")),
            true
        ),
        Asked::Wait
    );
}

#[test]
fn rule_2_a_new_sequencer_starts_above_all_that_was_granted() {
    let after = |last, ceiling| {
        Ledger::new(
            Term(6),
            Revision(last),
            &[],
            ceiling,
            LogIndex(1),
            LogIndex(1),
        )
        .next()
    };
    assert_eq!(after(7, Some(Revision(1000))), Revision(1001));
    assert_eq!(after(1007, Some(Revision(1000))), Revision(1008));
    assert_eq!(after(7, None), Revision(8));
}

#[test]
fn rule_2_read_points_stay_below_what_a_later_sequencer_starts_above() {
    let mut ledger = Ledger::new(
        Term(5),
        Revision(7),
        &[],
        Some(Revision(9)),
        LogIndex(1),
        LogIndex(1),
    );
    assert_eq!(ledger.own(3), Revision(10));
    // Its own writes are not in the log for good yet.
    assert_eq!(ledger.read_point(), Revision(9));
    assert_eq!(closed(&ledger, GroupId::ROOT), 9);
    ledger.own_applied(Revision(11), Revision(11), LogIndex(91));
    assert_eq!(ledger.read_point(), Revision(11));
    assert_eq!(closed(&ledger, GroupId::ROOT), 11);
}

/// Clients hear of a write as soon as the store has it, and other members show
/// it, before the leader's task hears of that.
#[test]
fn rule_3_a_read_point_is_not_below_what_the_root_groups_store_has() {
    let ceiling = Some(Revision(9));
    let mut ledger = Ledger::new(Term(5), Revision(7), &[], ceiling, LogIndex(1), LogIndex(1));
    assert_eq!(ledger.own(2), Revision(10));
    assert_eq!(ledger.read_point(), Revision(9));
    ledger.root_has(Revision(10));
    assert_eq!(ledger.read_point(), Revision(10));
    // It is closed when it is reported.
    assert_eq!(closed(&ledger, GroupId::ROOT), 9);
}

#[test]
fn rule_2_one_group_needs_no_ceiling() {
    let mut ledger = Ledger::new(Term(5), Revision(7), &[], None, LogIndex(1), LogIndex(1));
    assert_eq!(ledger.ceiling_wanted(), None);
    assert_eq!(ledger.own(1), Revision(8));
    assert_eq!(ledger.read_point(), Revision(7));
    ledger.own_applied(Revision(8), Revision(8), LogIndex(2));
    assert_eq!(ledger.read_point(), Revision(8));
}

#[test]
fn rule_4_a_book_is_replaced_only_by_a_newer_announcement() {
    let mut ledger = ledger();
    let first = granted(&mut ledger, stamp(GROUP, 1), 2);
    for old in [
        stamp(GROUP, 0),
        stamp(GROUP, 1),
        Stamp {
            term: Term(2),
            ..stamp(GROUP, 9)
        },
    ] {
        assert!(!ledger.hello(NODE, &hello(old)), "{old:?}");
        assert_eq!(closed(&ledger, GROUP), first.0 - 1);
    }
    // A newer session says what of it is still to come.
    let mut newer = hello(stamp(GROUP, 2));
    newer.pending = vec![(first.next(), first.next())];
    assert!(ledger.hello(NODE, &newer));
    assert_eq!(closed(&ledger, GROUP), first.0);
    assert!(ledger.hello(
        NODE,
        &hello(Stamp {
            term: Term(4),
            ..stamp(GROUP, 0)
        })
    ));
    assert_eq!(closed(&ledger, GROUP), first.0 + 1);
}

#[test]
fn rule_4_nothing_is_closed_before_the_announcement() {
    let ledger = ledger();
    assert_eq!(ledger.closed(GroupId(3)), None);
    assert!(ledger.closed(GROUP).is_some());
}

#[test]
fn rule_4_another_epoch_is_refused() {
    let mut ledger = ledger();
    for epoch in [4, 6] {
        let epoch = Stamp {
            epoch: Term(epoch),
            ..stamp(GROUP, 7)
        };
        assert!(!ledger.hello(NODE, &hello(epoch)));
    }
}

#[test]
fn rule_5_what_is_not_stamped_as_now_is_ignored() {
    let mut ledger = ledger();
    let first = granted(&mut ledger, stamp(GROUP, 1), 1);
    let now = stamp(GROUP, 1);
    for other in [
        Stamp {
            epoch: Term(4),
            ..now
        },
        Stamp {
            term: Term(2),
            ..now
        },
        Stamp {
            term: Term(4),
            ..now
        },
        Stamp { session: 0, ..now },
        Stamp { session: 2, ..now },
        Stamp {
            group: GroupId(9),
            ..now
        },
        Stamp {
            group: GroupId::ROOT,
            ..now
        },
    ] {
        assert_eq!(
            ledger.ask(&ask(other, 1), true),
            Asked::Ignored,
            "{other:?}"
        );
        let resolved = Resolved {
            stamp: other,
            revision: first,
            index: LogIndex(99),
        };
        assert!(!ledger.resolved(&resolved), "{other:?}");
        assert_eq!(closed(&ledger, GROUP), first.0 - 1);
    }
}

#[test]
fn rule_7_a_grant_is_outstanding_from_when_it_is_made_until_it_is_resolved() {
    let mut ledger = ledger();
    let first = granted(&mut ledger, stamp(GROUP, 1), 3);
    assert_eq!(closed(&ledger, GROUP), first.0 - 1);
    // The other group has nothing outstanding: all that is granted is closed there.
    assert_eq!(closed(&ledger, OTHER), first.0 + 2);
    let mut resolve = |through: i64, index| {
        let resolved = Resolved {
            stamp: stamp(GROUP, 1),
            revision: Revision(through),
            index: LogIndex(index),
        };
        assert!(ledger.resolved(&resolved));
        ledger.closed(GROUP).expect("announced")
    };
    let expect = |revision, index| Closed {
        revision: Revision(revision),
        index: LogIndex(index),
    };
    assert_eq!(resolve(first.0, 20), expect(first.0, 20));
    // An old report changes nothing.
    assert_eq!(resolve(first.0 - 5, 15), expect(first.0, 20));
    assert_eq!(resolve(first.0 + 2, 22), expect(first.0 + 2, 22));
}

#[test]
fn rule_7_a_question_reports_what_is_applied_too() {
    let mut ledger = ledger();
    let first = granted(&mut ledger, stamp(GROUP, 1), 3);
    let next = Ask {
        applied: (Revision(first.0 + 1), LogIndex(21)),
        ..ask(stamp(GROUP, 1), 1)
    };
    assert_eq!(
        ledger.ask(&next, true),
        Asked::Granted(Revision(first.0 + 3), 2)
    );
    let expected = Closed {
        revision: Revision(first.0 + 1),
        index: LogIndex(21),
    };
    assert_eq!(ledger.closed(GROUP), Some(expected));
}

#[test]
fn rule_7_an_idle_group_closes_with_all_others() {
    let mut ledger = ledger();
    let before = closed(&ledger, OTHER);
    let first = granted(&mut ledger, stamp(GROUP, 1), 1);
    assert!(closed(&ledger, OTHER) > before);
    assert_eq!(closed(&ledger, OTHER), first.0);
    assert_eq!(ledger.closed(OTHER).expect("announced").index, LogIndex(10));
}

#[test]
fn rule_15_what_was_evaluated_on_an_older_cluster_is_refused_and_spends_nothing() {
    let mut ledger = ledger();
    let next = ledger.next();
    ledger.changed(LogIndex(101));
    assert_eq!(ledger.ask(&ask(stamp(GROUP, 1), 1), true), Asked::Stale);
    // What came behind it was evaluated on top of it.
    let fresh = Ask {
        root: LogIndex(101),
        ..ask(stamp(GROUP, 1), 1)
    };
    assert_eq!(ledger.ask(&fresh, true), Asked::Stale);
    assert_eq!(ledger.next(), next);
    assert!(ledger.hello(NODE, &hello(stamp(GROUP, 2))));
    let fresh = Ask {
        stamp: stamp(GROUP, 2),
        ..fresh
    };
    assert_eq!(ledger.ask(&fresh, true), Asked::Granted(next, 1));
}

#[test]
fn counts_that_make_no_sense_are_ignored() {
    let mut ledger = ledger();
    assert_eq!(ledger.ask(&ask(stamp(GROUP, 1), 0), true), Asked::Ignored);
    assert_eq!(
        ledger.ask(&ask(stamp(GROUP, 1), u64::MAX), true),
        Asked::Ignored
    );
    assert_eq!(
        ledger.ask(&ask(stamp(GROUP, 1), i64::MAX.cast_unsigned()), true),
        Asked::Wait
    );
}
