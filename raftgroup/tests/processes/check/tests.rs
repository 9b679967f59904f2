//! The judge, judged: a history that is right, and what is wrong with others.

use super::*;

/// What two processes saw; the second was killed.
const ONE: &str = "\
10 0 ask put a0 v1
20 0 ok 2 1 -
21 0 ask put a0 v2
30 0 ok 3 1 a0=v1@2.2.1
31 0 ask together v3 c0 c1
40 0 ok 4 1 -
41 0 ask read *
50 0 ok 4 0 a0=v2@2.3.2;c0=v3@4.4.1;c1=v3@4.4.1
51 0 ask swap a0 3 v4
60 0 ok 5 1 -
61 0 ask swap a0 3 v5
70 0 ok 5 0 a0=v4@2.5.3
71 0 ask local a0
80 0 ok 5 0 a0=v4@2.5.3
81 0 ask delete a0
90 0 ok 6 1 a0=v4@2.5.3
91 0 ask delete a0
95 0 ok 6 0 -
96 0 ask put a0 v9
99 0 failed etcdserver: no leader
22 1 watch * 2
22 1 events +a0=v1@2.2.1;+a0=v2@2.3.2
23 1 events +c0=v3@4.4.1;+c1=v3@4.4.1
24 1 events +a0=v4@2.5.3
22 2 watch a 0
23 2 events +a0=v4@2.5.3
";

const OTHER: &str = "\
100 0 ask put c0 v6
100 1 ask put c1 v7
100 2 ask delete c1
101 3 ask read c0
102 3 ok 6 0 c0=v3@4.4.1
103 3 ask re";

const DUMP: &str = "\
event +a0=v1@2.2.1 -
event +a0=v2@2.3.2 a0=v1@2.2.1
event +c0=v3@4.4.1 -
event +c1=v3@4.4.1 -
event +a0=v4@2.5.3 a0=v2@2.3.2
event -a0=@0.6.0 a0=v4@2.5.3
event +c0=v6@4.7.2 c0=v3@4.4.1
event -c1=@0.8.0 c1=v3@4.4.1
state c0=v6@4.7.2
";

fn seen(one: &str, other: &str, dump: &str) -> Seen {
    let mut seen = Seen::default();
    seen.history.add("1-1", one).expect("it is one");
    seen.history.add("2-1", other).expect("it is one");
    seen.dumps = vec![Dump::parse(dump).expect("it is one"); 3];
    seen
}

#[test]
fn a_history_that_is_right() {
    assert_eq!(broken(&seen(ONE, OTHER, DUMP)), [""; 0]);
    assert_eq!(Dump::parse(DUMP).expect("it is one").to_string(), DUMP);
}

