package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	// How often every field of a request must have been set.
	fieldCountMin = 100
	// How many of the transactions and watches must span groups, in percent,
	// where there are groups.
	spanPercentMin = 20
)

// requests are the messages whose fields all have to be set now and then.
var requests = []proto.Message{
	&pb.RangeRequest{}, &pb.PutRequest{}, &pb.DeleteRangeRequest{}, &pb.TxnRequest{}, &pb.CompactionRequest{},
	&pb.WatchRequest{}, &pb.LeaseGrantRequest{}, &pb.LeaseRevokeRequest{}, &pb.LeaseKeepAliveRequest{},
	&pb.LeaseTimeToLiveRequest{}, &pb.HashKVRequest{}, &pb.AlarmRequest{}, &pb.DowngradeRequest{},
	&pb.MoveLeaderRequest{}, &pb.MemberAddRequest{}, &pb.MemberRemoveRequest{}, &pb.MemberUpdateRequest{},
	&pb.MemberListRequest{}, &pb.MemberPromoteRequest{},
	&v3lockpb.LockRequest{}, &v3lockpb.UnlockRequest{},
	&v3electionpb.CampaignRequest{}, &v3electionpb.ProclaimRequest{}, &v3electionpb.LeaderRequest{},
	&v3electionpb.ResignRequest{},
}

// unprovoked are the errors of docs/errors.md that no request here can cause.
var unprovoked = map[string]string{
	"RootUserNotExist":           "users come later",
	"RootRoleNotExist":           "users come later",
	"UserAlreadyExist":           "users come later",
	"UserEmpty":                  "users come later",
	"UserNotFound":               "users come later",
	"RoleAlreadyExist":           "users come later",
	"RoleNotFound":               "users come later",
	"RoleEmpty":                  "users come later",
	"AuthFailed":                 "users come later",
	"PermissionNotGiven":         "users come later",
	"PermissionDenied":           "users come later",
	"RoleNotGranted":             "users come later",
	"PermissionNotGranted":       "users come later",
	"AuthNotEnabled":             "users come later",
	"InvalidAuthToken":           "users come later",
	"InvalidAuthMgmt":            "users come later",
	"AuthOldRevision":            "users come later",
	"NoPasswordUser":             "users come later",
	"VerifyOnly":                 "users come later",
	"PasswordTooLong":            "users come later",
	"InvalidClientApiVersion":    "the header would have to be no text, which gRPC's client refuses to send",
	"WatchCanceled":              "sent to a client that has gone",
	"MemberExist":                "ids are made of the time, so none comes twice",
	"ClusterIdMismatch":          "only members say it to each other",
	"TooManyRequests":            "needs 5000 entries that are committed and not applied",
	"LeaderChanged":              "needs a leader to change in the middle of a read",
	"NotCapable":                 "needs a cluster with older members",
	"Stopped":                    "sent while a server stops",
	"Timeout":                    "which of the timeouts is said depends on the moment",
	"TimeoutDueToLeaderFail":     "which of the timeouts is said depends on the moment",
	"TimeoutDueToConnectionLost": "which of the timeouts is said depends on the moment",
	"TimeoutWaitAppliedIndex":    "needs a member that applies nothing",
	"TimeoutLeaderTransfer":      "needs a member that can't take a leadership over",
	"ClusterVersionUnavailable":  "only in the first moments of a cluster",
	"DowngradeInProcess":         "there is nothing to downgrade Pontoon to",
	"NoInflightDowngrade":        "etcd doesn't send it",
	"Canceled":                   "sent to a client that has gone",
	"DeadlineExceeded":           "sent to a client that has gone",
	"ContextCanceled":            "sent to a client that has gone",
	"ContextDeadlineExceeded":    "sent to a client that has gone",
	"NotPrimaryLessor":           "needs a leader to change in the middle of a lease's renewal",
	"LostWatcher":                "needs a watch inside the server to break",
	"SplitAbandoned":             "only Pontoon splits ranges",
	"TooManyVoters":              "etcd has no such bound",
}

// coverage counts what was asked and what was refused.
type coverage struct {
	requests int
	fields   map[string]int
	// The errors that both sides gave, as code and text.
	failures map[string]int
	// Why watches were refused.
	reasons map[string]int

	txns, txnsOverGroups       int
	watches, watchesOverGroups int
	events                     int
}

func newCoverage() *coverage {
	return &coverage{fields: map[string]int{}, failures: map[string]int{}, reasons: map[string]int{}}
}

// add counts what another has counted.
func (c *coverage) add(other *coverage) {
	c.requests += other.requests
	for _, maps := range [][2]map[string]int{
		{c.fields, other.fields}, {c.failures, other.failures}, {c.reasons, other.reasons},
	} {
		for name, n := range maps[1] {
			maps[0][name] += n
		}
	}
	c.txns += other.txns
	c.txnsOverGroups += other.txnsOverGroups
	c.watches += other.watches
	c.watchesOverGroups += other.watchesOverGroups
	c.events += other.events
}

func (c *coverage) sent(request proto.Message) {
	c.requests++
	c.count(request.ProtoReflect())
}

func (c *coverage) count(message protoreflect.Message) {
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		c.fields[string(field.FullName())]++
		switch {
		case field.Message() == nil:
		case field.IsList():
			for i := range value.List().Len() {
				c.count(value.List().Get(i).Message())
			}
		default:
			c.count(value.Message())
		}
		return true
	})
}

