package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"google.golang.org/protobuf/proto"

	"pontoon/compat/clusters"
)

const (
	pairCount      = 4
	pairWatchesMax = 7
)

// shape is a way to run Pontoon.
type shape struct {
	name    string
	members int
	splits  []string
}

var shapes = []shape{
	{"one group", 1, nil},
	{"8 groups", 1, splits},
	{"3 nodes with leaders spread", 3, splits},
}

// run sends the same requests to etcd and to one shape of Pontoon.
type run struct {
	generator
	name          string
	etcd, pontoon *clusters.Cluster
	splits        []string
	// Whether to go on after a difference between errors.
	goOn     bool
	coverage *coverage
	history  history
	oracle   *oracle
	pairs    []*pair
	number   int
	// Revisions that the watches may not have been sent yet.
	unseen int
	// Requests until the watches are looked at again.
	burst int
	// Requests until alarms are ended; none are on if it is 0.
	alarmed int
}

func newRun(s shape, seed uint64, binaries binaries, dir string, coverage *coverage) (*run, error) {
	dir = filepath.Join(dir, strings.ReplaceAll(s.name, " ", "-"))
	// A machine that has other things to do must not cost a leader its place.
	flags := []string{"--heartbeat-interval=300", "--election-timeout=3000"}
	etcd, err := clusters.Start("etcd", binaries.etcd, dir, 1, append(flags, "--unsafe-no-fsync")...)
	if err != nil {
		return nil, err
	}
	if len(s.splits) > 0 {
		flags = append(flags, "--initial-splits="+strings.Join(s.splits, ","))
	}
	pontoon, err := clusters.Start("pontoon", binaries.pontoon, dir, s.members, flags...)
	if err != nil {
		etcd.Stop()
		return nil, err
	}
	r := &run{name: s.name, etcd: etcd, pontoon: pontoon, splits: s.splits, goOn: binaries.goOn, coverage: coverage}
	r.generator = generator{
		Rand:        rand.New(rand.NewPCG(seed, 0)),
		revision:    1,
		manyMembers: s.members > 1,
	}
	if s.members > 1 {
		if err := pontoon.AwaitSpread(len(s.splits) + 1); err != nil {
			r.stop()
			return nil, err
		}
	}
	if r.oracle, err = newOracle(etcd); err != nil {
		r.stop()
		return nil, err
	}
	return r, nil
}

func (r *run) stop() {
	for _, p := range r.pairs {
		p.close()
	}
	r.etcd.Stop()
	r.pontoon.Stop()
}

// random sends a number of random requests.
func (r *run) random(count int) error {
	for range pairCount {
		p, err := r.openPair()
		if err != nil {
			return err
		}
		r.pairs = append(r.pairs, p)
	}
	started, last := time.Now(), time.Now()
	for n := 0; n < count; n++ {
		if err := r.step(); err != nil {
			return err
		}
		if time.Since(last) > 20*time.Second {
			last = time.Now()
			fmt.Printf("%s: %d requests, revision %d, %.0f requests/s\n",
				r.name, n, r.revision, float64(n)/time.Since(started).Seconds())
		}
	}
	if err := r.compareStreams(); err != nil {
		return err
	}
	for _, p := range r.pairs {
		if err := r.finish(p); err != nil {
			return err
		}
	}
	r.pairs = nil
	return nil
}

func (r *run) step() error {
	r.number++
	if r.alarmed > 0 {
		if r.alarmed--; r.alarmed == 0 {
			return r.endAlarms()
		}
	}
	if r.burst > 0 {
		r.burst--
	} else if r.chance(2) {
		r.burst = r.IntN(30)
	}
	kind := r.IntN(1000)
	if kind < 910 {
		return r.call(r.unaryCall())
	}
	if err := r.compareStreams(); err != nil {
		return r.explain(&pb.WatchRequest{}, err)
	}
	at := r.IntN(len(r.pairs))
	p := r.pairs[at]
	switch {
	case kind < 945 && len(p.watches) < pairWatchesMax:
		request := r.watchCreate()
		what := fmt.Sprintf("watch on stream %d: {%s}", at, text(request))
		r.history.add(r.number, what, request, "")
		return r.explain(request, r.createWatch(p, request))
	case kind < 975:
		id := r.anyWatch(p)
		request := &pb.WatchCancelRequest{WatchId: id}
		r.history.add(r.number, fmt.Sprintf("cancel the watch %d on stream %d", id, at), request, "")
		return r.explain(request, r.cancelWatch(p, id))
	case kind < 993:
		return r.explain(&pb.WatchProgressRequest{}, r.requestProgress(p))
	case kind < 996:
		err := r.finish(p)
		if err == nil {
			r.pairs[at], err = r.openPair()
		}
		return r.explain(&pb.WatchRequest{}, err)
	default:
		return r.compact()
	}
}

func (r *run) anyWatch(p *pair) int64 {
	var ids []int64
	for id := range p.watches {
		ids = append(ids, id)
	}
	if len(ids) == 0 || r.chance(5) {
		return int64(r.IntN(20))
	}
	slices.Sort(ids)
	return ids[r.IntN(len(ids))]
}

