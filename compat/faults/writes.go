package main

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// history is what clients were told of their writes. Every write has a key of
// its own, so each acknowledged one can be looked for.
type history struct {
	next    atomic.Int64
	mu      sync.Mutex
	acked   map[string]int64
	unknown int
	refused map[string]int
}

func newHistory() *history {
	return &history{acked: map[string]int64{}, refused: map[string]int{}}
}

func (h *history) put(ctx context.Context, m *member, key, value string) error {
	answer, err := m.client.Put(ctx, key, value)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.unknown++
		h.refused[err.Error()]++
		return err
	}
	h.acked[key] = answer.Header.Revision
	return nil
}

// check reads everything linearizably through a member and returns what
// contradicts the answers.
func (h *history) check(ctx context.Context, m *member) (broken []string) {
	const pageKeys = 1000
	h.mu.Lock()
	acked := make(map[string]int64, len(h.acked))
	for key, revision := range h.acked {
		acked[key] = revision
	}
	h.mu.Unlock()
	found := map[string][2]int64{}
	key, revision := "\x00", int64(0)
	for {
		options := []clientv3.OpOption{clientv3.WithFromKey(), clientv3.WithLimit(pageKeys), clientv3.WithKeysOnly()}
		if revision != 0 {
			options = append(options, clientv3.WithRev(revision))
		}
		page, err := eventually(ctx, func(ctx context.Context) (*clientv3.GetResponse, error) {
			return m.client.Get(ctx, key, options...)
		})
		if err != nil {
			return []string{fmt.Sprintf("what was acknowledged can't be read through %s: %v", m.Name, err)}
		}
		revision = page.Header.Revision
		for _, kv := range page.Kvs {
			found[string(kv.Key)] = [2]int64{kv.ModRevision, kv.Version}
		}
		if !page.More {
			break
		}
		key = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
	lost, lostExample, keys := 0, "", map[int64]string{}
	for key, revision := range acked {
		if found[key] != [2]int64{revision, 1} {
			lost++
			lostExample = fmt.Sprintf("%s acknowledged at revision %d, found revision %d and version %d",
				key, revision, found[key][0], found[key][1])
		}
		if other, taken := keys[revision]; taken {
			broken = append(broken, fmt.Sprintf("revision %d was given to %s and %s", revision, other, key))
		}
		keys[revision] = key
	}
	if lost > 0 {
		broken = append(broken, fmt.Sprintf("%d of %d acknowledged writes are lost through %s: %s", lost, len(acked), m.Name, lostExample))
	}
	return broken
}

// refusals returns the errors that clients got, the most frequent first, and
// forgets them.
func (h *history) refusals() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []string
	for text := range h.refused {
		all = append(all, text)
	}
	sort.Slice(all, func(a, b int) bool { return h.refused[all[a]] > h.refused[all[b]] })
	for i, text := range all {
		all[i] = fmt.Sprintf("%d × %s", h.refused[text], text)
	}
	h.refused = map[string]int{}
	return strings.Join(all[:min(3, len(all))], "; ")
}

func (h *history) count() (acked, unknown int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.acked), h.unknown
}

// stream writes to one part of the keys through one member, at fixed times,
// however long the answers take.
type stream struct {
	name   string
	member *member
	cancel func()
	done   sync.WaitGroup
	mu     sync.Mutex
	writes []sample
}

// pump starts a stream. key makes the first part of a key; each write gets so
// long, and as many are under way as begin in that time.
func (h *history) pump(name string, m *member, key func() string, every, timeout time.Duration, valueBytes int) *stream {
	ctx, cancel := context.WithCancel(context.Background())
	s := &stream{name: name + " via " + m.Name, member: m, cancel: cancel}
	value := strings.Repeat("v", valueBytes)
	s.done.Go(func() {
		for next := time.Now(); ctx.Err() == nil; next = next.Add(every) {
			pause(ctx, time.Until(next))
			if ctx.Err() != nil {
				return
			}
			// A starved harness must not catch up with a burst.
			if late := time.Since(next); late > every {
				next = next.Add(late)
			}
			s.done.Go(func() {
				begin := time.Now()
				within, cancel := context.WithTimeout(context.Background(), timeout)
				defer cancel()
				err := h.put(within, m, fmt.Sprintf("%s/%d", key(), h.next.Add(1)), value)
				s.mu.Lock()
				defer s.mu.Unlock()
				s.writes = append(s.writes, sample{begin, time.Now(), err == nil})
			})
		}
	})
	return s
}

// stop begins no more writes; end waits for those under way.
func (s *stream) stop() { s.cancel() }

func (s *stream) end() {
	s.cancel()
	s.done.Wait()
}

// gap is the longest time in [from, until] in which nothing was acknowledged
// that was asked for after `from`, and when it began.
func (s *stream) gap(from, until time.Time) (longest time.Duration, at time.Time) {
	s.mu.Lock()
	var ends []time.Time
	for _, w := range s.writes {
		if w.ok && !w.begin.Before(from) && w.end.Before(until) {
			ends = append(ends, w.end)
		}
	}
	s.mu.Unlock()
	sort.Slice(ends, func(a, b int) bool { return ends[a].Before(ends[b]) })
	last := from
	for _, end := range append(ends, until) {
		if end.Sub(last) > longest {
			longest, at = end.Sub(last), last
		}
		last = end
	}
	return longest, at
}

// begun are the writes begun in [from, until], each with the time of its answer,
// whichever it was.
func (s *stream) begun(from, until time.Time) (writes []sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.writes {
		if !w.begin.Before(from) && w.begin.Before(until) {
			writes = append(writes, w)
		}
	}
	return writes
}

// firstAck is when a write was first acknowledged after a moment.
func (s *stream) firstAck(from time.Time) (at time.Time, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.writes {
		if w.ok && w.end.After(from) && (!found || w.end.Before(at)) {
			at, found = w.end, true
		}
	}
	return at, found
}

// eventually asks until there is an answer, for half a minute at most.
func eventually[T any](ctx context.Context, ask func(context.Context) (T, error)) (answer T, err error) {
	for deadline := time.Now().Add(30 * time.Second); ; pause(ctx, 50*time.Millisecond) {
		within, cancel := context.WithTimeout(ctx, 10*time.Second)
		answer, err = ask(within)
		cancel()
		if err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return answer, err
		}
	}
}
