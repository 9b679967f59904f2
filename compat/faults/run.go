package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// A range rests when nothing happened in it for this long.
const quietAfter = 5 * time.Second

// A line of log a heartbeat would be a flood; this many in ten seconds are not.
const logLinesAllowed = 200

// exitWithin is how long a server may run on after a write to its disk failed.
const exitWithin = 2 * time.Second

const (
	writeEvery = 100 * time.Millisecond
	smallValue = 64
	// Fills the log's reserved segments within some seconds.
	largeValue = 32 << 10
)

// kind is a fault of one member.
type kind struct {
	name string
	// inject causes it.
	inject func(*run) error
	// observe waits for what must follow, undoes the fault and returns when
	// the member is ready again. It leaves an error only if the harness fails.
	observe func(*run) error
	// Bytes of each value that is written meanwhile.
	valueBytes int
	// Whether the run leaves too much data behind for another one.
	wipes bool
}

var kinds = []kind{
	{name: "readonly", inject: func(r *run) error { return r.victim.disk.turnReadOnly() }, observe: (*run).failingDisk},
	{name: "ioerror", inject: func(r *run) error { return r.victim.disk.failWrites() }, observe: (*run).failingDisk},
	{name: "hang", inject: func(r *run) error { return r.victim.disk.freeze() }, observe: (*run).shortHang},
	{name: "hanglong", inject: func(r *run) error { return r.victim.disk.freeze() }, observe: (*run).longHang},
	{name: "full", inject: func(r *run) error { return r.victim.disk.fill() }, observe: (*run).fullDisk, valueBytes: largeValue, wipes: true},
	{name: "stop", inject: func(r *run) error { return r.victim.signal(syscall.SIGSTOP) }, observe: (*run).stopped},
	{name: "kill", inject: func(r *run) error { return r.victim.signal(syscall.SIGKILL) }, observe: (*run).killed},
}

// run is one fault of one member, and what came of it.
type run struct {
	*result
	ctx     context.Context
	cluster *cluster
	victim  *member
	healthy []*member
	rng     *rand.Rand
	// When the fault began, and from when on the member must have noticed it:
	// that, or the first write after it if ranges were quiet.
	cause, since time.Time
	// What the member's log and list of exits had before.
	logBytes int64
	exits    int
	// Logs of all members, before.
	logs map[*member]int64
	// When the member's disk was whole again, or it was told to go on.
	undone time.Time
}

