package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"pontoon/compat/clusters"
)

const (
	// Splits after which the cluster begins anew, to bound the ranges.
	splitsPerCluster = 36
	probeEvery       = 50 * time.Millisecond
	// Longer than any split that doesn't give up may take.
	splitTimeout = 30 * time.Second
)

// splitLoop splits ranges under load while one member is disturbed again and
// again. It returns a result for each split.
func (c *cluster) splitLoop(ctx context.Context, rng *rand.Rand) (results []*result, err error) {
	for round := 0; len(results) < c.settings.splits; round++ {
		if c.running {
			if err := c.wipe(); err != nil {
				return results, err
			}
		}
		if err := c.start(ctx); err != nil {
			return results, fmt.Errorf("a new cluster doesn't start: %w", err)
		}
		count := min(splitsPerCluster, c.settings.splits-len(results))
		made, err := c.splitRound(ctx, round, count, rng)
		results = append(results, made...)
		if err != nil {
			return results, err
		}
	}
	gaveUp := 0
	for _, r := range results {
		if r.gaveUp {
			gaveUp++
		}
	}
	// One hundredth, and of few splits one.
	allowed := max(1, len(results)/100)
	fmt.Printf("%d of %d splits gave up; %d may\n", gaveUp, len(results), allowed)
	if gaveUp > allowed {
		last := results[len(results)-1]
		last.broke("%d of %d splits gave up", gaveUp, len(results))
	}
	return results, nil
}

// splitRound makes splits in one cluster. It ends early if a range stays
// without service.
func (c *cluster) splitRound(ctx context.Context, round, count int, rng *rand.Rand) (results []*result, err error) {
	victim := c.members[rng.IntN(3)]
	healthy := c.others(victim)
	lateness := watchLateness()
	defer lateness.stop()
	var load []*stream
	for _, letter := range letters {
		for _, m := range healthy {
			load = append(load, c.history.pump(string(letter), m, keyBelow(string(letter)),
				writeEvery, c.settings.bound()+time.Second, smallValue))
		}
	}
	disturbed := c.disturb(ctx, victim, rand.New(rand.NewPCG(c.settings.seed, uint64(round)+1)))
	var cutAt []string
	for len(results) < count && ctx.Err() == nil {
		letter := string(letters[rng.IntN(len(letters))])
		at := 1 + rng.IntN(1<<24-1)
		key := fmt.Sprintf("%s%06x", letter, at)
		if slices.Contains(cutAt, key) {
			continue
		}
		cutAt = append(cutAt, key)
		r := c.split(ctx, healthy, fmt.Sprintf("%s%06x~", letter, at-1), key, rng, disturbed)
		results = append(results, r)
		if len(r.broken) > 0 {
			r.print(fmt.Sprintf("split at %s", key))
		}
		if r.lost {
			break
		}
		pause(ctx, time.Duration(rng.IntN(300))*time.Millisecond)
	}
	faults, err := disturbed.end()
	for _, s := range load {
		s.end()
	}
	if ctx.Err() != nil {
		return results, ctx.Err()
	}
	last := results[len(results)-1]
	before := len(last.broken)
	if err != nil {
		last.broke("%v", err)
		last.print("end of the round")
	} else if !last.lost {
		if err := c.settle(ctx); err != nil {
			last.broke("the cluster doesn't settle after %d splits: %v", len(results), err)
		}
		if err := c.writable(ctx, c.members, c.settings.bound()); err != nil {
			last.broke("after %d splits: %v", len(results), err)
		}
		last.broken = append(last.broken, c.history.check(ctx, healthy[rng.IntN(2)])...)
		last.broken = append(last.broken, c.history.check(ctx, victim)...)
		if len(last.broken) > before {
			last.print("end of the round")
		}
	}
	acked, unknown := c.history.count()
	fmt.Printf("split round %d: %d splits, %s disturbed by %s; %d acked, %d unknown, load %s, late %s\n",
		round+1, len(results), victim.Name, faults, acked, unknown, loadAverage(), milliseconds(lateness.longest()))
	for _, r := range results {
		if len(r.broken) > 0 {
			keepLogs(c, r, round+1)
			break
		}
	}
	return results, ctx.Err()
}

