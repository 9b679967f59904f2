package main

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/protobuf/proto"
)

// splits are the boundaries between groups; they cut through the keys.
var splits = []string{"a4", "b", "b7", "c5", "d", "e3", "f2"}

const (
	letters  = "abcdef"
	leaseMax = 24
	// From here on leases are those of locks and elections.
	recipeLease = 100
)

// generator makes requests of chance, and of what it knows of the store: the
// newest and the compacted revision.
type generator struct {
	*rand.Rand
	revision  int64
	compacted int64
	// A cluster whose leader may be another member than the one that is asked.
	manyMembers bool
}

func (g *generator) chance(percent int) bool { return g.IntN(100) < percent }

func (g *generator) key() []byte {
	switch g.IntN(100) {
	case 0:
		return nil
	case 1:
		return []byte{0}
	case 2:
		return []byte{0xff, byte(g.IntN(256))}
	case 3:
		return []byte(splits[g.IntN(len(splits))])
	case 4:
		return []byte(fmt.Sprintf("%c%d\x00", letters[g.IntN(len(letters))], g.IntN(10)))
	}
	return g.plainKey()
}

func (g *generator) plainKey() []byte {
	return []byte(fmt.Sprintf("%c%d", letters[g.IntN(len(letters))], g.IntN(10)))
}

// end is the end of a range that begins at key, in all shapes that there are.
func (g *generator) end(key []byte) []byte {
	switch g.IntN(12) {
	case 0:
		return []byte{0}
	case 1:
		return []byte{0, 0}
	case 2:
		return g.key()
	case 3:
		return key
	case 4, 5:
		return prefixEnd(key)
	case 6, 7:
		if len(key) > 0 {
			return prefixEnd(key[:1])
		}
		return prefixEnd(key)
	case 8, 9:
		return append(g.plainKey(), 'x')
	default:
		return nil
	}
}

func prefixEnd(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] < 0xff {
			end := append([]byte(nil), prefix[:i+1]...)
			end[i]++
			return end
		}
	}
	return []byte{0}
}

// smallEnd is one that leaves most keys alone.
func (g *generator) smallEnd(key []byte) []byte {
	switch g.IntN(40) {
	case 0:
		return g.end(key)
	case 1, 2, 3, 4, 5, 6, 7, 8:
		if len(key) == 2 {
			return []byte{key[0], min(key[1]+byte(g.IntN(3)), '9'), 'x'}
		}
	case 9, 10:
		return prefixEnd(key)
	case 11:
		return key
	case 12:
		if len(key) == 2 {
			return []byte{key[0] + 1, '2'}
		}
	}
	return nil
}

func (g *generator) value() []byte {
	switch g.IntN(20) {
	case 0:
		return nil
	case 1:
		return bytes.Repeat([]byte("x"), g.IntN(5000))
	case 2:
		return []byte{0xff, 0, byte(g.IntN(256))}
	}
	return []byte(fmt.Sprintf("v%d", g.IntN(50)))
}

// lease is an id that may be granted, or not; mostly none.
func (g *generator) lease() int64 {
	switch g.IntN(10) {
	case 0:
		return g.anyLease()
	case 1:
		return int64(1 + g.IntN(leaseMax/2))
	}
	return 0
}

func (g *generator) anyLease() int64 {
	switch g.IntN(30) {
	case 0:
		return 0
	case 1:
		return -int64(1 + g.IntN(3))
	case 2:
		return math.MaxInt64 - int64(g.IntN(2))
	}
	if g.chance(20) {
		return int64(recipeLease + g.IntN(leaseMax/2))
	}
	return int64(1 + g.IntN(leaseMax))
}

// rev is a revision in the past, at the compacted one, in the future, or none.
func (g *generator) rev() int64 {
	switch g.IntN(12) {
	case 0:
		return g.compacted
	case 1:
		return g.compacted - int64(g.IntN(3))
	case 2:
		return g.revision + 1 + int64(g.IntN(3))
	case 3:
		return -int64(g.IntN(3))
	case 4:
		return g.revision
	}
	if g.chance(50) {
		return max(g.compacted, g.revision-int64(g.IntN(20)))
	}
	return g.compacted + g.Int64N(max(1, g.revision-g.compacted))
}

