package members

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"

	"pontoon/compat/clusters"
)

// fields are those of a message whose type is not known here: numbers, and
// bytes as they are.
type fields map[protowire.Number][]any

func parse(t *testing.T, message []byte) fields {
	t.Helper()
	found := fields{}
	for len(message) > 0 {
		number, kind, tag := protowire.ConsumeTag(message)
		length := protowire.ConsumeFieldValue(number, kind, message[max(0, tag):])
		if tag < 0 || length < 0 {
			t.Fatalf("no message: %x", message)
		}
		value := message[tag : tag+length]
		switch kind {
		case protowire.VarintType:
			n, _ := protowire.ConsumeVarint(value)
			found[number] = append(found[number], n)
		case protowire.BytesType:
			bytes, _ := protowire.ConsumeBytes(value)
			found[number] = append(found[number], bytes)
		}
		message = message[tag+length:]
	}
	return found
}

// messages are those in a field.
func (f fields) messages(t *testing.T, number protowire.Number) (all []fields) {
	for _, value := range f[number] {
		all = append(all, parse(t, value.([]byte)))
	}
	return all
}

func (f fields) number(number protowire.Number) uint64 {
	if len(f[number]) == 0 {
		return 0
	}
	return f[number][0].(uint64)
}

// counted are the members that each group counts whose leader is among those
// that are asked. (The numbers are those of api/proto/pontoonpb.proto.)
func counted(t *testing.T, members []*clusters.Member) map[uint64][]uint64 {
	t.Helper()
	counted := map[uint64][]uint64{}
	for _, m := range members {
		var list emptypb.Empty
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		fine(t, m.Conn.Invoke(ctx, "/pontoonpb.Ranges/List", &emptypb.Empty{}, &list))
		cancel()
		for _, group := range parse(t, list.ProtoReflect().GetUnknown()).messages(t, 3) {
			for _, here := range group.messages(t, 5) {
				if here.number(3) == 0 {
					continue
				}
				ids := []uint64{}
				for _, packed := range here[17] {
					for left := packed.([]byte); len(left) > 0; {
						id, length := protowire.ConsumeVarint(left)
						ids, left = append(ids, id), left[length:]
					}
				}
				counted[group.number(1)] = ids
			}
		}
	}
	return counted
}

// awaitCounted asks until all groups are led; who they count must not have to
// be waited for.
func awaitCounted(t *testing.T, members []*clusters.Member) map[uint64][]uint64 {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		counted := counted(t, members)
		if len(counted) == groups {
			return counted
		}
		if time.Now().After(deadline) {
			t.Fatalf("only these groups are led: %v", counted)
		}
	}
}

// When a member's removal is answered, no group counts it any more, whether it
// runs or not.
func TestRemovedMemberIsInNoGroup(t *testing.T) {
	for _, runs := range []bool{true, false} {
		t.Run(fmt.Sprintf("runs=%v", runs), func(t *testing.T) {
			cluster := start(t, 3, splits)
			fine(t, cluster.AwaitSpread(groups))
			gone, kept := cluster.Members[0], cluster.Members[1:]
			client := connect(t, endpoints(kept...))
			members := eventually(t, func(ctx context.Context) (*clientv3.MemberListResponse, error) { return client.MemberList(ctx) })
			var id uint64
			for _, member := range members.Members {
				if member.Name == gone.Name {
					id = member.ID
				}
			}
			for group, ids := range awaitCounted(t, cluster.Members) {
				if len(ids) != 3 || !slices.Contains(ids, id) {
					t.Fatalf("group %d doesn't count all members, but %x", group, ids)
				}
			}
			history := newHistory()
			stop := history.load(t, endpoints(kept...), 2)
			defer stop()
			history.waitFor(t, 100)
			if !runs {
				cluster.Kill(gone)
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_, err := client.MemberRemove(ctx, id)
			fine(t, err)
			for group, ids := range awaitCounted(t, kept) {
				if len(ids) != 2 || slices.Contains(ids, id) {
					t.Errorf("%x was removed, and group %d counts %x", id, group, ids)
				}
			}
		})
	}
}