// call sends a request to both sides and compares the answers.
func (r *run) call(c call) error {
	member := r.IntN(len(r.pontoon.Members))
	// With one member only a serializable read may be behind: in a group that
	// has not heard yet that nothing older comes.
	if c.isSerializable() && len(r.splits) > 0 {
		if err := r.catchUp(member); err != nil {
			return err
		}
	} else if c.isLocal() {
		if err := r.sync(member); err != nil {
			return err
		}
	}
	r.count(c)
	etcd, pontoon := sendBoth(r.etcd.Members[0].Conn, r.pontoon.Members[member].Conn, c)
	what := describeCall(c)
	wrong := difference(c, etcd, pontoon)
	if wrong != "" {
		different := fmt.Errorf("%s, at member %d\n%s", what, member, wrong)
		if r.isGap(etcd, pontoon) {
			return &gap{r.explain(c.request, different)}
		}
		if !r.goOn || etcd.err == nil {
			return r.explain(c.request, different)
		}
		fmt.Printf("request %d: %v\n", r.number, different)
	}
	outcome := etcd.failure()
	if outcome != "" {
		r.coverage.failures[outcome]++
	}
	r.follow(c, etcd)
	r.history.add(r.number, what, c.request, fmt.Sprintf("revision %d %s", r.revision, outcome))
	if _, is := c.request.(*v3electionpb.CampaignRequest); is {
		// It may have written once more than its answer tells.
		return r.call(readAll)
	}
	if r.burst == 0 && r.unseen > 0 {
		return r.explain(c.request, r.compareStreams())
	}
	return nil
}

// gap is a revision that Pontoon has left out.
type gap struct{ error }

// isGap tells whether Pontoon is ahead of etcd after a write. With several
// members a leader may lose what it was granted, and then nobody uses it.
func (r *run) isGap(etcd, pontoon answer) bool {
	if len(r.pontoon.Members) == 1 || etcd.err != nil || pontoon.err != nil {
		return false
	}
	return revisionOf(pontoon.messages[0]) > revisionOf(etcd.messages[0])
}

func (r *run) count(c call) {
	r.coverage.sent(c.request)
	if _, is := c.request.(*pb.TxnRequest); is && len(r.splits) > 0 {
		r.coverage.txns++
		if r.isOverGroups(c) {
			r.coverage.txnsOverGroups++
		}
	}
}

// isOverGroups tells whether a call is a transaction in several groups.
func (r *run) isOverGroups(c call) bool {
	txn, is := c.request.(*pb.TxnRequest)
	groups := map[int]bool{}
	if is {
		groupsOf(r.splits, txn, groups)
	}
	return len(groups) > 1
}

// follow takes from an answer what the next requests depend on.
func (r *run) follow(c call, a answer) {
	if a.err != nil {
		return
	}
	if compaction, is := c.request.(*pb.CompactionRequest); is {
		r.compacted = compaction.Revision
	}
	if alarm, is := c.request.(*pb.AlarmRequest); is && alarm.Action == pb.AlarmRequest_ACTIVATE && r.alarmed == 0 {
		r.alarmed = 1 + r.IntN(12)
	}
	revision := revisionOf(a.messages[len(a.messages)-1])
	if revision > r.revision {
		r.unseen += int(revision - r.revision)
		r.revision = revision
	}
}

func revisionOf(message proto.Message) int64 {
	if stream, is := message.(*pb.RangeStreamResponse); is {
		return stream.GetRangeResponse().GetHeader().GetRevision()
	}
	if headed, is := message.(interface{ GetHeader() *pb.ResponseHeader }); is {
		return headed.GetHeader().GetRevision()
	}
	return 0
}

func (r *run) endAlarms() error {
	for _, alarm := range []pb.AlarmType{pb.AlarmType_NOSPACE, pb.AlarmType_CORRUPT} {
		for member := range uint64(4) {
			request := &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: member, Alarm: alarm}
			if err := r.call(call{method: "/etcdserverpb.Maintenance/Alarm", request: request}); err != nil {
				return err
			}
		}
	}
	return nil
}

// compact compacts when no watch is behind, and goes on when it is done.
func (r *run) compact() error {
	for _, p := range r.pairs {
		p.catchUp()
	}
	request := r.compaction()
	before := r.compacted
	c := call{method: "/etcdserverpb.KV/Compact", request: request}
	if err := r.call(c); err != nil || request.Physical || r.compacted == before {
		return err
	}
	request = proto.CloneOf(request)
	request.Physical = true
	return r.call(call{method: c.method, request: request})
}

// sync makes a member of several know all that was answered before, also what
// has no revision, as leases and alarms: a linearizable read there does.
func (r *run) sync(member int) error {
	if len(r.pontoon.Members) == 1 {
		return nil
	}
	if a := send(r.pontoon.Members[member].Conn, readAll); a.err != nil || revisionOf(a.messages[0]) < r.revision {
		return fmt.Errorf("member %d, while the newest revision is %d: %s", member, r.revision, describe(a))
	}
	return r.catchUp(member)
}

// catchUp waits until all groups of a member show the newest revision.
func (r *run) catchUp(member int) error {
	own := proto.CloneOf(readAll.request.(*pb.RangeRequest))
	own.Serializable = true
	deadline := time.Now().Add(callTimeout)
	for {
		a := send(r.pontoon.Members[member].Conn, call{method: readAll.method, request: own})
		if a.err != nil {
			return a.err
		}
		if revisionOf(a.messages[0]) >= r.revision {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("member %d is at %s, and doesn't reach %d", member, describe(a), r.revision)
		}
	}
}

// readAll reads nothing, but tells the revision of everything.
var readAll = call{
	method:  "/etcdserverpb.KV/Range",
	request: &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, CountOnly: true},
}

// explain adds to a difference how it came to it.
func (r *run) explain(request proto.Message, wrong error) error {
	if wrong == nil {
		return nil
	}
	for _, c := range []*clusters.Cluster{r.etcd, r.pontoon} {
		if crashed := c.Crashed(); crashed != "" {
			fmt.Fprintln(os.Stderr, crashed)
		}
	}
	return fmt.Errorf("request %d, at revision %d, compacted at %d:\n%w\n\nwhat was asked before about these keys:\n%s",
		r.number, r.revision, r.compacted, wrong, r.history.about(request))
}
