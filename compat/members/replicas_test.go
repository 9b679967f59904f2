package members

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
)

// One key in each of the eight groups.
var keyOfEach = []string{"a", "d", "h", "k", "n", "q", "t", "x"}

// awaitKeys waits until there are so many keys with a prefix.
func awaitKeys(t *testing.T, client *clientv3.Client, prefix string, count int64) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		found := eventually(t, func(ctx context.Context) (*clientv3.GetResponse, error) {
			return client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		})
		if found.Count == count {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("there are %d keys with %s, not %d", found.Count, prefix, count)
		}
	}
}

func lease(t *testing.T, client *clientv3.Client) int64 {
	t.Helper()
	granted := eventually(t, func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) {
		return client.Grant(ctx, 600)
	})
	return int64(granted.ID)
}

// Of five members three have a range: locks and elections work through each of
// them, also for ranges that it hasn't.
func TestLocksAndElectionsWithoutReplica(t *testing.T) {
	cluster := start(t, 5, splits, "--replicas=3")
	client := connect(t, endpoints(cluster.Members...))
	for _, key := range keyOfEach {
		eventually(t, func(ctx context.Context) (any, error) { return client.Put(ctx, key, "1") })
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	first, second := lease(t, client), lease(t, client)
	for at, member := range cluster.Members {
		other := cluster.Members[(at+1)%len(cluster.Members)]
		for _, key := range keyOfEach {
			lock(ctx, t, client, key+"/lock", v3lockpb.NewLockClient(member.Conn), first, v3lockpb.NewLockClient(other.Conn), second)
			elect(ctx, t, client, key+"/leader", v3electionpb.NewElectionClient(member.Conn), first, v3electionpb.NewElectionClient(other.Conn), second)
		}
	}
}

// lock has one take a lock for which another then waits.
func lock(ctx context.Context, t *testing.T, client *clientv3.Client, name string, one v3lockpb.LockClient, first int64, other v3lockpb.LockClient, second int64) {
	t.Helper()
	held, err := one.Lock(ctx, &v3lockpb.LockRequest{Name: []byte(name), Lease: first})
	fine(t, err)
	next := make(chan *v3lockpb.LockResponse, 1)
	go func() {
		held, err := other.Lock(ctx, &v3lockpb.LockRequest{Name: []byte(name), Lease: second})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		next <- held
	}()
	awaitKeys(t, client, name+"/", 2)
	select {
	case <-next:
		t.Fatalf("%s is held twice", name)
	default:
	}
	_, err = one.Unlock(ctx, &v3lockpb.UnlockRequest{Key: held.Key})
	fine(t, err)
	_, err = other.Unlock(ctx, &v3lockpb.UnlockRequest{Key: (<-next).GetKey()})
	fine(t, err)
}

// elect has one lead and another follow, as a third is told.
func elect(ctx context.Context, t *testing.T, client *clientv3.Client, name string, one v3electionpb.ElectionClient, first int64, other v3electionpb.ElectionClient, second int64) {
	t.Helper()
	leads, err := one.Campaign(ctx, &v3electionpb.CampaignRequest{Name: []byte(name), Lease: first, Value: []byte("one")})
	fine(t, err)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	told, err := other.Observe(ctx, &v3electionpb.LeaderRequest{Name: []byte(name)})
	fine(t, err)
	expect := func(value string) {
		t.Helper()
		leader, err := told.Recv()
		fine(t, err)
		if string(leader.Kv.Value) != value {
			t.Fatalf("%s is led by %s, not by %s", name, leader.Kv.Value, value)
		}
	}
	expect("one")
	next := make(chan *v3electionpb.CampaignResponse, 1)
	go func() {
		leads, err := other.Campaign(ctx, &v3electionpb.CampaignRequest{Name: []byte(name), Lease: second, Value: []byte("other")})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		next <- leads
	}()
	awaitKeys(t, client, name+"/", 2)
	_, err = one.Resign(ctx, &v3electionpb.ResignRequest{Leader: leads.Leader})
	fine(t, err)
	expect("other")
	_, err = other.Resign(ctx, &v3electionpb.ResignRequest{Leader: (<-next).GetLeader()})
	fine(t, err)
}
