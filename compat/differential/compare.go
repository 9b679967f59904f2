package main

import (
	"bytes"
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// excluded is everything that is not compared as it is, each with its reason.
// The functions below do what it says, and nothing else.
var excluded = []struct{ what, reason string }{
	{"header.cluster_id, member_id, raft_term: only whether they are there", "each cluster has its own"},
	{"kvs with equal sort keys: compared as sets; those cut off by the limit only by their sort key",
		"etcd's sort is not stable"},
	{"serializable reads where there are several groups: made when the member has caught up",
		"they are of the newest revision that all their groups have passed"},
	{fmt.Sprintf("a revision that is left out with 3 nodes: up to %d times, then both begin anew", gapsMax),
		"what was granted to a leader that loses it is used by nobody"},
	{"LeaseGrantResponse.ID where none was given: only whether it is above 0", "the server picks one"},
	{"LeaseTimeToLiveResponse.TTL: may differ by 2 s, and by what the slowest request took", "time passes between the two answers"},
	{"the same of leases of locks and elections: not at all", "whether etcd renews them depends on the moment"},
	{"LeaseTimeToLiveResponse.keys, LeaseLeasesResponse.leases: in any order", "etcd promises none"},
	{"HashResponse.hash, HashKVResponse.hash", "it tells members of one cluster apart, not programs"},
	{"HashKVResponse.compact_revision: -1 and 0 are the same", "both say that nothing was ever compacted"},
	{"the same at the compacted revision itself", "etcd keeps what it hashed while it compacted"},
	{"HashKVResponse at a revision that was compacted to before, from etcd", "it keeps those hashes, and others get an error"},
	{"HashKVResponse of no given revision, once revision 0 was compacted", "etcd takes the hash that it kept of 0"},
	{"StatusResponse.version, dbSize, dbSizeInUse, dbSizeQuota, leader, raftIndex, raftTerm, raftAppliedIndex",
		"they tell of the program and its files"},
	{"StatusResponse.storageVersion 3.5.0, from etcd", "it raises that some seconds after its start"},
	{"Member.ID, name, peerURLs, clientURLs: only how many there are and which are learners", "each cluster has its own"},
	{"AlarmResponse.alarms, StatusResponse.errors: in any order", "etcd keeps alarms in a map"},
	{"what one of 3 nodes answers by itself (status, hashes, lists of leases and members): asked after a linearizable read there",
		"in etcd too it tells what that member knows by then"},
	{"two spaces in StatusResponse.errors", "how many there are is chance in etcd"},
	{"Event.prev_kv of a watch that did not ask for it, from etcd",
		"etcd 3.7 shares an event among watches, so that one sees what another asked for"},
	{"how a watch's events are cut into responses while it catches up; header.revision of events that come in a burst",
		"both depend on when the server looks"},
}

// difference compares two answers; it is empty if they are equal.
func difference(c call, etcd, pontoon answer) string {
	if isKeptHash(c, etcd, pontoon) {
		return ""
	}
	if a, b := etcd.failure(), pontoon.failure(); a != b {
		return fmt.Sprintf("etcd:    %s\npontoon: %s", describe(etcd), describe(pontoon))
	}
	if len(etcd.messages) != len(pontoon.messages) {
		return fmt.Sprintf("%d messages from etcd, %d from pontoon\netcd:    %s\npontoon: %s",
			len(etcd.messages), len(pontoon.messages), describe(etcd), describe(pontoon))
	}
	for i := range etcd.messages {
		a, b := proto.Clone(etcd.messages[i]), proto.Clone(pontoon.messages[i])
		level(c.request, a, b)
		if !proto.Equal(a, b) {
			return fmt.Sprintf("etcd:    %s\npontoon: %s", text(a), text(b))
		}
	}
	return ""
}

// isKeptHash says whether etcd tells a hash of what it has compacted since.
func isKeptHash(c call, etcd, pontoon answer) bool {
	request, is := c.request.(*pb.HashKVRequest)
	if !is || len(etcd.messages) != 1 || !strings.HasSuffix(pontoon.failure(), "required revision has been compacted") {
		return false
	}
	kept, is := etcd.messages[0].(*pb.HashKVResponse)
	return is && kept.HashRevision == request.Revision
}

func describe(a answer) string {
	var parts []string
	for _, message := range a.messages {
		parts = append(parts, text(message))
	}
	if a.err != nil {
		parts = append(parts, a.failure())
	}
	return strings.Join(parts, " | ")
}

func text(message proto.Message) string {
	line := manyX.ReplaceAllString(prototext.MarshalOptions{}.Format(message), "xx…")
	if len(line) > 6000 {
		line = line[:6000] + fmt.Sprintf("… (%d bytes)", len(line))
	}
	return line
}

var manyX = regexp.MustCompile("x{20,}")

// level makes equal what need not be.
func level(request, etcd, pontoon proto.Message) {
	levelHeaders(etcd.ProtoReflect())
	levelHeaders(pontoon.ProtoReflect())
	switch a := etcd.(type) {
	case *pb.RangeResponse:
		levelSorted(request.(*pb.RangeRequest), a, pontoon.(*pb.RangeResponse))
	case *pb.TxnResponse:
		levelTxn(request.(*pb.TxnRequest), a, pontoon.(*pb.TxnResponse))
	case *pb.LeaseGrantResponse:
		b := pontoon.(*pb.LeaseGrantResponse)
		if request.(*pb.LeaseGrantRequest).ID == 0 && a.ID > 0 && b.ID > 0 {
			b.ID = a.ID
		}
	case *pb.LeaseTimeToLiveResponse:
		b := pontoon.(*pb.LeaseTimeToLiveResponse)
		apart := max(a.TTL-b.TTL, b.TTL-a.TTL)
		late := int64(time.Duration(slowest.Load()).Seconds())
		if a.TTL > 0 && b.TTL > 0 && (apart <= 2+late || a.ID >= recipeLease && a.ID < recipeLease+leaseMax) {
			b.TTL = a.TTL
		}
		slices.SortFunc(a.Keys, bytes.Compare)
		slices.SortFunc(b.Keys, bytes.Compare)
	case *pb.LeaseLeasesResponse:
		sortLeases(a.Leases)
		sortLeases(pontoon.(*pb.LeaseLeasesResponse).Leases)
	case *pb.HashResponse:
		pontoon.(*pb.HashResponse).Hash = a.Hash
	case *pb.HashKVResponse:
		b := pontoon.(*pb.HashKVResponse)
		b.Hash = a.Hash
		a.CompactRevision, b.CompactRevision = max(a.CompactRevision, 0), max(b.CompactRevision, 0)
		if b.HashRevision == b.CompactRevision {
			b.CompactRevision = a.CompactRevision
		}
		if a.HashRevision == 0 {
			b.HashRevision, b.CompactRevision = a.HashRevision, a.CompactRevision
		}
	case *pb.StatusResponse:
		b := pontoon.(*pb.StatusResponse)
		b.Version, b.DbSize, b.DbSizeInUse, b.DbSizeQuota = a.Version, a.DbSize, a.DbSizeInUse, a.DbSizeQuota
		if a.StorageVersion == "3.5.0" {
			b.StorageVersion = a.StorageVersion
		}
		b.Leader, b.RaftIndex, b.RaftTerm, b.RaftAppliedIndex = a.Leader, a.RaftIndex, a.RaftTerm, a.RaftAppliedIndex
		for i := range a.Errors {
			a.Errors[i] = strings.ReplaceAll(a.Errors[i], "  ", " ")
		}
		slices.Sort(a.Errors)
		slices.Sort(b.Errors)
	case *pb.AlarmResponse:
		sortAlarms(a.Alarms)
		sortAlarms(pontoon.(*pb.AlarmResponse).Alarms)
	case *pb.MemberListResponse:
		b := pontoon.(*pb.MemberListResponse)
		a.Members, b.Members = learners(a.Members), learners(b.Members)
	case *pb.MemberAddResponse:
		b := pontoon.(*pb.MemberAddResponse)
		b.Member.ID = a.Member.ID
		a.Members, b.Members = learners(a.Members), learners(b.Members)
	case *pb.MemberRemoveResponse:
		b := pontoon.(*pb.MemberRemoveResponse)
		a.Members, b.Members = learners(a.Members), learners(b.Members)
	case *pb.MemberUpdateResponse:
		b := pontoon.(*pb.MemberUpdateResponse)
		a.Members, b.Members = learners(a.Members), learners(b.Members)
	case *pb.MemberPromoteResponse:
		b := pontoon.(*pb.MemberPromoteResponse)
		a.Members, b.Members = learners(a.Members), learners(b.Members)
	}
}

// levelHeaders keeps of each header the revision, and what else it has.
func levelHeaders(message protoreflect.Message) {
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.Message() == nil:
		case field.IsList():
			for i := range value.List().Len() {
				levelHeaders(value.List().Get(i).Message())
			}
		default:
			levelHeaders(value.Message())
		}
		return true
	})
	if header, is := message.Interface().(*pb.ResponseHeader); is {
		header.ClusterId = min(header.ClusterId, 1)
		header.MemberId = min(header.MemberId, 1)
		header.RaftTerm = min(header.RaftTerm, 1)
	}
}

