package goclient

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func TestLeaseTakesItsKeys(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		lease := must[*clientv3.LeaseGrantResponse](t)(client.Grant(soon(t), 100)).ID
		for _, key := range []string{"b-leased", "r-leased"} {
			must[*clientv3.PutResponse](t)(client.Put(soon(t), key, "", clientv3.WithLease(lease)))
		}
		left := must[*clientv3.LeaseTimeToLiveResponse](t)(client.TimeToLive(soon(t), lease, clientv3.WithAttachedKeys()))
		equal(t, len(left.Keys), 2)
		must[*clientv3.LeaseRevokeResponse](t)(client.Revoke(soon(t), lease))
		equal(t, read(t, client, "b-leased")+read(t, client, "r-leased"), "")
		_, err := client.Revoke(soon(t), lease)
		equal(t, errors.Is(err, rpctypes.ErrLeaseNotFound), true)
	})
}

func TestLeaseEnds(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		lease := must[*clientv3.LeaseGrantResponse](t)(client.Grant(soon(t), 1)).ID
		watch := client.Watch(soon(t), "lease/ends", clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
		next(t, watch)
		must[*clientv3.PutResponse](t)(client.Put(soon(t), "lease/ends", "", clientv3.WithLease(lease)))
		equal(t, next(t, watch).Events[0].Type, clientv3.EventTypeDelete)
	})
}

func TestKeepAliveOnce(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		lease := must[*clientv3.LeaseGrantResponse](t)(client.Grant(soon(t), 50)).ID
		equal(t, must[*clientv3.LeaseKeepAliveResponse](t)(client.KeepAliveOnce(soon(t), lease)).TTL, 50)
		_, err := client.KeepAliveOnce(soon(t), 98765)
		equal(t, errors.Is(err, rpctypes.ErrLeaseNotFound), true)
	})
}

func TestKeepAliveOutlivesTheTime(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		lease := must[*clientv3.LeaseGrantResponse](t)(client.Grant(soon(t), 2)).ID
		must[*clientv3.PutResponse](t)(client.Put(soon(t), "lease/kept", "", clientv3.WithLease(lease)))
		alive := must[<-chan *clientv3.LeaseKeepAliveResponse](t)(client.KeepAlive(soon(t), lease))
		until := time.Now().Add(5 * time.Second)
		for time.Now().Before(until) {
			if answer := <-alive; answer == nil {
				t.Fatal("it is not kept alive")
			}
		}
		equal(t, read(t, client, "lease/kept"), "lease/kept")
	})
}

func TestLeasesAreListed(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		lease := must[*clientv3.LeaseGrantResponse](t)(client.Grant(soon(t), 100)).ID
		for ctx := soon(t); ; {
			for _, found := range must[*clientv3.LeaseLeasesResponse](t)(client.Leases(ctx)).Leases {
				if found.ID == lease {
					return
				}
			}
			fine(t, ctx.Err())
		}
	})
}

func TestMutexIsHeldByOne(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		var holders atomic.Int32
		var group sync.WaitGroup
		for range 5 {
			group.Go(func() {
				session, err := concurrency.NewSession(client)
				if err != nil {
					t.Error(err)
					return
				}
				defer session.Close()
				mutex := concurrency.NewMutex(session, "mutex")
				for range 3 {
					if err := mutex.Lock(soon(t)); err != nil {
						t.Error(err)
						return
					}
					if holders.Add(1) != 1 {
						t.Error("two hold the lock")
					}
					holders.Add(-1)
					if err := mutex.Unlock(soon(t)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		group.Wait()
	})
}

func TestTryLock(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		first := must[*concurrency.Session](t)(concurrency.NewSession(client))
		defer first.Close()
		second := must[*concurrency.Session](t)(concurrency.NewSession(client))
		defer second.Close()
		fine(t, concurrency.NewMutex(first, "try").TryLock(soon(t)))
		err := concurrency.NewMutex(second, "try").TryLock(soon(t))
		equal(t, errors.Is(err, concurrency.ErrLocked), true)
	})
}

func TestElection(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		first := must[*concurrency.Session](t)(concurrency.NewSession(client))
		second := must[*concurrency.Session](t)(concurrency.NewSession(client))
		defer second.Close()
		a, b := concurrency.NewElection(first, "election"), concurrency.NewElection(second, "election")
		fine(t, a.Campaign(soon(t), "a"))
		won := make(chan error, 1)
		go func() { won <- b.Campaign(within(t, 20*time.Second), "b") }()
		seen := b.Observe(soon(t))
		equal(t, string((<-seen).Kvs[0].Value), "a")
		fine(t, a.Proclaim(soon(t), "a2"))
		equal(t, string((<-seen).Kvs[0].Value), "a2")
		// Who goes without a word makes room.
		fine(t, first.Close())
		fine(t, <-won)
		leader := must[*clientv3.GetResponse](t)(b.Leader(soon(t)))
		equal(t, string(leader.Kvs[0].Value), "b")
	})
}

func TestSoftwareTransactions(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		must[*clientv3.PutResponse](t)(client.Put(soon(t), "b-stm", "0"))
		must[*clientv3.PutResponse](t)(client.Put(soon(t), "t-stm", ""))
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				for range 5 {
					_, err := concurrency.NewSTM(client, func(stm concurrency.STM) error {
						stm.Put("t-stm", stm.Get("t-stm")+"x")
						return nil
					}, concurrency.WithIsolation(concurrency.SerializableSnapshot))
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		group.Wait()
		got := must[*clientv3.GetResponse](t)(client.Get(soon(t), "t-stm"))
		equal(t, len(got.Kvs[0].Value), 20)
	})
}

func TestSessionEndsWithItsLease(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		session := must[*concurrency.Session](t)(concurrency.NewSession(client, concurrency.WithTTL(2)))
		must[*clientv3.LeaseRevokeResponse](t)(client.Revoke(context.Background(), session.Lease()))
		select {
		case <-session.Done():
		case <-time.After(20 * time.Second):
			t.Fatal("the session goes on")
		}
	})
}
