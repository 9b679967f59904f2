package goclient

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/leasing"
	"go.etcd.io/etcd/client/v3/mirror"
	"go.etcd.io/etcd/client/v3/namespace"
	"go.etcd.io/etcd/client/v3/ordering"
)

func TestPutAndGet(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		revision := put(t, client, "kv/a")
		got := must[*clientv3.GetResponse](t)(client.Get(soon(t), "kv/a"))
		equal(t, string(got.Kvs[0].Value), "kv/a")
		equal(t, got.Kvs[0].ModRevision, revision)
	})
}

func TestRangesOverGroups(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		put(t, client, "range/", "rbnge/", "sange/", "tange/")
		equal(t, read(t, client, "range/", clientv3.WithRange("u")), "range/ rbnge/ sange/ tange/")
		last := []clientv3.OpOption{
			clientv3.WithRange("u"), clientv3.WithLimit(2), clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend),
		}
		equal(t, read(t, client, "range/", last...), "tange/ sange/")
	})
}

func TestPrefixAndFromKey(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		put(t, client, "prefix/1", "prefix/2", "prefix0")
		equal(t, read(t, client, "prefix/", clientv3.WithPrefix()), "prefix/1 prefix/2")
		count := must[*clientv3.GetResponse](t)(client.Get(soon(t), "prefix/", clientv3.WithPrefix(), clientv3.WithCountOnly()))
		equal(t, count.Count, 2)
		if all := read(t, client, "prefix/2", clientv3.WithFromKey()); !strings.HasPrefix(all, "prefix/2 prefix0") {
			t.Fatal(all)
		}
	})
}

func TestPastRevisions(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		before := put(t, client, "past")
		must[*clientv3.DeleteResponse](t)(client.Delete(soon(t), "past"))
		equal(t, read(t, client, "past"), "")
		equal(t, read(t, client, "past", clientv3.WithRev(before)), "past")
	})
}

func TestSerializableGet(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		put(t, client, "serial")
		// Another member may answer, which is a little behind.
		for deadline := time.Now().Add(30 * time.Second); read(t, client, "serial", clientv3.WithSerializable()) != "serial"; {
			if time.Now().After(deadline) {
				t.Fatal("it is not there")
			}
			time.Sleep(time.Millisecond)
		}
	})
}

func TestDeletePrefixTellsWhatWasThere(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		put(t, client, "delete/1", "delete/2")
		gone := must[*clientv3.DeleteResponse](t)(client.Delete(soon(t), "delete/", clientv3.WithPrefix(), clientv3.WithPrevKV()))
		equal(t, gone.Deleted, 2)
		equal(t, string(gone.PrevKvs[1].Value), "delete/2")
	})
}

func TestTransactionsOverGroups(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		put(t, client, "a-txn", "x-txn")
		swap := func() bool {
			answer := must[*clientv3.TxnResponse](t)(client.Txn(soon(t)).
				If(clientv3.Compare(clientv3.Value("a-txn"), "=", "a-txn"), clientv3.Compare(clientv3.Version("x-txn"), ">", 0)).
				Then(clientv3.OpPut("a-txn", "x"), clientv3.OpPut("x-txn", "a"), clientv3.OpGet("a-txn")).
				Else(clientv3.OpGet("x-txn")).Commit())
			return answer.Succeeded
		}
		equal(t, swap(), true)
		equal(t, swap(), false)
		a := must[*clientv3.GetResponse](t)(client.Get(soon(t), "a-txn")).Kvs[0]
		x := must[*clientv3.GetResponse](t)(client.Get(soon(t), "x-txn")).Kvs[0]
		equal(t, a.ModRevision, x.ModRevision)
	})
}

func TestNestedTransactions(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		put(t, client, "b-nested")
		inner := clientv3.OpTxn(
			[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision("none"), "=", 0)},
			[]clientv3.Op{clientv3.OpPut("y-nested", "1")}, nil)
		answer := must[*clientv3.TxnResponse](t)(client.Txn(soon(t)).Then(clientv3.OpGet("b-nested"), inner).Commit())
		equal(t, answer.Responses[1].GetResponseTxn().Succeeded, true)
		equal(t, read(t, client, "y-nested"), "y-nested")
	})
}

func TestErrorsAreKnown(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		_, err := client.Put(soon(t), "", "x")
		equal(t, errors.Is(err, rpctypes.ErrEmptyKey), true)
		_, err = client.Put(soon(t), "x", "x", clientv3.WithLease(12345))
		equal(t, errors.Is(err, rpctypes.ErrLeaseNotFound), true)
		_, err = client.Get(soon(t), "x", clientv3.WithRev(1<<40))
		equal(t, errors.Is(err, rpctypes.ErrFutureRev), true)
		_, err = client.Txn(soon(t)).Then(clientv3.OpPut("x", "1"), clientv3.OpPut("x", "2")).Commit()
		equal(t, errors.Is(err, rpctypes.ErrDuplicateKey), true)
		_, err = client.Put(soon(t), "x", strings.Repeat("x", 1600000))
		equal(t, errors.Is(err, rpctypes.ErrRequestTooLarge), true)
	})
}

func TestCompaction(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		old := put(t, client, "compact")
		now := put(t, client, "compact")
		must[*clientv3.CompactResponse](t)(client.Compact(soon(t), now, clientv3.WithCompactPhysical()))
		_, err := client.Get(soon(t), "compact", clientv3.WithRev(old))
		equal(t, errors.Is(err, rpctypes.ErrCompacted), true)
		equal(t, read(t, client, "compact", clientv3.WithRev(now)), "compact")
		_, err = client.Compact(soon(t), now)
		equal(t, errors.Is(err, rpctypes.ErrCompacted), true)
	})
}

func TestNamespace(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		inside := namespace.NewKV(client.KV, "space/")
		watch := namespace.NewWatcher(client.Watcher, "space/").Watch(soon(t), "k")
		put(t, inside, "k")
		equal(t, read(t, client, "space/k"), "space/k")
		equal(t, read(t, inside, "", clientv3.WithPrefix()), "k")
		equal(t, string(next(t, watch).Events[0].Kv.Key), "k")
	})
}

func TestOrdering(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		ordered := ordering.NewKV(client.KV, func(clientv3.Op, clientv3.OpResponse, int64) error {
			return errors.New("an answer was older than one before")
		})
		for range 50 {
			put(t, ordered, "h-order", "x-order")
			equal(t, read(t, ordered, "h-order"), "h-order")
		}
	})
}

func TestLeasing(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		first, closeFirst, err := leasing.NewKV(client, "leasing/")
		fine(t, err)
		defer closeFirst()
		second, closeSecond, err := leasing.NewKV(client, "leasing/")
		fine(t, err)
		defer closeSecond()
		put(t, first, "leased-key")
		equal(t, read(t, first, "leased-key"), "leased-key")
		must[*clientv3.PutResponse](t)(second.Put(soon(t), "leased-key", "new"))
		got := must[*clientv3.GetResponse](t)(first.Get(soon(t), "leased-key"))
		equal(t, string(got.Kvs[0].Value), "new")
	})
}

func TestMirror(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		put(t, client, "mirror/1", "mirror/2")
		syncer := mirror.NewSyncer(client, "mirror/", 0)
		base, errs := syncer.SyncBase(soon(t))
		count := 0
		for response := range base {
			count += len(response.Kvs)
		}
		fine(t, <-errs)
		equal(t, count, 2)
		updates := syncer.SyncUpdates(soon(t))
		put(t, client, "mirror/3")
		equal(t, string(next(t, updates).Events[0].Kv.Key), "mirror/3")
	})
}