// split cuts a range at a key while both sides are written to.
func (c *cluster) split(ctx context.Context, through []*member, below, key string, rng *rand.Rand, disturbed *disturbance) *result {
	election, bound := c.settings.election, c.settings.bound()
	var probes, child []*stream
	for _, m := range through {
		for _, half := range []string{below, key} {
			s := c.history.pump(half, m, func() string { return half }, probeEvery, bound+time.Second, smallValue)
			probes = append(probes, s)
			if half == key {
				child = append(child, s)
			}
		}
	}
	defer func() {
		for _, s := range probes {
			s.end()
		}
	}()
	pause(ctx, 4*probeEvery)
	begin := time.Now()
	within, cancel := context.WithTimeout(ctx, splitTimeout)
	id, err := clusters.Split(within, through[rng.IntN(len(through))].client.ActiveConnection(), []byte(key))
	cancel()
	returned := time.Now()
	r := newResult("split", "calm")
	served := func() (at time.Time, all bool) {
		for _, s := range child {
			ack, found := s.firstAck(returned)
			if !found {
				return at, false
			}
			if ack.After(at) {
				at = ack
			}
		}
		return at, true
	}
	r.figure("call", returned.Sub(begin))
	if err != nil {
		r.gaveUp = true
		fmt.Printf("split at %s gave up after %s: %v\n", key, seconds(returned.Sub(begin)), err)
		c.leftBehind(ctx, through, r)
	}
	for deadline := returned.Add(4 * bound); ctx.Err() == nil; pause(ctx, 10*time.Millisecond) {
		at, all := served()
		if all {
			r.figure("child serves", at.Sub(returned))
			allowed := 2 * election
			if disturbed.during(returned, at) {
				allowed = bound
			}
			if disturbed.felt(returned, at) > allowed {
				r.broke("the child served only %s after its split returned", seconds(at.Sub(returned)))
			}
			break
		}
		if time.Now().After(deadline) {
			r.lost = true
			r.broke("the child took no writes for %s after its split returned; %s", seconds(time.Since(returned)), describe(ctx, id, through))
			break
		}
	}
	pause(ctx, 4*probeEvery)
	until := time.Now()
	for _, s := range probes {
		s.stop()
	}
	for _, s := range probes {
		s.end()
	}
	if ctx.Err() != nil {
		return r
	}
	// A fault shortly before may still be felt.
	allowed := 2 * election
	if disturbed.during(begin.Add(-bound), until) {
		r.mode, allowed = "faulted", bound
	}
	var gap, wait time.Duration
	for _, s := range probes {
		longest, at := s.gap(begin, until)
		gap = max(gap, longest)
		if r.lost {
			continue
		}
		if felt := disturbed.felt(at, at.Add(longest)); felt > allowed {
			r.broke("%s took no writes for %s during the split", s.name, seconds(longest))
		}
		for _, w := range s.begun(begin, until) {
			wait = max(wait, w.end.Sub(w.begin))
			if felt := disturbed.felt(w.begin, w.end); felt > allowed {
				r.broke("%s: a request (ok: %t) waited for %s during the split, from %s after its begin; %s", s.name, w.ok,
					seconds(w.end.Sub(w.begin)), seconds(w.begin.Sub(begin)), disturbed.describe(begin, until))
				break
			}
		}
	}
	r.figure("gap", gap)
	r.figure("longest request", wait)
	return r
}

// describe says what members know of a range.
func describe(ctx context.Context, id uint64, members []*member) string {
	var all []string
	for _, m := range members {
		within, cancel := context.WithTimeout(ctx, 2*time.Second)
		ranges, err := clusters.Ranges(within, m.client.ActiveConnection())
		cancel()
		at := slices.IndexFunc(ranges, func(r clusters.Range) bool { return r.ID == id })
		if err != nil || at < 0 {
			all = append(all, fmt.Sprintf("%s doesn't know range %d (%v)", m.Name, id, err))
			continue
		}
		r := ranges[at]
		all = append(all, fmt.Sprintf("%s: range %d of term %d, leader %x, leads %t, quiet %t, committed %d, applied %d, failure %q",
			m.Name, id, r.Term, r.Leader, r.Leads, r.Quiet, r.Committed, r.Applied, r.Failure))
	}
	return strings.Join(all, "; ")
}

