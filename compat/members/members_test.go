// Package members has members of a real cluster of Pontoon die, stop, come
// back and be replaced, while clients write: what was acknowledged is there.
package members

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"

	"pontoon/compat/clusters"
)

// The boundaries of eight groups.
const splits = "--initial-splits=c,g,j,m,p,s,w"
const groups = 8

func start(t testing.TB, count int, flags ...string) *clusters.Cluster {
	t.Helper()
	binary := os.Getenv("PONTOON")
	if binary == "" {
		t.Fatal("PONTOON must name the server")
	}
	cluster, err := clusters.Start(fmt.Sprintf("of-%d", count), binary, t.TempDir(), count, flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Stop)
	return cluster
}

func connect(t testing.TB, endpoints []string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints:   endpoints,
		DialTimeout: 5 * time.Second,
		Logger:      zap.NewNop(),
	})
	fine(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}

func endpoints(members ...*clusters.Member) (endpoints []string) {
	for _, m := range members {
		endpoints = append(endpoints, m.Endpoint())
	}
	return endpoints
}

func fine(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Any minority may be down: writes go on. With one more down nothing can be
// written, and what the others have can be read as it was.
func TestAsManyFailuresAsEtcdTolerates(t *testing.T) {
	for _, count := range []int{3, 5, 7} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			cluster := start(t, count, splits)
			fine(t, cluster.AwaitSpread(groups))
			history := newHistory()
			all := cluster.Members
			order := rand.Perm(count)
			client := connect(t, endpoints(all...))
			write := func(number int) {
				for _, key := range keys(0, 52) {
					eventually(t, func(ctx context.Context) (any, error) {
						return nil, history.put(ctx, client, key, number)
					})
				}
			}
			write(1)
			tolerated := (count - 1) / 2
			for _, at := range order[:tolerated] {
				cluster.Kill(all[at])
			}
			write(2)
			cluster.Kill(all[order[tolerated]])
			for _, at := range order[tolerated+1:] {
				alone := connect(t, endpoints(all[at]))
				ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
				_, err := alone.Put(ctx, "a/lost", "1")
				cancel()
				if !isOf(err, codes.Unavailable, "etcdserver: request timed out", "etcdserver: no leader", "etcdserver: leader changed",
					"etcdserver: request timed out, possibly due to previous leader failure") {
					t.Errorf("a write without a quorum: %v", err)
				}
				history.check(t, alone, clientv3.WithSerializable())
			}
			for _, at := range order[:tolerated+1] {
				fine(t, cluster.StartMember(all[at], "existing"))
			}
			write(3)
			history.check(t, client)
		})
	}
}

// Members are killed, one after the other, and come back.
func TestKilledMembers(t *testing.T) {
	cluster := start(t, 3, splits)
	history := newHistory()
	stop := history.load(t, endpoints(cluster.Members...), 4)
	for range 6 {
		history.waitFor(t, 200)
		m := cluster.Members[rand.IntN(3)]
		cluster.Kill(m)
		history.waitFor(t, 50)
		fine(t, cluster.Restart(m))
	}
	stop()
	history.onlyRetries(t)
	history.check(t, connect(t, endpoints(cluster.Members...)))
	t.Logf("%d writes were acknowledged", history.count)
}

// Members are stopped and started again in turn, as for a new version.
func TestRollingRestart(t *testing.T) {
	cluster := start(t, 3, splits)
	history := newHistory()
	stop := history.load(t, endpoints(cluster.Members...), 4)
	for range 2 {
		for _, m := range cluster.Members {
			history.waitFor(t, 100)
			fine(t, cluster.Terminate(m))
			history.waitFor(t, 100)
			fine(t, cluster.Restart(m))
		}
	}
	stop()
	history.onlyRetries(t)
	history.check(t, connect(t, endpoints(cluster.Members...)))
	t.Logf("%d writes were acknowledged", history.count)
}

// A member that is gone for good is replaced, in every group.
func TestReplacedMember(t *testing.T) {
	cluster := start(t, 3, splits)
	fine(t, cluster.AwaitSpread(groups))
	history := newHistory()
	client := connect(t, endpoints(cluster.Members...))
	stop := history.load(t, endpoints(cluster.Members...), 4)
	history.waitFor(t, 500)
	gone, kept := cluster.Members[0], cluster.Members[1:]
	members := eventually(t, func(ctx context.Context) (*clientv3.MemberListResponse, error) { return client.MemberList(ctx) })
	cluster.Kill(gone)
	for _, member := range members.Members {
		if member.Name == gone.Name {
			eventually(t, func(ctx context.Context) (any, error) {
				_, err := client.MemberRemove(ctx, member.ID)
				if isOf(err, codes.NotFound, "etcdserver: member not found") {
					err = nil
				}
				return nil, err
			})
		}
	}
	fine(t, cluster.Forget(gone))
	// With two members each is needed, and everything is written all the same.
	history.waitFor(t, 200)
	next, err := clusters.NewMember("next")
	fine(t, err)
	added := eventually(t, func(ctx context.Context) (*clientv3.MemberAddResponse, error) {
		return client.MemberAddAsLearner(ctx, []string{next.PeerURL})
	})
	// It has nothing yet.
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	_, err = client.MemberPromote(ctx, added.Member.ID)
	cancel()
	if !isOf(err, codes.FailedPrecondition, "etcdserver: can only promote a learner member which is in sync with leader") {
		t.Errorf("a member that has not begun is promoted: %v", err)
	}
	cluster.Members = append(cluster.Members, next)
	fine(t, cluster.StartMember(next, "existing"))
	eventually(t, func(ctx context.Context) (any, error) { return client.MemberPromote(ctx, added.Member.ID) })
	history.waitFor(t, 200)
	// The new one counts in every group: with one of the others down too,
	// everything is still written.
	cluster.Kill(kept[0])
	stop()
	client = connect(t, endpoints(kept[1], next))
	for _, key := range keys(9, 52) {
		eventually(t, func(ctx context.Context) (any, error) { return nil, history.put(ctx, client, key, 1) })
	}
	history.check(t, client)
	t.Logf("%d writes were acknowledged", history.count)
}
