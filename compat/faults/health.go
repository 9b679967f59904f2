package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	healthEvery   = 100 * time.Millisecond
	healthTimeout = time.Second
)

// health asks a member's /livez and /readyz again and again, and keeps what
// they said. /readyz makes a linearizable read, which keeps a range awake.
type health struct {
	stop func()
	mu   sync.Mutex
	said map[string][]sample
}

// sample is one answer.
type sample struct {
	begin, end time.Time
	ok         bool
}

func watchHealth(url string) *health {
	ctx, cancel := context.WithCancel(context.Background())
	h := &health{said: map[string][]sample{}}
	var asking sync.WaitGroup
	for _, path := range []string{"/livez", "/readyz"} {
		asking.Go(func() {
			for ctx.Err() == nil {
				begin := time.Now()
				ok := get(ctx, url+path) == nil
				if ctx.Err() != nil {
					return
				}
				h.mu.Lock()
				h.said[path] = append(h.said[path], sample{begin, time.Now(), ok})
				h.mu.Unlock()
				pause(ctx, time.Until(begin.Add(healthEvery)))
			}
		})
	}
	h.stop = func() {
		cancel()
		asking.Wait()
	}
	return h
}

// of are the answers of a path that were asked for in [from, until).
func (h *health) of(path string, from, until time.Time) (found []sample) {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.said[path] {
		if !s.begin.Before(from) && s.begin.Before(until) {
			found = append(found, s)
		}
	}
	return found
}

// first is the first answer of a kind that was asked for after a moment.
func (h *health) first(path string, ok bool, from time.Time) (at time.Time, found bool) {
	for _, s := range h.of(path, from, farAway) {
		if s.ok == ok {
			return s.end, true
		}
	}
	return at, false
}

var farAway = time.Unix(1<<40, 0)

// plain has no connections left over that a stopped member could hold up.
var plain = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: healthTimeout}

type unwell string

func (u unwell) Error() string { return string(u) }

// get is nil if the answer is 200 OK.
func get(ctx context.Context, url string) error {
	_, err := page(ctx, url)
	return err
}

func page(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	answer, err := plain.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err != nil {
		return "", err
	}
	if answer.StatusCode != http.StatusOK {
		return "", unwell(answer.Status + ": " + strings.TrimSpace(string(text)))
	}
	return string(text), nil
}

// pause sleeps, but not longer than the context lives.
func pause(ctx context.Context, how time.Duration) {
	timer := time.NewTimer(how)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