// report prints all counts, and returns what is too low.
func (c *coverage) report(errorsPage string) (missing []string, err error) {
	fmt.Printf("%d requests, %d events\n", c.requests, c.events)
	fmt.Printf("over several groups: %d of %d transactions, %d of %d watches\n",
		c.txnsOverGroups, c.txns, c.watchesOverGroups, c.watches)
	if c.txnsOverGroups*100 < c.txns*spanPercentMin {
		missing = append(missing, "transactions over several groups")
	}
	if c.watchesOverGroups*100 < c.watches*spanPercentMin {
		missing = append(missing, "watches over several groups")
	}
	fmt.Println("how often each field was set:")
	for _, name := range fieldNames() {
		fmt.Printf("  %8d %s\n", c.fields[name], name)
		if c.fields[name] < fieldCountMin {
			missing = append(missing, fmt.Sprintf("%s set %d times", name, c.fields[name]))
		}
	}
	short, err := c.reportFailures(errorsPage)
	return append(missing, short...), err
}

func fieldNames() []string {
	seen := map[protoreflect.FullName]bool{}
	var names []string
	var visit func(message protoreflect.MessageDescriptor)
	visit = func(message protoreflect.MessageDescriptor) {
		if seen[message.FullName()] {
			return
		}
		seen[message.FullName()] = true
		for i := range message.Fields().Len() {
			field := message.Fields().Get(i)
			names = append(names, string(field.FullName()))
			if field.Message() != nil {
				visit(field.Message())
			}
		}
	}
	for _, request := range requests {
		visit(request.ProtoReflect().Descriptor())
	}
	return names
}

var (
	tableRow = regexp.MustCompile("^\\| `(\\w+)` \\| (\\w+) \\(\\d+\\) \\| `(.*)` \\|$")
	openRow  = regexp.MustCompile("^\\| (\\w+) \\(\\d+\\) \\| `(.*)` \\|$")
	whyRow   = regexp.MustCompile("^\\| `(\\w+)` \\| `(.*)` \\|$")
)

// reportFailures prints how often each error of the page was given.
func (c *coverage) reportFailures(page string) (missing []string, err error) {
	file, err := os.Open(page)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	fmt.Println("how often each error was given:")
	row := func(name string, count int) {
		reason, known := unprovoked[name]
		switch {
		case count > 0 && known:
			fmt.Printf("  %8d %s\n", count, name)
			missing = append(missing, name+" was given, but is listed as one that can't be")
		case count > 0:
			fmt.Printf("  %8d %s\n", count, name)
		case known:
			fmt.Printf("         - %s: %s\n", name, reason)
		default:
			missing = append(missing, "the error "+name)
		}
	}
	lines, rows := bufio.NewScanner(file), 0
	for lines.Scan() {
		line := lines.Text()
		if found := tableRow.FindStringSubmatch(line); found != nil {
			row(found[1], c.failures[goCode(found[2])+": "+found[3]])
		} else if found := openRow.FindStringSubmatch(line); found != nil {
			row(found[2], c.alike(goCode(found[1])+": "+found[2]))
		} else if found := whyRow.FindStringSubmatch(line); found != nil {
			row(found[1], c.reasons[found[2]])
		} else {
			continue
		}
		rows++
	}
	if rows < 60 {
		return nil, fmt.Errorf("only %d errors in %s", rows, page)
	}
	return missing, lines.Err()
}

// goCode is gRPC's name of a code in Go.
func goCode(name string) string {
	if name == "Cancelled" {
		return "Canceled"
	}
	return name
}

// alike counts the errors whose text has something in place of the words in
// capitals.
func (c *coverage) alike(pattern string) (count int) {
	words := regexp.MustCompile(`\b[A-Z]+\b`).ReplaceAllString(regexp.QuoteMeta(pattern), `\S+`)
	for failure, n := range c.failures {
		if regexp.MustCompile("^" + words + "$").MatchString(failure) {
			count += n
		}
	}
	return count
}

// spans tells whether keys are on both sides of a boundary.
func spans(splits []string, key, end []byte) bool {
	if len(end) == 0 {
		return false
	}
	if bytes.Equal(end, []byte{0}) {
		return len(splits) > 0 && string(key) < splits[len(splits)-1]
	}
	return slices.ContainsFunc(splits, func(split string) bool {
		return string(key) < split && split < string(end)
	})
}

// groupsOf adds the groups that a transaction touches.
func groupsOf(splits []string, txn *pb.TxnRequest, groups map[int]bool) {
	add := func(key, end []byte) {
		from := slices.IndexFunc(splits, func(split string) bool { return string(key) < split })
		if from < 0 {
			from = len(splits)
		}
		groups[from] = true
		if spans(splits, key, end) {
			groups[from+1] = true
		}
	}
	for _, compare := range txn.Compare {
		add(compare.Key, compare.RangeEnd)
	}
	for _, op := range slices.Concat(txn.Success, txn.Failure) {
		switch request := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			add(request.RequestRange.Key, request.RequestRange.RangeEnd)
		case *pb.RequestOp_RequestPut:
			add(request.RequestPut.Key, nil)
		case *pb.RequestOp_RequestDeleteRange:
			add(request.RequestDeleteRange.Key, request.RequestDeleteRange.RangeEnd)
		case *pb.RequestOp_RequestTxn:
			groupsOf(splits, request.RequestTxn, groups)
		}
	}
}