func levelTxn(request *pb.TxnRequest, etcd, pontoon *pb.TxnResponse) {
	ops := request.Failure
	if etcd.Succeeded {
		ops = request.Success
	}
	if len(etcd.Responses) != len(ops) || len(pontoon.Responses) != len(ops) {
		return
	}
	for i, op := range ops {
		a, b := etcd.Responses[i], pontoon.Responses[i]
		if ranged, nested := op.GetRequestRange(), op.GetRequestTxn(); ranged != nil && b.GetResponseRange() != nil {
			levelSorted(ranged, a.GetResponseRange(), b.GetResponseRange())
		} else if nested != nil && b.GetResponseTxn() != nil {
			levelTxn(nested, a.GetResponseTxn(), b.GetResponseTxn())
		}
	}
}

// levelSorted puts kvs with equal sort keys in the order of their keys. Of the
// last such group, if the limit cut it, only the sort keys count.
func levelSorted(request *pb.RangeRequest, etcd, pontoon *pb.RangeResponse) {
	if request.SortTarget == pb.RangeRequest_KEY {
		return
	}
	if request.KeysOnly && request.SortTarget == pb.RangeRequest_VALUE {
		// The values that were sorted by are not there to be seen.
		if etcd.More || pontoon.More {
			keepCount(etcd)
			keepCount(pontoon)
			return
		}
		sortByKey(etcd.Kvs)
		sortByKey(pontoon.Kvs)
		return
	}
	equal := func(a, b *mvccpb.KeyValue) bool {
		switch request.SortTarget {
		case pb.RangeRequest_VERSION:
			return a.Version == b.Version
		case pb.RangeRequest_CREATE:
			return a.CreateRevision == b.CreateRevision
		case pb.RangeRequest_MOD:
			return a.ModRevision == b.ModRevision
		default:
			return bytes.Equal(a.Value, b.Value)
		}
	}
	for _, answer := range []*pb.RangeResponse{etcd, pontoon} {
		for from := 0; from < len(answer.Kvs); {
			to := from + 1
			for to < len(answer.Kvs) && equal(answer.Kvs[from], answer.Kvs[to]) {
				to++
			}
			sortByKey(answer.Kvs[from:to])
			if to == len(answer.Kvs) && answer.More {
				for _, kv := range answer.Kvs[from:to] {
					onlySortKey(request.SortTarget, kv)
				}
			}
			from = to
		}
	}
}