func (g *generator) limit() int64 {
	switch g.IntN(8) {
	case 0:
		return -int64(g.IntN(3))
	case 1:
		return 1
	case 2:
		return math.MaxInt64
	}
	return int64(g.IntN(40))
}

func (g *generator) rangeRequest() *pb.RangeRequest {
	r := &pb.RangeRequest{Key: g.key()}
	if g.chance(75) {
		r.RangeEnd = g.end(r.Key)
	}
	if g.chance(40) {
		r.Limit = g.limit()
	}
	if g.chance(25) {
		r.Revision = g.rev()
	}
	if g.chance(35) {
		r.SortOrder = pb.RangeRequest_SortOrder(g.IntN(3))
		r.SortTarget = pb.RangeRequest_SortTarget(g.IntN(5))
	}
	if g.chance(2) {
		r.SortOrder = pb.RangeRequest_SortOrder(g.IntN(6) - 1)
	}
	if g.chance(2) {
		r.SortTarget = pb.RangeRequest_SortTarget(g.IntN(8) - 1)
	}
	r.Serializable = g.chance(20)
	r.KeysOnly = g.chance(20)
	r.CountOnly = g.chance(10)
	if g.chance(25) {
		for _, field := range []*int64{
			&r.MinModRevision, &r.MaxModRevision, &r.MinCreateRevision, &r.MaxCreateRevision,
		} {
			if g.chance(40) {
				*field = g.rev()
			}
		}
	}
	return r
}

func (g *generator) rangeStreamRequest() *pb.RangeRequest {
	r := g.rangeRequest()
	if g.chance(80) {
		r.SortOrder, r.SortTarget = pb.RangeRequest_SortOrder(g.IntN(2)), 0
	}
	if r.SortOrder == pb.RangeRequest_NONE && r.SortTarget > 0 && r.SortTarget <= pb.RangeRequest_VALUE {
		// (etcd sorts each message alone, goes on behind its last key, and so
		// loses some.)
		r.SortTarget = 0
	}
	if g.chance(90) {
		r.MinModRevision, r.MaxModRevision, r.MinCreateRevision, r.MaxCreateRevision = 0, 0, 0, 0
	}
	return r
}

func (g *generator) putRequest() *pb.PutRequest {
	r := &pb.PutRequest{Key: g.key(), Value: g.value(), Lease: g.lease(), PrevKv: g.chance(30)}
	if g.chance(8) {
		r.IgnoreValue = true
		if g.chance(80) {
			r.Value = nil
		}
	}
	if g.chance(8) {
		r.IgnoreLease = true
		if g.chance(80) {
			r.Lease = 0
		}
	}
	return r
}

func (g *generator) deleteRequest() *pb.DeleteRangeRequest {
	key := g.key()
	return &pb.DeleteRangeRequest{Key: key, RangeEnd: g.smallEnd(key), PrevKv: g.chance(40)}
}

func (g *generator) compare() *pb.Compare {
	c := &pb.Compare{Key: g.plainKey()}
	if g.chance(2) {
		c.Key = g.key()
	}
	if g.chance(20) {
		c.RangeEnd = g.end(c.Key)
	}
	c.Result = pb.Compare_CompareResult(g.IntN(4))
	c.Target = pb.Compare_CompareTarget(g.IntN(5))
	if g.chance(2) {
		c.Result = pb.Compare_CompareResult(g.IntN(9) - 2)
	}
	if g.chance(2) {
		c.Target = pb.Compare_CompareTarget(g.IntN(9) - 2)
	}
	operand := c.Target
	if g.chance(5) {
		operand = pb.Compare_CompareTarget(g.IntN(6))
	}
	switch operand {
	case pb.Compare_VERSION:
		c.TargetUnion = &pb.Compare_Version{Version: int64(g.IntN(6))}
	case pb.Compare_CREATE:
		c.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: max(0, g.revision-int64(g.IntN(300)))}
	case pb.Compare_MOD:
		c.TargetUnion = &pb.Compare_ModRevision{ModRevision: max(0, g.revision-int64(g.IntN(100)))}
	case pb.Compare_VALUE:
		c.TargetUnion = &pb.Compare_Value{Value: g.value()}
	case pb.Compare_LEASE:
		c.TargetUnion = &pb.Compare_Lease{Lease: g.lease()}
	}
	return c
}

