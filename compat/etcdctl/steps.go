package main

// step is one call of etcdctl.
type step struct {
	command string
	stdin   string
	// Ended when so many lines are printed; 0: it ends by itself.
	lines int
	// What later steps call by a name: the first group of a pattern.
	learns map[string]string
	// Only what matches this is compared, where the rest is of the moment.
	keeps string
	// How it ends depends on the machine.
	endsAnyhow bool
}

// numbers in the rows of `endpoint status` are of the moment, but for errors.
const statusRow = `CLIENT, MEMBER, [0-9.]+|(true|false), (true|false)`

func steps(is34 bool, members int) (all []step) {
	add := func(commands ...string) {
		for _, command := range commands {
			all = append(all, step{command: command})
		}
	}
	keys(add)
	all = append(all,
		step{command: "put piped", stdin: "a value from a pipe"},
		step{command: "txn", stdin: "mod(\"a\") > \"0\"\n\nput a new\nget a\n\nput b old\n\n"},
		step{command: "txn -w json", stdin: "value(\"a\") = \"other\"\nver(\"b\") > \"0\"\n\nput a new\n\nget a\ndel b --prefix\n\n"},
		step{command: "txn", stdin: "create(\"none\") = \"0\"\n\nput twice 1\nput twice 2\n\n\n"},
		step{command: "txn", stdin: "nonsense\n\n\n\n"},
	)
	watches(&all)
	leases(&all, add)
	add("compaction 5", "compaction 5", "compaction --physical 7", "compaction 100000", "get a --rev=3", "get a --rev=100000",
		"compaction", "compaction x")
	recipes(&all)
	maintenance(&all, add, is34, members)
	if members == 1 {
		// How fast it is depends on the machine, so only that it is said.
		all = append(all, step{command: "check perf --load=s", keeps: `Throughput|Slowest request|Stddev`, endsAnyhow: true})
	}
	return all
}

func keys(add func(...string)) {
	add(
		"put a 1", "put b 2", "put c/1 x", "put c/2 y", "put c/3 z", "put d ''",
		"put a 10 --prev-kv", "put a 11 --prev-kv -w json", "put b --ignore-value", "put none --ignore-value",
		"put b 3 --ignore-lease", "put b --ignore-value --prev-kv -w fields", "put", "put a 1 --lease=123abc", "put '' empty",
		"get a", "get none", "get c/ --prefix", "get b c/2", "get b --from-key", "get '' --prefix", "get '' --from-key --limit=2",
		"get c/ --prefix --limit=2", "get c/ --prefix --keys-only", "get c/ --prefix --count-only", "get c/ --prefix --print-value-only",
		"get c/ --prefix --count-only -w fields", "get '' --prefix --count-only -w json",
		"get c/ --prefix --order=DESCEND", "get '' --prefix --sort-by=MODIFY --order=DESCEND", "get '' --prefix --sort-by=CREATE",
		"get '' --prefix --sort-by=VERSION --order=ASCEND", "get c/ --prefix --sort-by=VALUE --order=DESCEND",
		"get a --rev=2", "get a --rev=2 -w json", "get a --consistency=s", "get a --consistency=x", "get a -w json", "get a -w fields",
		"get c/ --prefix -w json", "get a --hex", "get a b --prefix", "get",
		"del c/1", "del c/1", "del c/2 c/4 --prev-kv", "del d --prev-kv -w json", "del none -w fields", "del c/ --prefix", "del", "del ''",
		"put e 1", "put f 1", "del e --from-key --prev-kv", "put c/1 x", "put c/2 y",
	)
}

func watches(all *[]step) {
	*all = append(*all,
		step{command: "watch a --rev=2", lines: 9},
		step{command: "watch c/ --prefix --rev=2", lines: 12},
		step{command: "watch b c/2 --rev=2 --prev-kv", lines: 8},
		step{command: "watch a --rev=2 -w json", lines: 1},
		step{command: "watch a --rev=2 -w fields", lines: 8},
		step{command: "watch -i", stdin: "watch a --rev=2\n", lines: 9},
		step{command: "watch"},
		step{command: "watch b a --rev=2"},
	)
}