// leftBehind: a split that gave up is soon not under way any more.
func (c *cluster) leftBehind(ctx context.Context, through []*member, r *result) {
	var left []string
	for deadline := time.Now().Add(10 * time.Second); ctx.Err() == nil; pause(ctx, 100*time.Millisecond) {
		left = nil
		for _, m := range through {
			within, cancel := context.WithTimeout(ctx, time.Second)
			ranges, err := clusters.Ranges(within, m.client.ActiveConnection())
			cancel()
			if err != nil {
				left = append(left, err.Error())
			}
			for _, one := range ranges {
				if one.Splitting {
					left = append(left, fmt.Sprintf("range %d on %s", one.ID, m.Name))
				}
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			r.broke("the split gave up and is still under way: %s", strings.Join(left, ", "))
			return
		}
	}
}

// disturbance is a member that is stopped, killed and so on, again and again.
type disturbance struct {
	stop   func()
	done   chan struct{}
	mu     sync.Mutex
	faults []span
	counts map[string]int
	err    error
}

// span is from a fault's cause until the member is ready again; until then it
// has no end.
type span struct {
	begin, end time.Time
	kind       string
}

// disturb begins one.
func (c *cluster) disturb(ctx context.Context, victim *member, rng *rand.Rand) *disturbance {
	harness := ctx
	ctx, cancel := context.WithCancel(ctx)
	d := &disturbance{stop: cancel, done: make(chan struct{}), counts: map[string]int{}}
	election := c.settings.election
	between := func(low, high time.Duration) time.Duration {
		return low + time.Duration(rng.Int64N(int64(high-low)))
	}
	go func() {
		defer close(d.done)
		for {
			pause(ctx, between(election, 4*election))
			if ctx.Err() != nil {
				return
			}
			kind := c.settings.splitFaults[rng.IntN(len(c.settings.splitFaults))]
			d.mu.Lock()
			d.counts[kind]++
			d.faults = append(d.faults, span{time.Now(), farAway, kind})
			d.mu.Unlock()
			if err := once(kind, victim, between(election/2, 4*election)); err != nil {
				d.err = fmt.Errorf("%s of %s: %w", kind, victim.Name, err)
				return
			}
			for deadline := time.Now().Add(30 * time.Second); get(harness, victim.ClientURL+"/readyz") != nil; pause(harness, 50*time.Millisecond) {
				if time.Now().After(deadline) || harness.Err() != nil {
					d.err = fmt.Errorf("%s isn't ready 30 s after %s", victim.Name, kind)
					return
				}
			}
			d.mu.Lock()
			d.faults[len(d.faults)-1].end = time.Now()
			d.mu.Unlock()
		}
	}()
	return d
}

// once causes a fault, waits and undoes it. It doesn't end in between, so that
// nothing is left undone.
func once(kind string, victim *member, how time.Duration) error {
	switch kind {
	case "kill":
		return victim.signal(syscall.SIGKILL)
	case "stop":
		if err := victim.signal(syscall.SIGSTOP); err != nil {
			return err
		}
		time.Sleep(how)
		return victim.signal(syscall.SIGCONT)
	case "hang":
		if err := victim.disk.freeze(); err != nil {
			return err
		}
		time.Sleep(how)
		return victim.disk.thaw()
	case "full":
		if err := victim.disk.fill(); err != nil {
			return err
		}
		time.Sleep(how)
		return victim.disk.free()
	case "readonly", "ioerror":
		inject := victim.disk.turnReadOnly
		if kind == "ioerror" {
			inject = victim.disk.failWrites
		}
		if err := inject(); err != nil {
			return err
		}
		time.Sleep(how)
		victim.end()
		if err := victim.disk.repair(); err != nil {
			return err
		}
		return victim.start()
	}
	return fmt.Errorf("there is no fault %s", kind)
}

// during says whether the member was disturbed at a time in [from, until].
func (d *disturbance) during(from, until time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.ContainsFunc(d.faults, func(f span) bool { return f.begin.Before(until) && f.end.After(from) })
}

// describe says when a member was disturbed around [from, until], in seconds
// after `from`.
func (d *disturbance) describe(from, until time.Time) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := []string{}
	for _, f := range d.faults {
		if f.begin.Before(until) && f.end.After(from.Add(-10*time.Second)) {
			all = append(all, fmt.Sprintf("%s %s to %s", f.kind, seconds(f.begin.Sub(from)), seconds(min(f.end.Sub(from), time.Hour))))
		}
	}
	return strings.Join(all, ", ")
}

// felt is how long [from, until] went on after the last cause of a fault in it.
func (d *disturbance) felt(from, until time.Time) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range slices.Backward(d.faults) {
		if f.begin.After(from) && f.begin.Before(until) {
			return until.Sub(f.begin)
		}
	}
	return until.Sub(from)
}

// end returns when the member is disturbed no more, and says how often it was.
func (d *disturbance) end() (faults string, err error) {
	d.stop()
	<-d.done
	var all []string
	for kind, count := range d.counts {
		all = append(all, fmt.Sprintf("%d %s", count, kind))
	}
	slices.Sort(all)
	if len(all) == 0 {
		return "nothing", d.err
	}
	return strings.Join(all, ", "), d.err
}
