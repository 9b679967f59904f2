//! Members and ranges of a cluster, as `pontoonctl` shows them.

use crate::json;
use crate::serving::Cluster;

/// Cells of the row that begins with this.
fn row<'a>(text: &'a str, first: &str) -> Vec<&'a str> {
    let rows = text.lines().map(|line| line.split_whitespace());
    let mut rows = rows.map(Iterator::collect::<Vec<_>>);
    let row = rows.find(|row| row.first() == Some(&first));
    row.unwrap_or_else(|| panic!("{first} is not in\n{text}"))
}

#[test]
fn ranges_are_split_and_listed() {
    let cluster = Cluster::one();
    for key in ["a", "b", "x"] {
        cluster.ok(&["put", key, "v"]);
    }
    assert_eq!(
        cluster.ok(&["ranges", "split", "m"]),
        "range 1 begins there now\n"
    );
    assert_eq!(
        cluster.ok(&["ranges", "split", "m"]),
        "range 1 begins there already\n"
    );
    let list = cluster.until(&["ranges", "list"], |list| !list.contains("none"));
    let (first, second) = (row(&list, "0"), row(&list, "1"));
    assert_eq!(first[1..4], ["(first)", "m", "m1"], "{list}");
    assert_eq!(second[1..4], ["m", "(last)", "m1"], "{list}");
    assert_eq!((first[6], second[6]), ("2", "1"), "{list}");
    assert_eq!(first.last(), Some(&"m1"));
    let ranges = json(&cluster.ok(&["ranges", "list", "--json"]));
    assert_eq!(ranges[0]["first_key"], json("null"));
    assert_eq!(
        (&ranges[1]["first_key"], &ranges[1]["keys"]),
        (&"m".into(), &1.into())
    );
    assert_eq!(ranges[1]["replicas"][0]["state"], "leads");
    cluster.fails(1, &["ranges", "split", ""]);
    cluster.fails(1, &["ranges", "transfer", "9", "m1"]);
    cluster.fails(1, &["ranges", "transfer", "1", "m9"]);
    assert_eq!(
        cluster.ok(&["ranges", "transfer", "1", "m1"]),
        "m1 leads range 1\n"
    );
}

#[test]
fn a_cluster_is_seen_through_any_of_its_members() {
    let mut cluster = Cluster::start(3, &["m"]);
    cluster.ok(&["put", "hello", "world"]);
    // All are found, though one is named.
    let one = cluster.endpoints[2].clone();
    let asked = |arguments: &[&str]| {
        let mut all = vec!["--endpoints", &one];
        all.extend(arguments);
        crate::serving::run(std::process::Command::new(crate::BINARY).args(all), b"").expect(0)
    };
    let status = asked(&["status"]);
    for (at, name) in ["m1", "m2", "m3"].iter().enumerate() {
        let row = row(&status, name);
        assert_eq!(row[2], cluster.endpoints[at], "{status}");
    }
    assert_eq!(status.matches("  leader  ").count(), 1, "{status}");
    assert!(status.contains("io of m1, m2, m3: "), "{status}");
    cluster.until(&["status"], |status| {
        status.contains("\ntolerates 1 member failure\n")
    });
    // A leader that leads one range hands it to one that leads none.
    let spread = |list: &str| {
        let ranges = json(list);
        let leader = |at: usize| ranges[at]["leader"].clone();
        !leader(0).is_null() && !leader(1).is_null() && leader(0) != leader(1)
    };
    let list = json(&cluster.until(&["ranges", "list", "--json"], spread));
    let leads = [0, 1].map(|at| list[at]["leader"].as_str().unwrap().to_owned());
    let idle = ["m1", "m2", "m3"];
    let idle = idle
        .iter()
        .find(|name| !leads.iter().any(|leader| leader == *name));
    let idle = *idle.unwrap();
    let moved = asked(&["ranges", "transfer", "1", idle]);
    assert_eq!(moved, format!("{idle} leads range 1\n"));
    cluster.until(&["ranges", "list"], |list| row(list, "1")[3] == idle);

    let why = asked(&["why", "hello"]);
    assert!(
        why.starts_with("key       hello\nvalue     5 bytes, created at revision 2"),
        "{why}"
    );
    assert!(
        why.contains("\nrange     0, from (first) to m; 1 key,"),
        "{why}"
    );
    assert!(
        why.contains(&format!("\nleader    {}, ", leads[0])),
        "{why}"
    );
    assert!(
        why.contains(&format!("{} leads, entry ", leads[0])),
        "{why}"
    );
    assert_eq!(why.matches(" follows, entry ").count(), 2, "{why}");
    let nothing = format!("nothing that {} knows holds it up", leads[0]);
    assert!(why.contains(&nothing), "{why}");
    let why = json(&asked(&["ranges", "why", "zzz", "--json"]));
    assert_eq!(
        (&why["found"], &why["looked"]),
        (&json("null"), &true.into())
    );
    assert_eq!(why["range"]["id"], 1);

    // One is away: the others tell of it.
    cluster.stop(0);
    let left = cluster.ctl(&["status"]);
    assert_eq!(left.code, 2);
    assert!(
        left.err.starts_with("pontoonctl: not reached: m1 ("),
        "{}",
        left.err
    );
    assert_eq!(row(&left.out, "m1")[2..], ["not", "reached"]);
    let weaker = "\ntolerates 1 member failure, 0 now: range 0 has 2 of 3 voters\n";
    assert!(left.out.contains(weaker), "{}", left.out);
    let led = |list: &str| !list.contains("none") && row(list, "0")[3] != "m1";
    let list = cluster.until(&["ranges", "list"], led);
    assert!(list.contains("m1(not reached) m2 m3"), "{list}");
}

#[test]
fn top_counts_what_is_done() {
    let cluster = Cluster::start(1, &["m"]);
    cluster.ok(&["put", "k", "v"]);
    let top = cluster.ok(&["top", "--once", "--every", "0.1"]);
    let (member, range) = (row(&top, "member"), row(&top, "range"));
    assert_eq!(member[..3], ["member", "puts/s", "gets/s"], "{top}");
    assert_eq!(row(&top, "m1").len(), member.len() + 1, "{top}");
    assert_eq!(range[..3], ["range", "first", "key"], "{top}");
    assert_eq!(row(&top, "1")[1..3], ["m", "m1"], "{top}");
    let top = json(&cluster.ok(&["top", "--once", "--every", "0.1", "--json", "--ranges", "1"]));
    assert_eq!(top["ranges_total"], 2);
    assert_eq!(top["ranges"].as_array().unwrap().len(), 1);
    assert!(top["members"][0]["memory_bytes"].as_f64().unwrap() > 0.0);
    assert_eq!(cluster.ctl(&["top", "--every", "0"]).code, 2);
}
