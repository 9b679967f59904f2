package members

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
)

// history is what clients were told of their writes. Each key has one writer,
// which writes ever larger numbers.
type history struct {
	sync.Mutex
	// Acknowledged writes by key, in the order of their revisions.
	writes map[string][]write
	// Writes whose outcome is not known: the newest number of each key.
	unknown map[string]int
	refused map[string]int
	count   int
}

type write struct {
	revision int64
	number   int
}

func newHistory() *history {
	return &history{writes: map[string][]write{}, unknown: map[string]int{}, refused: map[string]int{}}
}

// put writes the next number to a key, and takes down what it is told.
func (h *history) put(ctx context.Context, client *clientv3.Client, key string, number int) error {
	answer, err := client.Put(ctx, key, fmt.Sprint(number))
	h.Lock()
	defer h.Unlock()
	if err != nil {
		h.unknown[key] = number
		h.refused[err.Error()]++
		return err
	}
	h.count++
	h.writes[key] = append(h.writes[key], write{answer.Header.Revision, number})
	return nil
}

// at is the number that a key had at a revision, as far as it was told.
func (h *history) at(key string, revision int64) (number int) {
	for _, write := range h.writes[key] {
		if write.revision <= revision {
			number = write.number
		}
	}
	return number
}

// check reads everything and compares it with what was acknowledged.
func (h *history) check(t *testing.T, client *clientv3.Client, options ...clientv3.OpOption) {
	t.Helper()
	found := eventually(t, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return client.Get(ctx, "", append(options, clientv3.WithPrefix())...)
	})
	numbers := map[string]int{}
	for _, kv := range found.Kvs {
		var number int
		fmt.Sscan(string(kv.Value), &number)
		numbers[string(kv.Key)] = number
	}
	h.Lock()
	defer h.Unlock()
	for key := range h.writes {
		want, got := h.at(key, found.Header.Revision), numbers[key]
		if got != want && got != h.unknown[key] {
			t.Errorf("%s is %d at revision %d, and %d was acknowledged", key, got, found.Header.Revision, want)
		}
	}
}

// keys are in all groups of `splits`.
func keys(writer, count int) (keys []string) {
	for n := range count {
		keys = append(keys, fmt.Sprintf("%c/%d/%d", 'a'+n%26, writer, n))
	}
	return keys
}

// load has writers at work until it is stopped.
func (h *history) load(t *testing.T, endpoints []string, writers int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	for writer := range writers {
		client := connect(t, endpoints)
		working.Go(func() {
			mine, number := keys(writer, 26), 0
			for ctx.Err() == nil {
				number++
				key := mine[rand.IntN(len(mine))]
				within, done := context.WithTimeout(context.Background(), 10*time.Second)
				h.put(within, client, key, number)
				done()
			}
		})
	}
	return func() {
		cancel()
		working.Wait()
	}
}

// onlyRetries fails if a write was refused for another reason than that a
// member or a leader was away.
func (h *history) onlyRetries(t *testing.T) {
	t.Helper()
	h.Lock()
	defer h.Unlock()
	for message, count := range h.refused {
		t.Logf("%d times: %s", count, message)
		expected := []string{
			"etcdserver: leader changed", "etcdserver: no leader", "etcdserver: request timed out",
			"etcdserver: server stopped", "connection", "error reading from server", "transport is closing",
			"context deadline exceeded",
		}
		known := false
		for _, text := range expected {
			known = known || strings.Contains(message, text)
		}
		if !known {
			t.Errorf("a write was refused: %s", message)
		}
	}
}

// waitFor returns when so many more writes were acknowledged.
func (h *history) waitFor(t *testing.T, more int) {
	t.Helper()
	h.Lock()
	begin := h.count
	h.Unlock()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		h.Lock()
		count := h.count
		h.Unlock()
		if count >= begin+more {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("only %d writes in a minute", count-begin)
		}
	}
}

// eventually asks until there is an answer.
func eventually[T any](t *testing.T, ask func(context.Context) (T, error)) T {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		answer, err := ask(ctx)
		cancel()
		if err == nil {
			return answer
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func isOf(err error, code codes.Code, texts ...string) bool {
	var found rpctypes.EtcdError
	return errors.As(err, &found) && found.Code() == code && slices.Contains(texts, found.Error())
}