func keepCount(answer *pb.RangeResponse) {
	for i := range answer.Kvs {
		answer.Kvs[i] = &mvccpb.KeyValue{}
	}
}

func sortByKey(kvs []*mvccpb.KeyValue) {
	slices.SortFunc(kvs, func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Key, b.Key) })
}

func onlySortKey(target pb.RangeRequest_SortTarget, kv *mvccpb.KeyValue) {
	kept := mvccpb.KeyValue{}
	switch target {
	case pb.RangeRequest_VERSION:
		kept.Version = kv.Version
	case pb.RangeRequest_CREATE:
		kept.CreateRevision = kv.CreateRevision
	case pb.RangeRequest_MOD:
		kept.ModRevision = kv.ModRevision
	default:
		kept.Value = kv.Value
	}
	proto.Reset(kv)
	proto.Merge(kv, &kept)
}

func sortLeases(leases []*pb.LeaseStatus) {
	slices.SortFunc(leases, func(a, b *pb.LeaseStatus) int {
		return cmp.Compare(a.ID, b.ID)
	})
}

func sortAlarms(alarms []*pb.AlarmMember) {
	slices.SortFunc(alarms, func(a, b *pb.AlarmMember) int { return strings.Compare(text(a), text(b)) })
}

// learners keeps of members only whether they are learners.
func learners(members []*pb.Member) []*pb.Member {
	var kept []*pb.Member
	for _, m := range members {
		kept = append(kept, &pb.Member{IsLearner: m.IsLearner})
	}
	slices.SortFunc(kept, func(a, b *pb.Member) int { return strings.Compare(text(a), text(b)) })
	return kept
}