// fault makes one run. The cluster is settled before, and need not be after a
// run that is broken.
func (c *cluster) fault(ctx context.Context, k kind, quiet bool, victim *member, rng *rand.Rand) (*result, error) {
	r := &run{
		result: newResult(k.name, modeName(quiet)), ctx: ctx, cluster: c,
		victim: victim, healthy: c.others(victim), rng: rng, logs: map[*member]int64{},
	}
	led, _ := victim.metric(ctx, "pontoon_groups_led")
	r.note("%s led %d", victim.Name, led)
	if sequencer, _ := victim.metric(ctx, "pontoon_is_sequencer"); sequencer == 1 {
		r.note("sequencer")
	}
	lateness := watchLateness()
	defer lateness.stop()
	var streams []*stream
	write := func() {
		valueBytes := max(k.valueBytes, smallValue)
		for _, letter := range letters {
			for _, m := range r.healthy {
				streams = append(streams, c.history.pump(string(letter), m, keyBelow(string(letter)),
					writeEvery, c.settings.bound()+time.Second, valueBytes))
			}
		}
		for _, m := range c.members {
			m.health = watchHealth(m.ClientURL)
		}
	}
	defer func() {
		for _, s := range streams {
			s.end()
		}
		for _, m := range c.members {
			if m.health != nil {
				m.health.stop()
				m.health = nil
			}
		}
	}()

	if quiet {
		r.note("%d quiet", c.rest(ctx))
	} else {
		write()
		pause(ctx, time.Second)
	}
	for _, m := range c.members {
		r.logs[m] = m.logBytes()
	}
	r.exits = victim.exitCount()
	r.logBytes = r.logs[victim]
	c.history.refusals()
	healthyExits := r.healthy[0].exitCount() + r.healthy[1].exitCount()
	if ctx.Err() != nil {
		return r.result, ctx.Err()
	}
	r.cause = time.Now()
	if err := k.inject(r); err != nil {
		return r.result, err
	}
	r.since = r.cause
	if quiet {
		pause(ctx, time.Duration(rng.Int64N(int64(2*c.settings.election))))
		write()
		r.since = time.Now()
	}
	if err := k.observe(r); err != nil {
		return r.result, err
	}
	pause(ctx, time.Second)
	if ctx.Err() != nil {
		return r.result, ctx.Err()
	}
	until := time.Now()
	for _, s := range streams {
		s.stop()
	}
	for _, s := range streams {
		s.end()
	}
	r.availability(streams, until)
	r.honesty(until)
	if r.healthy[0].exitCount()+r.healthy[1].exitCount() != healthyExits {
		r.broke("a healthy member exited")
	}
	for _, m := range c.members {
		lines := logLinesMax(m.logFrom(r.logs[m]))
		r.count("log lines in 10 s", lines)
		if lines >= logLinesAllowed {
			r.broke("%s logged %d lines in 10 s", m.Name, lines)
		}
	}
	r.broken = append(r.broken, c.history.check(ctx, r.healthy[rng.IntN(2)])...)
	r.broken = append(r.broken, c.history.check(ctx, victim)...)
	acked, unknown := c.history.count()
	r.note("%d acked, %d unknown", acked, unknown)
	r.note("load %s, late %s", loadAverage(), milliseconds(lateness.longest()))
	return r.result, ctx.Err()
}

// availability says how long ranges took no writes, from the fault on.
func (r *run) availability(streams []*stream, until time.Time) {
	bound := r.cluster.settings.bound()
	var gap, wait time.Duration
	var where string
	var over []string
	asked, ready, unanswered := 0, 0, 0
	for _, s := range streams {
		longest, at := s.gap(r.since, until)
		if longest > gap {
			gap, where = longest, s.name
		}
		for _, w := range s.begun(r.since, until) {
			wait = max(wait, w.end.Sub(w.begin))
			if w.end.Sub(w.begin) > bound {
				unanswered++
			}
		}
		if longest > bound {
			over = append(over, s.name)
			for _, answer := range s.member.health.of("/readyz", at.Add(bound), at.Add(longest)) {
				if asked++; answer.ok {
					ready++
				}
			}
		}
	}
	refused := r.cluster.history.refusals()
	if len(over) > 0 {
		r.broke("no writes for up to %s in %s; past the bound /readyz of these members said ok %d of %d times; clients were told %s",
			seconds(gap), strings.Join(over, ", "), ready, asked, refused)
	}
	if unanswered > 0 && r.cluster.settings.strict {
		r.broke("%d requests waited longer than the bound, up to %s", unanswered, seconds(wait))
	}
	r.figure("gap", gap)
	r.figure("longest request", wait)
	r.count("requests past the bound", unanswered)
	r.note("gap at %s", where)
}

// honesty compares what /livez and /readyz of the healthy members said with
// what they did.
func (r *run) honesty(until time.Time) {
	for _, m := range r.healthy {
		refused := 0
		for _, answer := range m.health.of("/livez", r.since, until) {
			if answer.ok {
				refused = 0
				continue
			}
			// A single one may be the harness's own timeout.
			if refused++; refused == 2 {
				r.broke("/livez of the healthy %s said no", m.Name)
			}
		}
		// How long a range may be without a leader is measured by its writes;
		// an answer that waited for one just now is followed by another.
		if !r.until(until.Add(2*healthTimeout), func() bool {
			_, ready := m.health.first("/readyz", true, until)
			return ready
		}) {
			r.broke("/readyz of the healthy %s says no at the end", m.Name)
		}
	}
}

// until waits for something, and says whether it came before a moment.
func (r *run) until(deadline time.Time, came func() bool) bool {
	for r.ctx.Err() == nil {
		if came() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		pause(r.ctx, 20*time.Millisecond)
	}
	return false
}

