package goclient

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestWatchFromNow(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		watch := client.Watch(soon(t), "watch/now", clientv3.WithCreatedNotify())
		equal(t, next(t, watch).Created, true)
		put(t, client, "watch/now")
		event := next(t, watch).Events[0]
		equal(t, event.IsCreate(), true)
	})
}

func TestWatchFromThePastOverGroups(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		from := put(t, client, "b-past", "k-past", "t-past") - 2
		watch := client.Watch(soon(t), "b-past", clientv3.WithRange("u"), clientv3.WithRev(from))
		var keys []string
		for len(keys) < 3 {
			for _, event := range next(t, watch).Events {
				keys = append(keys, string(event.Kv.Key))
			}
		}
		equal(t, fmt.Sprint(keys), "[b-past k-past t-past]")
	})
}

func TestWatchTellsWhatWasBefore(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		// The watch may be at a member that hasn't applied the put yet, for
		// which "from now" would include it, as with etcd.
		from := put(t, client, "watch/before") + 1
		watch := client.Watch(soon(t), "watch/before", clientv3.WithRev(from), clientv3.WithPrevKV())
		must[*clientv3.DeleteResponse](t)(client.Delete(soon(t), "watch/before"))
		event := next(t, watch).Events[0]
		equal(t, event.Type, clientv3.EventTypeDelete)
		equal(t, string(event.PrevKv.Value), "watch/before")
	})
}

func TestWatchFilters(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		watch := client.Watch(soon(t), "watch/filter", clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
		next(t, watch)
		put(t, client, "watch/filter")
		must[*clientv3.DeleteResponse](t)(client.Delete(soon(t), "watch/filter"))
		equal(t, next(t, watch).Events[0].Type, clientv3.EventTypeDelete)
	})
}

func TestWatchThatBeginsTooEarly(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		put(t, client, "watch/early")
		now := put(t, client, "watch/early")
		if _, err := client.Compact(soon(t), now); err != nil {
			t.Fatal(err)
		}
		for ctx := soon(t); ; {
			response := <-client.Watch(ctx, "watch/early", clientv3.WithRev(1))
			fine(t, ctx.Err())
			equal(t, errors.Is(response.Err(), rpctypes.ErrCompacted), true)
			// A member that hasn't heard of this compaction tells of one before.
			if response.CompactRevision == now {
				break
			}
		}
	})
}

func TestWatchIsCancelled(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		ctx, cancel := context.WithCancel(soon(t))
		watch := client.Watch(ctx, "watch/cancel", clientv3.WithCreatedNotify())
		next(t, watch)
		cancel()
		for range watch {
		}
	})
}

func TestProgressOnRequest(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		ctx := soon(t)
		watch := client.Watch(ctx, "watch/progress", clientv3.WithCreatedNotify())
		next(t, watch)
		revision := put(t, client, "elsewhere")
		for {
			fine(t, client.RequestProgress(ctx))
			select {
			case response := <-watch:
				if response.IsProgressNotify() && response.Header.Revision >= revision {
					return
				}
			case <-time.After(200 * time.Millisecond):
			}
			fine(t, ctx.Err())
		}
	})
}

func TestTransactionIsOneResponse(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		watch := client.Watch(soon(t), "a", clientv3.WithRange("zz"), clientv3.WithCreatedNotify())
		next(t, watch)
		_, err := client.Txn(soon(t)).Then(clientv3.OpPut("b-one", "1"), clientv3.OpPut("n-one", "1"), clientv3.OpPut("y-one", "1")).Commit()
		fine(t, err)
		equal(t, len(next(t, watch).Events), 3)
	})
}

func TestManyWatchesOnOneStream(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		ctx := soon(t)
		var watches []clientv3.WatchChan
		for i := range 100 {
			watch := client.Watch(ctx, fmt.Sprintf("many/%d", i), clientv3.WithCreatedNotify())
			next(t, watch)
			watches = append(watches, watch)
		}
		for i, watch := range watches {
			put(t, client, fmt.Sprintf("many/%d", i))
			equal(t, string(next(t, watch).Events[0].Kv.Key), fmt.Sprintf("many/%d", i))
		}
	})
}