// txnRequest makes one whose form is mostly right: keys are not changed twice,
// unless chance wants it.
func (g *generator) txnRequest(depth int, used map[string]bool) *pb.TxnRequest {
	r := &pb.TxnRequest{}
	for range g.IntN(4) {
		r.Compare = append(r.Compare, g.compare())
	}
	// What is changed in one branch may be changed in the other.
	other := map[string]bool{}
	for key := range used {
		other[key] = true
	}
	r.Success = g.ops(depth, used)
	r.Failure = g.ops(depth, other)
	for key := range other {
		used[key] = true
	}
	if depth == 0 && g.chance(1) {
		for range 120 + g.IntN(20) {
			r.Success = append(r.Success, rangeOp(&pb.RangeRequest{Key: g.plainKey()}))
		}
	}
	if depth == 0 && g.chance(1) {
		for range 120 + g.IntN(20) {
			r.Compare = append(r.Compare, g.compare())
		}
	}
	if depth == 0 {
		g.tame(r)
	}
	return r
}

func (g *generator) ops(depth int, used map[string]bool) (ops []*pb.RequestOp) {
	readOnly := g.chance(20)
	for range g.IntN(4) {
		switch kind := g.IntN(20); {
		case readOnly || kind < 5:
			ops = append(ops, rangeOp(g.rangeRequest()))
		case kind < 12:
			put := g.putRequest()
			if used[string(put.Key)] && g.chance(97) {
				continue
			}
			used[string(put.Key)] = true
			ops = append(ops, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: put}})
		case kind < 16:
			deletion := g.deleteRequest()
			if overlaps(used, deletion) && g.chance(97) {
				continue
			}
			ops = append(ops, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: deletion}})
		case kind < 19 && depth < 3:
			nested := &pb.RequestOp_RequestTxn{RequestTxn: g.txnRequest(depth+1, used)}
			ops = append(ops, &pb.RequestOp{Request: nested})
		case g.chance(10):
			ops = append(ops, &pb.RequestOp{})
		}
	}
	return ops
}

func overlaps(used map[string]bool, deletion *pb.DeleteRangeRequest) bool {
	for key := range used {
		if covers(deletion.Key, deletion.RangeEnd, []byte(key)) {
			return true
		}
	}
	return false
}