// newExits are the ends of the member's process since the fault.
func (r *run) newExits() []exit { return r.victim.exitsFrom(r.exits) }

// 12: so ext4 calls a block that lies beyond the end of its device, as most do
// after failWrites.
var saysDiskFails = regexp.MustCompile(`os error (5|12|30)\b`)

// failingDisk: the process exits as documented, and again when it is started
// while the disk still fails.
func (r *run) failingDisk() error {
	s := r.cluster.settings
	r.until(r.since.Add(s.bound()), func() bool { return len(r.newExits()) > 0 })
	r.checkExit()
	if len(r.newExits()) > 0 {
		first, logged := r.newExits()[0].at, r.newExits()[0].logBytes
		r.until(first.Add(restartPause+10*time.Second), func() bool { return len(r.newExits()) > 1 })
		if exits := r.newExits(); len(exits) < 2 {
			r.broke("started on the failing disk it runs on")
		} else {
			r.figure("exit again", exits[1].at.Sub(first.Add(restartPause)))
			if exits[1].code != exitDisk {
				r.broke("started on the failing disk it exits with %s", exits[1])
			}
			lines := r.victim.logBetween(logged, exits[1].logBytes)
			if last := lastOf(lines); !saysDiskFails.MatchString(last) || !r.victim.namesCause(last) {
				r.broke("started on the failing disk it doesn't name file, operation and errno, but says: %s", last)
			}
		}
	}
	pause(r.ctx, time.Until(r.since.Add(s.bound()+time.Second)))
	for _, path := range []string{"/livez", "/readyz"} {
		said := 0
		for _, answer := range r.victim.health.of(path, r.since.Add(exitWithin), farAway) {
			if answer.ok {
				said++
			}
		}
		if said > 0 {
			r.broke("%s of the failing %s said ok %d times", path, r.victim.Name, said)
		}
	}
	r.victim.end()
	if err := r.victim.disk.repair(); err != nil {
		return err
	}
	if err := r.victim.start(); err != nil {
		return err
	}
	return r.back(time.Now())
}

// checkExit: the process exited by itself in time, with its own code, and said
// why in one line.
func (r *run) checkExit() {
	exits := r.newExits()
	lines := r.victim.logFrom(r.logBytes)
	if len(exits) > 0 {
		lines = r.victim.logBetween(r.logBytes, exits[0].logBytes)
	}
	all, complete := r.victim.errorLines(lines)
	r.count("ERROR lines", len(all))
	if len(exits) == 0 {
		r.broke("the process didn't exit (%d ERROR lines, of %d lines logged)", len(all), len(lines))
		return
	}
	after := exits[0].at.Sub(r.since)
	// Before the first write to a quiet range: it noticed by itself.
	r.figure("exit", max(0, after))
	if after > exitWithin {
		r.broke("the process exited only after %s", seconds(after))
	}
	if exits[0].code != exitDisk {
		r.broke("the process exited with %s", exits[0])
	}
	if complete != 1 {
		r.broke("%d ERROR lines name file, operation and errno, of these: %s", complete, firstOf(all))
	}
}

// firstOf is enough of a list of lines to tell what they are about.
func firstOf(lines []string) string {
	if len(lines) == 0 {
		return "none"
	}
	return fmt.Sprintf("%s (and %d more)", lines[0], len(lines)-1)
}

func lastOf(lines []string) string {
	if len(lines) == 0 {
		return "nothing"
	}
	return lines[len(lines)-1]
}

// back waits until the member is ready again, without help.
func (r *run) back(from time.Time) error {
	r.undone = from
	var at time.Time
	if !r.until(from.Add(30*time.Second), func() (found bool) {
		at, found = r.victim.health.first("/readyz", true, from)
		return found
	}) {
		r.broke("%s isn't ready %s after the fault ended", r.victim.Name, seconds(time.Since(from)))
		return r.ctx.Err()
	}
	r.figure("ready again", at.Sub(from))
	return r.ctx.Err()
}

