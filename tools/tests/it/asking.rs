//! Keys, watches, leases and members, asked for with `pontoonctl`.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::serving::{Cluster, free_ports, run, says};
use crate::{BINARY, json};

pub(crate) fn interrupt(child: &Child) {
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    kill_process(pid.unwrap(), Signal::INT).unwrap();
}

#[test]
fn keys_are_put_shown_and_deleted() {
    let cluster = Cluster::one();
    assert_eq!(cluster.ok(&["put", "hello", "world"]), "ok, revision 2\n");
    assert_eq!(cluster.ok(&["get", "hello"]), "hello  world\n");
    assert_eq!(
        json(&cluster.ok(&["put", "a", "-1", "--json"]))["revision"],
        3
    );
    cluster.ok(&["put", "ab", "2"]);
    cluster.ok(&["put", "b", "3"]);
    assert_eq!(cluster.ok(&["get", "a", "--prefix"]), "a   -1\nab  2\n");
    assert_eq!(
        cluster.ok(&["get", "ab", "--range-end", "c"]),
        "ab  2\nb   3\n"
    );
    let all = cluster.ok(&["get", "", "--prefix", "--keys-only"]);
    assert_eq!(all, "a\nab\nb\nhello\n");
    assert_eq!(cluster.ok(&["get", "", "--prefix", "--count-only"]), "4\n");
    let some = cluster.ctl(&["get", "", "--prefix", "--limit", "1"]);
    assert_eq!(some.err, "1 of 4 keys\n");
    assert_eq!(some.expect(0), "a  -1\n");
    let found = json(&cluster.ok(&["get", "ab", "--json"]));
    assert_eq!(
        (&found["count"], &found["revision"]),
        (&1.into(), &5.into())
    );
    let key = &found["keys"][0];
    assert_eq!((&key["key"], &key["value"]), (&"ab".into(), &"2".into()));
    assert_eq!(
        (&key["mod_revision"], &key["version"]),
        (&4.into(), &1.into())
    );
    assert_eq!(
        cluster.ok(&["del", "a", "--prefix"]),
        "deleted 2, revision 6\n"
    );
    assert_eq!(cluster.ok(&["get", "a", "--rev", "5"]), "a  -1\n");
    for missing in [&["get", "a"][..], &["del", "a"], &["get", "x", "--prefix"]] {
        assert!(cluster.fails(1, missing).ends_with("not found\n"));
    }
}

#[test]
fn any_bytes_can_be_a_value() {
    let cluster = Cluster::one();
    let value: Vec<u8> = (0..=255).collect();
    let put = run(&mut cluster.command(&["put", "k", "-"]), &value);
    assert_eq!(put.expect(0), "ok, revision 2\n");
    let shown = cluster.ok(&["get", "k"]);
    assert!(shown.starts_with("k  \\x00\\x01"), "{shown}");
    assert!(shown.ends_with("\\xff\n") && shown.lines().count() == 1);
    let raw = cluster.command(&["get", "k", "--raw"]).output().unwrap();
    assert_eq!(raw.stdout, value);
    cluster.ok(&["put", "\u{fc}", "\u{2192}"]);
    assert_eq!(cluster.ok(&["get", "\u{fc}"]), "\u{fc}  \u{2192}\n");
}

#[test]
fn what_the_server_refuses_ends_with_1() {
    let cluster = Cluster::one();
    let refused = cluster.fails(1, &["put", "", "v"]);
    assert_eq!(refused, "pontoonctl: etcdserver: key is not provided\n");
    let refused = cluster.fails(1, &["put", "k", "v", "--lease", "7"]);
    assert!(refused.contains("requested lease not found"), "{refused}");
    let refused = cluster.fails(1, &["get", "k", "--rev", "99"]);
    assert!(refused.contains("required revision is a future revision"));
}

#[test]
fn who_is_not_reached_or_misused_ends_with_2() {
    let nobody = format!("127.0.0.1:{}", free_ports(1)[0]);
    let ctl = |arguments: &[&str]| run(Command::new(BINARY).args(arguments), b"");
    let unreachable = says(ctl(&["--endpoints", &nobody, "get", "k"]), 2);
    assert!(unreachable.contains(&format!("no member answers: {nobody}: ")));
    assert_eq!(ctl(&["get", "k", "--endpoints", "https://a:1"]).code, 2);
    assert_eq!(ctl(&["get", "k", "--endpoints", "a:b"]).code, 2);
    assert_eq!(ctl(&["get"]).code, 2);
    assert_eq!(ctl(&["get", "k", "--rev", "x"]).code, 2);
    assert_eq!(ctl(&["lease", "revoke", "xyz"]).code, 2);
    // The next one is tried.
    let cluster = Cluster::one();
    let both = format!("{nobody},http://{}", cluster.endpoints[0]);
    let put = ctl(&["put", "k", "v", "--endpoints", &both]);
    assert_eq!(put.expect(0), "ok, revision 2\n");
}