func rangeOp(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

// tame takes away what makes etcd panic: a key that is deleted "from here on"
// and then put with what it had before.
func (g *generator) tame(txn *pb.TxnRequest) {
	if !deletesFromKey(txn) {
		return
	}
	var visit func(txn *pb.TxnRequest)
	visit = func(txn *pb.TxnRequest) {
		for _, branch := range [][]*pb.RequestOp{txn.Success, txn.Failure} {
			for _, op := range branch {
				if put := op.GetRequestPut(); put != nil {
					put.IgnoreValue, put.IgnoreLease = false, false
				}
				if nested := op.GetRequestTxn(); nested != nil {
					visit(nested)
				}
			}
		}
	}
	visit(txn)
}

func deletesFromKey(txn *pb.TxnRequest) bool {
	for _, branch := range [][]*pb.RequestOp{txn.Success, txn.Failure} {
		for _, op := range branch {
			if deletion := op.GetRequestDeleteRange(); deletion != nil && string(deletion.RangeEnd) == "\x00" {
				return true
			}
			if nested := op.GetRequestTxn(); nested != nil && deletesFromKey(nested) {
				return true
			}
		}
	}
	return false
}

func (g *generator) leaseCall() call {
	switch kind := g.IntN(100); {
	case kind < 25:
		r := &pb.LeaseGrantRequest{ID: g.anyLease(), TTL: int64(100_000 + g.IntN(1_000_000))}
		switch g.IntN(20) {
		case 0:
			r.TTL = 9_000_000_001
		case 1:
			r.TTL = math.MaxInt64
		}
		if r.ID == 0 {
			// Its id is not the same on both sides, so nothing may hang on it.
			r.TTL = max(r.TTL, 9_000_000_001)
		}
		return call{method: "/etcdserverpb.Lease/LeaseGrant", request: r}
	case kind < 30:
		return call{method: "/etcdserverpb.Lease/LeaseRevoke", request: &pb.LeaseRevokeRequest{ID: g.anyLease()}}
	case kind < 65:
		r := &pb.LeaseTimeToLiveRequest{ID: g.anyLease(), Keys: g.chance(60)}
		return call{method: "/etcdserverpb.Lease/LeaseTimeToLive", request: r}
	case kind < 75:
		return call{method: "/etcdserverpb.Lease/LeaseLeases", request: &pb.LeaseLeasesRequest{}}
	default:
		return call{method: keepAlive, request: &pb.LeaseKeepAliveRequest{ID: g.anyLease()}}
	}
}

func (g *generator) compaction() *pb.CompactionRequest {
	r := &pb.CompactionRequest{Revision: g.rev(), Physical: g.chance(50)}
	if g.chance(50) {
		r.Revision = max(g.compacted, g.revision-int64(g.IntN(100)))
	}
	return r
}

// recipeCall is one to the Lock or Election service that needs not wait.
func (g *generator) recipeCall() call {
	// Leases are used by one line alone, so that nobody stands before them.
	lease := int64(recipeLease + g.IntN(leaseMax/2))
	name := []byte(fmt.Sprintf("%c-line-%d", letters[g.IntN(len(letters))], lease))
	key := []byte(fmt.Sprintf("%s/%x", name, lease))
	if g.chance(3) {
		key = nil
	}
	leader := &v3electionpb.LeaderKey{Name: name, Key: key, Rev: g.revision - int64(g.IntN(8)), Lease: lease}
	if g.chance(5) {
		leader = nil
	}
	switch g.IntN(7) {
	case 0:
		return call{method: "/v3lockpb.Lock/Lock", request: &v3lockpb.LockRequest{Name: name, Lease: lease}}
	case 1:
		return call{method: "/v3lockpb.Lock/Unlock", request: &v3lockpb.UnlockRequest{Key: key}}
	case 2, 3:
		r := &v3electionpb.CampaignRequest{Name: name, Lease: lease, Value: g.value()}
		return call{method: "/v3electionpb.Election/Campaign", request: r}
	case 4:
		r := &v3electionpb.ProclaimRequest{Leader: leader, Value: g.value()}
		return call{method: "/v3electionpb.Election/Proclaim", request: r}
	case 5:
		return call{method: "/v3electionpb.Election/Leader", request: &v3electionpb.LeaderRequest{Name: name}}
	default:
		return call{method: "/v3electionpb.Election/Resign", request: &v3electionpb.ResignRequest{Leader: leader}}
	}
}

// clusterCall is one about members that changes none, or one about alarms and
// the like.
func (g *generator) clusterCall() call {
	unknown := uint64(1 + g.IntN(5))
	badURLs := [][]string{{"127.0.0.1:1"}, {"http://127.0.0.1"}, {"ftp://127.0.0.1:1"}, {"http://127.0.0.1:1/x"}, {""}}
	urls := badURLs[g.IntN(len(badURLs))]
	kinds := 15
	if g.manyMembers {
		// MoveLeader has to be asked for at the leader, and there is no list
		// of one.
		kinds = 13
	}
	switch g.IntN(kinds) {
	case 13:
		return call{method: "/etcdserverpb.Cluster/MemberList", request: &pb.MemberListRequest{Linearizable: g.chance(90)}}
	case 0:
		return call{method: "/etcdserverpb.Cluster/MemberAdd",
			request: &pb.MemberAddRequest{PeerURLs: urls, IsLearner: g.chance(80)}}
	case 1:
		return call{method: "/etcdserverpb.Cluster/MemberRemove", request: &pb.MemberRemoveRequest{ID: unknown}}
	case 2:
		return call{method: "/etcdserverpb.Cluster/MemberUpdate",
			request: &pb.MemberUpdateRequest{ID: unknown, PeerURLs: urls}}
	case 3:
		return call{method: "/etcdserverpb.Cluster/MemberPromote", request: &pb.MemberPromoteRequest{ID: unknown}}
	case 4:
		return call{method: "/etcdserverpb.Maintenance/Hash", request: &pb.HashRequest{}}
	case 5, 6:
		return call{method: "/etcdserverpb.Maintenance/HashKV", request: &pb.HashKVRequest{Revision: g.rev()}}
	case 7:
		return call{method: "/etcdserverpb.Maintenance/Status", request: &pb.StatusRequest{}}
	case 8, 9:
		versions := []string{"", "3", "x", "3.7", "3.5", "4.0", "3.7.3", "3.6.", "3.6.0.0", "-1.2"}
		r := &pb.DowngradeRequest{
			Action:  pb.DowngradeRequest_DowngradeAction(g.IntN(4)),
			Version: versions[g.IntN(len(versions))],
		}
		return call{method: "/etcdserverpb.Maintenance/Downgrade", request: r}
	case 10, 11, 12:
		return call{method: "/etcdserverpb.Maintenance/Alarm", request: g.alarmRequest()}
	default:
		return call{method: "/etcdserverpb.Maintenance/MoveLeader", request: &pb.MoveLeaderRequest{TargetID: unknown}}
	}
}

func (g *generator) alarmRequest() *pb.AlarmRequest {
	return &pb.AlarmRequest{
		// (An action that is not known makes etcd panic.)
		Action:   pb.AlarmRequest_AlarmAction(g.IntN(3)),
		MemberID: uint64(g.IntN(4)),
		Alarm:    pb.AlarmType(g.IntN(3)),
	}
}

func (g *generator) watchCreate() *pb.WatchCreateRequest {
	r := &pb.WatchCreateRequest{
		Key:            g.key(),
		PrevKv:         g.chance(40),
		Fragment:       g.chance(30),
		ProgressNotify: g.chance(30),
	}
	switch kind := g.IntN(100); {
	case kind < 60:
		r.RangeEnd = g.end(r.Key)
	case kind < 80:
		// Many keys, and so several groups.
		r.Key, r.RangeEnd = g.plainKey(), g.plainKey()
		if bytes.Compare(r.Key, r.RangeEnd) > 0 {
			r.Key, r.RangeEnd = r.RangeEnd, r.Key
		}
	}
	if g.chance(50) {
		r.StartRevision = g.rev()
	}
	if g.chance(5) {
		r.StartRevision = g.revision + int64(g.IntN(30))
	}
	if g.chance(30) {
		r.WatchId = int64(g.IntN(12))
		if g.chance(5) {
			r.WatchId = -2 - int64(g.IntN(3))
		}
	}
	for range g.IntN(3) * g.IntN(2) {
		r.Filters = append(r.Filters, pb.WatchCreateRequest_FilterType(g.IntN(2)))
	}
	if g.chance(1) {
		r.Filters = append(r.Filters, 7)
	}
	return r
}

// unaryCall is any request that has one answer.
func (g *generator) unaryCall() call {
	var method string
	var request proto.Message
	switch kind := g.IntN(1000); {
	case kind < 330:
		method, request = "/etcdserverpb.KV/Put", g.putRequest()
	case kind < 540:
		method, request = "/etcdserverpb.KV/Range", g.rangeRequest()
	case kind < 590:
		method, request = rangeStream, g.rangeStreamRequest()
	case kind < 640:
		method, request = "/etcdserverpb.KV/DeleteRange", g.deleteRequest()
	case kind < 840:
		method, request = "/etcdserverpb.KV/Txn", g.txnRequest(0, map[string]bool{})
	case kind < 930:
		return g.leaseCall()
	case kind < 965:
		return g.recipeCall()
	default:
		return g.clusterCall()
	}
	return call{method: method, request: request}
}