/// A promise that is broken if something is replaced by something else.
type Wrong = (&'static str, &'static str, &'static str);

fn all_are_seen(texts: [&str; 3], wrong: &[Wrong]) {
    for (promise, right, wrong) in wrong {
        let tampered = texts.map(|text| text.replacen(right, wrong, 1));
        assert_ne!(tampered, texts, "{right:?} is not there");
        let broken = broken(&seen(&tampered[0], &tampered[1], &tampered[2]));
        let named = |broken: &String| broken.contains(promise);
        assert!(
            broken.iter().any(named),
            "{wrong:?} instead of {right:?}: {broken:?}"
        );
    }
}

#[test]
fn what_is_wrong_is_seen() {
    let wrong = [
        // An acknowledged write that is not there, or is another.
        ("nothing is lost", "ok 3 1 a0=v1", "ok 9 1 a0=v1"),
        ("nothing is lost", "ask put a0 v2", "ask put a0 v0"),
        (
            "nothing is lost",
            "ask together v3 c0 c1",
            "ask together v3 c1 c0",
        ),
        (
            "nothing is lost",
            "21 0 ask put a0 v2\n30 0 ok 3",
            "21 0 ask put a0 v2\n30 0 ok 2",
        ),
        // A write that nobody asked for, that failed, or that is there twice.
        (
            "nothing is invented or doubled",
            "100 0 ask put c0 v6\n",
            "",
        ),
        (
            "nothing is invented or doubled",
            "100 2 ask delete c1\n",
            "",
        ),
        (
            "nothing is invented or doubled",
            "100 2 ask delete c1\n",
            "100 2 ask delete c1\n105 2 failed x\n",
        ),
        (
            "nothing is invented or doubled",
            "event -c1=@0.8.0 c1=v3@4.4.1\nstate c0=v6@4.7.2",
            "event -c1=@0.8.0 c1=v3@4.4.1\nevent +c0=v6@4.9.3 c0=v6@4.7.2\nstate c0=v6@4.9.3",
        ),
        (
            "nothing is invented or doubled",
            "event -c1=@0.8.0 c1=v3@4.4.1\n",
            "event -c1=@0.8.0 c1=v3@4.4.1\nevent +c1=v7@9.9.1 -\nevent -c1=@0.10.0 c1=v7@9.9.1\n",
        ),
        // A write below, and a read behind, what was told before.
        (
            "revisions respect real time",
            "10 0 ask put a0 v1\n20 0",
            "32 0 ask put a0 v1\n33 0",
        ),
        (
            "revisions respect real time",
            "ok 6 0 c0=v3",
            "ok 5 0 c0=v3",
        ),
        // Answers that never were true.
        (
            "answers are the replayed state",
            "50 0 ok 4 0 a0=v2@2.3.2;",
            "50 0 ok 4 0 ",
        ),
        (
            "answers are the replayed state",
            "ok 6 0 c0=v3@4.4.1",
            "ok 7 0 c0=v3@4.4.1",
        ),
        (
            "answers are the replayed state",
            "ok 6 1 a0=v4@2.5.3",
            "ok 6 1 -",
        ),
        (
            "answers are the replayed state",
            "51 0 ask swap a0 3 v4",
            "51 0 ask swap a0 2 v4",
        ),
        (
            "answers are the replayed state",
            "61 0 ask swap a0 3 v5",
            "61 0 ask swap a0 5 v5",
        ),
        (
            "answers are the replayed state",
            "95 0 ok 6 0 -",
            "95 0 ok 5 0 -",
        ),
        (
            "a member's time never goes back",
            "80 0 ok 5 0 a0=v4@2.5.3",
            "80 0 ok 4 0 a0=v2@2.3.2",
        ),
        // Watches that skip, repeat, reorder or split.
        (
            "watches are complete",
            "events +c0=v3@4.4.1;+c1=v3@4.4.1\n",
            "events +c0=v3@4.4.1\n23 1 events +c1=v3@4.4.1\n",
        ),
        (
            "watches are complete",
            "23 1 events +c0=v3@4.4.1;+c1=v3@4.4.1\n",
            "",
        ),
        (
            "watches are complete",
            "22 1 events +a0=v1@2.2.1;",
            "22 1 events ",
        ),
        (
            "watches are complete",
            "+c0=v3@4.4.1;+c1=v3@4.4.1\n24 1 events",
            "+c1=v3@4.4.1;+c0=v3@4.4.1\n24 1 events",
        ),
        (
            "watches are complete",
            "24 1 events +a0=v4@2.5.3\n",
            "24 1 events +a0=v4@2.5.3\n25 1 events +a0=v4@2.5.3\n",
        ),
        (
            "watches are complete",
            "22 2 watch a 0\n23 2 events +a0=v4@2.5.3\n",
            "22 2 watch a 0\n23 2 events -a0=@0.6.0\n",
        ),
        // A dump that contradicts itself.
        (
            "the dump is a history",
            "event +a0=v2@2.3.2 a0=v1@2.2.1",
            "event +a0=v2@2.3.2 -",
        ),
        (
            "the dump is a history",
            "event +a0=v4@2.5.3",
            "event +a0=v4@2.5.4",
        ),
        ("the dump is a history", "state c0=v6@4.7.2", "state -"),
    ];
    all_are_seen([ONE, OTHER, DUMP], &wrong);
}

/// Three accounts; the second process was killed with two transfers under
/// way, of which one was done.
const BANK: &str = "\
10 9 ask together 100/open a0 b0 c0
20 9 ok 2 1 -
21 0 ask transfer a0 2 90/t1 c0 2 110/t1
30 0 ok 3 1 -
31 0 ask transfer a0 2 80/t2 b0 2 120/t2
40 0 ok 3 0 a0=90/t1@2.3.2;b0=100/open@2.2.1
41 0 ask read *
50 0 ok 3 0 a0=90/t1@2.3.2;b0=100/open@2.2.1;c0=110/t1@2.3.2
51 0 ask local *
60 0 ok 3 0 a0=90/t1@2.3.2;b0=100/open@2.2.1;c0=110/t1@2.3.2
";

const OTHER_BANK: &str = "\
1 0 ask read *
2 0 ok 1 0 -
100 0 ask transfer b0 2 95/t3 c0 3 115/t3
100 1 ask transfer a0 3 85/t4 b0 2 105/t4
";

const BANK_DUMP: &str = "\
event +a0=100/open@2.2.1 -
event +b0=100/open@2.2.1 -
event +c0=100/open@2.2.1 -
event +a0=90/t1@2.3.2 a0=100/open@2.2.1
event +c0=110/t1@2.3.2 c0=100/open@2.2.1
event +b0=95/t3@2.4.2 b0=100/open@2.2.1
event +c0=115/t3@2.4.3 c0=110/t1@2.3.2
state a0=90/t1@2.3.2;b0=95/t3@2.4.2;c0=115/t3@2.4.3
";

#[test]
fn what_is_wrong_with_transfers_is_seen() {
    let texts = [BANK, OTHER_BANK, BANK_DUMP];
    assert_eq!(broken(&seen(texts[0], texts[1], texts[2])), [""; 0]);
    let wrong = [
        // One half of a transfer, acknowledged or not, or done twice.
        (
            "nothing is lost",
            "event +c0=110/t1@2.3.2 c0=100/open@2.2.1\n",
            "",
        ),
        (
            "nothing is invented or doubled",
            "event +c0=115/t3@2.4.3 c0=110/t1@2.3.2\n",
            "",
        ),
        (
            "nothing is invented or doubled",
            "state",
            "event +b0=95/t3@2.5.3 b0=95/t3@2.4.2\n\
             event +c0=115/t3@2.5.4 c0=115/t3@2.4.3\nstate",
        ),
        ("nothing is lost", "30 0 ok 3 1 -", "30 0 ok 4 1 -"),
        // What was done at another state than it says, and the reverse.
        (
            "answers are the replayed state",
            "90/t1 c0 2 110/t1",
            "90/t1 c0 1 110/t1",
        ),
        (
            "answers are the replayed state",
            "ask transfer a0 2 80/t2",
            "ask transfer a0 3 80/t2",
        ),
        (
            "answers are the replayed state",
            "40 0 ok 3 0 a0=90/t1@2.3.2;",
            "40 0 ok 3 0 ",
        ),
        // Money from nowhere.
        (
            "money is neither made nor lost",
            "50 0 ok 3 0 a0=90/t1@2.3.2;",
            "50 0 ok 3 0 a0=91/t1@2.3.2;",
        ),
        (
            "money is neither made nor lost",
            "60 0 ok 3 0 a0=90/t1@2.3.2;",
            "60 0 ok 3 0 ",
        ),
        ("money is neither made nor lost", "c0=115/t3", "c0=116/t3"),
    ];
    all_are_seen(texts, &wrong);
}

#[test]
fn replicas_that_differ_at_an_entry_are_seen() {
    let mut seen = seen(ONE, OTHER, DUMP);
    let contents = |node, text| {
        let contents = Content::parse_all(text).expect("it is one");
        contents.into_iter().map(move |content| (node, content))
    };
    seen.contents.extend(contents(1, "0@5=f-1;1@7=e-2"));
    seen.contents.extend(contents(2, "0@6=d-3;1@7=e-2"));
    assert_eq!(broken(&seen), [""; 0]);
    seen.contents.extend(contents(3, "0@5=f-1;1@7=e-3"));
    assert!(broken(&seen)[0].contains("1@7=e-3 on node 3, e-2 on node 1"));
}

#[test]
fn nodes_that_differ_are_seen() {
    let mut seen = seen(ONE, OTHER, DUMP);
    seen.dumps[2].events.pop();
    assert!(broken(&seen)[0].contains("node 3 differs from node 1 at event 7"));
}

#[test]
fn an_answer_without_a_quorum_is_seen() {
    let mut seen = seen(ONE, OTHER, DUMP);
    // Only a local read is answered then.
    seen.alone = vec![(71, 80), (15, 25)];
    assert_eq!(broken(&seen), [""; 0]);
    seen.alone = vec![(35, 55)];
    assert!(broken(&seen)[0].contains("no quorum, no answer"));
}