func leases(all *[]step, add func(...string)) {
	*all = append(*all, step{
		command: "lease grant 1000",
		learns:  map[string]string{"{lease}": `lease ([0-9a-f]+) granted`},
	})
	add("put leased 1 --lease={lease}", "put leased/2 2 --lease={lease} --prev-kv", "get leased --prefix -w json",
		"lease timetolive {lease}", "lease timetolive {lease} --keys", "lease timetolive {lease} --keys -w json",
		"lease timetolive {lease} -w fields", "lease timetolive 123abc", "lease list", "lease list -w json",
		"lease keep-alive {lease} --once", "lease keep-alive 123abc --once", "lease keep-alive {lease} --once -w json",
		"lease revoke {lease}", "lease revoke {lease}", "lease list", "get leased --prefix", "lease revoke 123abc",
		// (The first lives for a second or two, so no list is looked at after it.)
		"lease grant 0", "lease grant x", "lease grant 10000000000")
}

func recipes(all *[]step) {
	*all = append(*all,
		step{command: "lock name 'echo' held"},
		step{command: "lock name --ttl=20 'echo' held"},
		step{command: "lock name", lines: 1, keeps: `^name/`},
		step{command: "lock name 'false'"},
		step{command: "elect team me", lines: 2, keeps: `^team/|me`},
		step{command: "elect team"},
	)
	*all = append(*all, step{command: "get name --prefix --count-only -w fields", keeps: `"Count".*`})
}

func maintenance(all *[]step, add func(...string), is34 bool, members int) {
	add("member list", "member list -w json", "member list -w fields", "member list -w table", "member list -w nonsense",
		"member remove 123abc", "member remove x", "member promote 123abc", "member promote {leader-id}", "member update 123abc --peer-urls=http://127.0.0.1:1",
		"member add other --peer-urls=nonsense", "member add other", "member update {leader-id} --peer-urls=nonsense:1")
	*all = append(*all, step{
		command: "member add late --learner --peer-urls=http://127.0.0.1:1",
		learns:  map[string]string{"{late}": `Member\s+([0-9a-f]+) added`},
	})
	add("member list", "member promote {late}", "member add late2 --learner --peer-urls=http://127.0.0.1:2",
		"member update {late} --peer-urls=http://127.0.0.1:3", "member list -w json", "member remove {late}", "member list",
		"alarm list", "alarm disarm", "alarm list -w json",
		"endpoint health", "endpoint health --cluster", "endpoint health -w json",
		"endpoint hashkv -w json", "endpoint hashkv --rev=100000",
		"--endpoints 127.0.0.1:1 --command-timeout 1s endpoint health",
		"defrag", "move-leader x", "move-leader 123abc", "--endpoints {leader} move-leader 123abc")
	*all = append(*all,
		step{command: "endpoint status", keeps: statusRow},
		step{command: "endpoint status --cluster", keeps: statusRow},
		step{command: "endpoint hashkv --cluster -w fields"},
		step{command: "defrag --cluster"},
		step{command: "endpoint status -w json", keeps: `"Endpoint":"CLIENT"|"version":"[0-9.]+"|"(errors|isLearner|leader|storageVersion)":[^,]*`},
		step{command: "endpoint status -w fields", keeps: `"(Endpoint|Version|Errors|IsLearner|Leader|ClusterID|MemberID|Revision)" : .*`},
		step{command: "endpoint status -w table", keeps: `ENDPOINT.*`},
	)
	if members > 1 {
		add("--endpoints {other} move-leader {other-id}", "--endpoints {leader} move-leader {other-id}")
	}
	if !is34 {
		add("downgrade validate 3.5", "downgrade validate x", "downgrade enable 3.1", "downgrade cancel")
	}
}
