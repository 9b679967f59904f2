// verdicts compares what a suite of etcd's said of Pontoon with the table in
// docs/compat.md: a test that fails and is not listed is an error, and so is one
// that is listed as failing and passes. Its arguments are the document, the name
// of the suite, and whether every test of the table was to be run ("all" or
// "some"); the output of the tests (`-test.v`) comes on stdin.
package main

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// The outcomes of a test, as `go test -v` writes them.
const (
	passed  = "PASS"
	failed  = "FAIL"
	skipped = "SKIP"
)

// The verdicts of the table.
const (
	// Every part of the test passes or skips itself, but for those with TLS.
	passes = "pass"
	// Some part fails, for the reason that the table gives.
	fails = "n.a."
	// It skips itself.
	skips = "skips itself"
	// It is left out, for the reason that the table gives.
	leftOut = "not run"
)

var (
	row     = regexp.MustCompile("^\\| `(Test\\w+)` \\| ([^|]+?) \\|")
	outcome = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (\S+) \(`)
	// Parts of a test that only differ in what is encrypted.
	withTLS = regexp.MustCompile(`AutoTLS|(^|[^on])TLS|Secure_`)
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "verdicts DOCUMENT SUITE all|some <OUTPUT")
		os.Exit(2)
	}
	document, err := os.ReadFile(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	listed := table(string(document), os.Args[2])
	ran, ended := outcomes()
	wrong := compare(listed, ran, os.Args[3] == "all")
	if !ended {
		wrong = append(wrong, "the suite broke off")
	}
	for _, line := range wrong {
		fmt.Fprintln(os.Stderr, line)
	}
	counts := map[string]int{}
	for test := range ran {
		counts[listed[test]]++
	}
	fmt.Printf("%s: %d tests ran, of which %d pass, %d are n.a., %d skip themselves\n",
		os.Args[2], len(ran), counts[passes], counts[fails], counts[skips])
	if len(wrong) > 0 {
		os.Exit(1)
	}
}

// table reads the verdicts of a suite, by test.
func table(document, suite string) map[string]string {
	_, text, _ := strings.Cut(document, "\n## `"+suite+"`\n")
	text, _, _ = strings.Cut(text, "\n## ")
	listed := map[string]string{}
	for line := range strings.Lines(text) {
		if found := row.FindStringSubmatch(line); found != nil {
			listed[found[1]] = found[2]
		}
	}
	return listed
}

// outcomes are those of the parts of each test that have no parts themselves;
// and whether the suite came to its end.
func outcomes() (ran map[string]map[string]string, ended bool) {
	said := map[string]string{}
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadString('\n')
		if found := outcome.FindStringSubmatch(line); found != nil {
			said[found[2]] = found[1]
		}
		ended = ended || line == "PASS\n" || line == "FAIL\n"
		if err != nil {
			break
		}
	}
	whole := map[string]bool{}
	for name := range said {
		for at := strings.LastIndexByte(name, '/'); at > 0; at = strings.LastIndexByte(name[:at], '/') {
			whole[name[:at]] = true
		}
	}
	ran = map[string]map[string]string{}
	for name, how := range said {
		if whole[name] {
			continue
		}
		test, _, _ := strings.Cut(name, "/")
		if ran[test] == nil {
			ran[test] = map[string]string{}
		}
		ran[test][name] = how
	}
	return ran, ended
}

func compare(listed map[string]string, ran map[string]map[string]string, all bool) (wrong []string) {
	say := func(format string, arguments ...any) {
		wrong = append(wrong, fmt.Sprintf(format, arguments...))
	}
	for test, parts := range ran {
		verdict, known := listed[test]
		if !known {
			say("%s is not in the table", test)
			continue
		}
		counts, plain := map[string]int{}, 0
		for part, how := range parts {
			if withTLS.MatchString(strings.TrimPrefix(part, test)) {
				if how == passed {
					say("%s passes, though it needs TLS", part)
				}
				continue
			}
			plain++
			counts[how]++
			if how == failed && verdict != fails {
				say("%s fails, and the table says %q", part, verdict)
			}
		}
		switch {
		case plain == 0 && verdict == fails:
		case !all && counts[failed] == 0 && verdict == passes:
		case verdict == passes && counts[passed] == 0,
			verdict == fails && counts[failed] == 0,
			verdict == skips && counts[skipped] != plain,
			verdict == leftOut:
			say("%s: the table says %q, but %d parts pass, %d fail and %d are skipped",
				test, verdict, counts[passed], counts[failed], counts[skipped])
		}
	}
	for test, verdict := range listed {
		if _, is := ran[test]; all && !is && verdict != leftOut {
			say("%s is in the table, and didn't run to its end", test)
		}
	}
	slices.Sort(wrong)
	return wrong
}
