package members

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"pontoon/compat/clusters"
)

// counted are the members that each group counts whose leader is among those
// that are asked.
func counted(t *testing.T, members []*clusters.Member) map[uint64][]uint64 {
	t.Helper()
	counted := map[uint64][]uint64{}
	for _, m := range members {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		ranges, err := clusters.Ranges(ctx, m.Conn)
		fine(t, err)
		cancel()
		for _, group := range ranges {
			if group.Leads {
				counted[group.ID] = group.Counted
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
			// Before the members have known each other for a while, they refuse it.
			eventually(t, func(ctx context.Context) (any, error) {
				_, err := client.MemberRemove(ctx, id)
				if isOf(err, codes.NotFound, "etcdserver: member not found") {
					err = nil
				}
				return nil, err
			})
			for group, ids := range awaitCounted(t, kept) {
				if len(ids) != 2 || slices.Contains(ids, id) {
					t.Errorf("%x was removed, and group %d counts %x", id, group, ids)
				}
			}
		})
	}
}