#[test]
fn a_watch_tells_changes_until_it_is_interrupted() {
    let cluster = Cluster::one();
    for (key, value) in [("a1", "1"), ("b", "2"), ("a2", "line\n")] {
        cluster.ok(&["put", key, value]);
    }
    cluster.ok(&["del", "a1"]);
    let mut watch = cluster.command(&["watch", "a", "--prefix", "--rev", "2"]);
    let mut child = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    assert_eq!(next(), "     2  put  a1  1");
    assert_eq!(next(), "     4  put  a2  line\\n");
    assert_eq!(next(), "     5  del  a1");
    // And those that come.
    cluster.ok(&["put", "a3", "3"]);
    assert_eq!(next(), "     6  put  a3  3");
    interrupt(&child);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_watch_goes_on_with_another_member() {
    let mut cluster = Cluster::start(3, &["m"]);
    cluster.ok(&["put", "a", "1"]);
    let mut watch = cluster.command(&["watch", "a", "--rev", "2", "--json"]);
    watch.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = watch.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || json(&lines.next().unwrap().unwrap());
    let first = next();
    assert_eq!(
        (&first["revision"], &first["value"]),
        (&2.into(), &"1".into())
    );
    // It was told by the first member that answers.
    cluster.stop(0);
    cluster.until(&["put", "a", "2"], |_| true);
    let second = next();
    assert_eq!(
        (&second["revision"], &second["value"]),
        (&3.into(), &"2".into())
    );
    interrupt(&child);
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success());
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.contains("looking for another member"), "{said}");
}

#[test]
fn leases_keep_keys_as_long_as_they_live() {
    let cluster = Cluster::one();
    let granted = json(&cluster.ok(&["lease", "grant", "60", "--json"]));
    assert_eq!(granted["ttl_secs"], 60);
    let id = granted["id"].as_str().unwrap();
    cluster.ok(&["put", "k", "v", "--lease", id]);
    let life = cluster.ok(&["lease", "ttl", id]);
    let lines: Vec<_> = life.lines().collect();
    assert!(
        lines[0].starts_with(&format!("lease {id} lives for ")),
        "{life}"
    );
    assert!(lines[0].ends_with(" of 60 s") && lines[1] == "k", "{life}");
    let alive = cluster.ok(&["lease", "keepalive", id, "--once"]);
    assert_eq!(alive, format!("lease {id} lives for 60 s\n"));
    assert_eq!(cluster.ok(&["lease", "list"]), format!("{id}\n"));
    assert_eq!(
        cluster.ok(&["lease", "revoke", id]),
        format!("lease {id} has ended\n")
    );
    cluster.fails(1, &["get", "k"]);
    for gone in ["ttl", "keepalive", "revoke"] {
        let said = cluster.fails(1, &["lease", gone, id]);
        assert!(said.contains("not found"), "{said}");
    }
    assert_eq!(cluster.ok(&["lease", "list"]), "");
}

#[test]
fn members_are_listed_taken_in_and_removed() {
    let cluster = Cluster::one();
    let members = json(&cluster.ok(&["member", "list", "--json"]));
    let first = &members[0];
    assert_eq!(
        (&first["name"], &first["state"]),
        (&"m1".into(), &"voter".into())
    );
    let url = format!("http://127.0.0.1:{}", free_ports(1)[0]);
    let added = cluster.ok(&["member", "add", "m2", &url, "--learner"]);
    assert!(
        added.contains("is taken in; start it in an empty directory"),
        "{added}"
    );
    let m1 = first["peer_urls"][0].as_str().unwrap();
    assert!(added.contains(&format!("m1={m1}")) && added.contains(&format!("m2={url}")));
    let listed = cluster.ok(&["member", "list"]);
    let row = listed.lines().find(|line| line.contains(&url)).unwrap();
    assert!(row.contains("not started"), "{listed}");
    let id = row.split_whitespace().next().unwrap();
    cluster.fails(1, &["member", "promote", id]);
    cluster.fails(1, &["member", "promote", "m1"]);
    cluster.fails(1, &["member", "remove", "nobody"]);
    cluster.fails(1, &["member", "add", "m3", "nonsense"]);
    assert_eq!(
        cluster.ok(&["member", "remove", id]),
        format!("member {id} is removed\n")
    );
    assert_eq!(cluster.ok(&["member", "list"]).lines().count(), 2);
}