// turns: the member's /readyz says no soon after the fault.
func (r *run) turns(at time.Time, found bool) {
	if !found {
		r.broke("/readyz of %s didn't turn", r.victim.Name)
		return
	}
	r.figure("readyz no", at.Sub(r.since))
	if at.Sub(r.since) > r.cluster.settings.bound() {
		r.broke("/readyz of %s turned only after %s", r.victim.Name, seconds(at.Sub(r.since)))
	}
}

// shortHang: health turns, and comes back by itself with the disk.
func (r *run) shortHang() error {
	s := r.cluster.settings
	pause(r.ctx, time.Until(r.since.Add(s.bound()+s.election)))
	at, found := r.victim.health.first("/readyz", false, r.since)
	if err := r.victim.disk.thaw(); err != nil {
		return err
	}
	thawed := time.Now()
	r.turns(at, found)
	if err := r.back(thawed); err != nil {
		return err
	}
	r.stayed()
	return nil
}

// longHang: the listeners close when the disk has stood still for too long,
// and the process exits as soon as it can.
func (r *run) longHang() error {
	s := r.cluster.settings
	if s.stall == 0 {
		r.broke("the server has no --disk-stall-timeout")
		return r.shortHang()
	}
	limit := s.stall + exitWithin
	closed := r.until(r.since.Add(limit), r.victim.refuses)
	if closed {
		r.figure("closed", time.Since(r.since))
	} else {
		r.broke("it listens %s after the disk began to hang", seconds(time.Since(r.since)))
	}
	at, found := r.victim.health.first("/readyz", false, r.since)
	r.turns(at, found)
	pause(r.ctx, s.election)
	if err := r.victim.disk.thaw(); err != nil {
		return err
	}
	thawed := time.Now()
	if closed {
		r.until(thawed.Add(exitWithin), func() bool { return len(r.newExits()) > 0 })
		switch exits := r.newExits(); {
		case len(exits) == 0:
			r.broke("the process didn't exit")
		case exits[0].code != exitDisk:
			r.broke("the process exited with %s", exits[0])
		default:
			r.figure("exit", exits[0].at.Sub(r.since))
		}
	}
	return r.back(thawed)
}

// fullDisk: the process goes on, and needs no help when there is room again.
func (r *run) fullDisk() error {
	saysFull := func() bool {
		all, _ := r.victim.errorLines(r.victim.logFrom(r.logBytes))
		return len(all) > 0
	}
	// The log uses up the segments that it has.
	if !r.until(r.since.Add(time.Minute), saysFull) {
		r.broke("%s doesn't say that its disk is full", r.victim.Name)
	}
	pause(r.ctx, 2*r.cluster.settings.bound())
	if err := r.victim.disk.free(); err != nil {
		return err
	}
	if err := r.back(time.Now()); err != nil {
		return err
	}
	r.stayed()
	return nil
}

// stopped: the member stands still for a while and comes back by itself.
func (r *run) stopped() error {
	s := r.cluster.settings
	pause(r.ctx, time.Until(r.since.Add(s.bound()+s.election)))
	if err := r.victim.signal(syscall.SIGCONT); err != nil {
		return err
	}
	if err := r.back(time.Now()); err != nil {
		return err
	}
	r.stayed()
	return nil
}

// killed: the supervisor starts the member again.
func (r *run) killed() error {
	pause(r.ctx, restartPause)
	if err := r.back(r.cause.Add(restartPause)); err != nil {
		return err
	}
	if exits := r.newExits(); len(exits) != 1 {
		r.broke("the process exited %d times", len(exits))
	}
	return nil
}

// stayed: the process has not exited.
func (r *run) stayed() {
	if exits := r.newExits(); len(exits) > 0 {
		r.broke("the process exited with %s", exits[0])
	}
}

func modeName(quiet bool) string {
	if quiet {
		return "quiet"
	}
	return "loaded"
}

// keyBelow makes keys that begin with a letter, spread over its range.
func keyBelow(letter string) func() string {
	return func() string { return fmt.Sprintf("%s%06x", letter, rand.IntN(1<<24)) }
}
