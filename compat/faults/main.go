// Command faults has members of a real cluster of Pontoon lose their disk,
// stop and die, and measures how long ranges take no writes. Each of three
// members has a file system of its own. What is wrong ends it with code 1.
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// settings are those of the environment; compat/check-faults describes them.
type settings struct {
	binary   string
	dir      string
	election time.Duration
	// 0 if the server has no such flag.
	stall  time.Duration
	flags  []string
	runs   int
	kinds  []string
	modes  []string
	splits int
	// Clusters side by side.
	clusters int
	// What disturbs a member while ranges are split.
	splitFaults []string
	busy        int
	// Whether each request must be answered within the bound, too.
	strict bool
	seed   uint64
}

// bound is how long a range may take no writes after a fault.
func (s settings) bound() time.Duration { return 2*s.election + time.Second }

// Runs after which the cluster begins anew, to keep what is read back small.
const runsPerCluster = 8

// One run each of these fits into a minute and a half. The longest come first;
// each member is stopped in turn.
var quick = []string{
	"hanglong quiet", "full loaded", "readonly quiet", "readonly loaded", "kill quiet", "hang loaded",
	"ioerror loaded", "stop loaded", "stop loaded", "stop loaded",
}

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	ok, err := check(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

func read() (s settings, err error) {
	s.binary, s.dir = os.Getenv("PONTOON"), os.Getenv("DIR")
	if s.binary == "" || s.dir == "" {
		return s, errors.New("PONTOON must name the server, DIR a directory")
	}
	number := func(name string, otherwise int) (value int) {
		text := os.Getenv(name)
		if text == "" {
			return otherwise
		}
		value, bad := strconv.Atoi(text)
		if bad != nil || value < 0 {
			err = errors.Join(err, fmt.Errorf("%s=%s is no number", name, text))
		}
		return value
	}
	list := func(name string) []string {
		return strings.FieldsFunc(os.Getenv(name), func(r rune) bool { return r == ',' || r == ' ' })
	}
	// The server's own default.
	const electionMs, stallSecs = 1000, 5
	if ms := number("ELECTION_MS", 0); ms > 0 {
		s.election = time.Duration(ms) * time.Millisecond
		s.flags = append(s.flags, fmt.Sprintf("--election-timeout=%d", ms), fmt.Sprintf("--heartbeat-interval=%d", ms/10))
	} else {
		s.election = electionMs * time.Millisecond
	}
	help, failed := exec.Command(s.binary, "--help").CombinedOutput()
	if failed != nil {
		return s, fmt.Errorf("%s --help: %w", s.binary, failed)
	}
	if strings.Contains(string(help), "--disk-stall-timeout") {
		s.stall = stallSecs * time.Second
		s.flags = append(s.flags, fmt.Sprintf("--disk-stall-timeout=%ds", stallSecs))
	}
	s.runs = number("RUNS", 1)
	s.splits = number("SPLITS", 12)
	s.clusters = 1
	s.busy = number("BUSY", 0)
	s.strict = number("STRICT", 0) > 0
	s.seed = uint64(number("SEED", os.Getpid()))
	s.kinds, s.modes = list("KINDS"), list("MODES")
	if s.splitFaults = list("SPLIT_FAULTS"); len(s.splitFaults) == 0 {
		s.splitFaults = []string{"kill", "stop"}
	}
	if len(s.kinds) > 0 && !slices.Contains(s.kinds, "split") {
		s.splits = 0
	}
	if s.isQuick() {
		s.clusters = 2
	}
	s.clusters = max(1, number("CLUSTERS", s.clusters))
	return s, err
}

// isQuick says whether nothing was asked for in particular.
func (s settings) isQuick() bool {
	return len(s.kinds) == 0 && len(s.modes) == 0 && os.Getenv("RUNS") == ""
}

// wanted are the faults and modes to run, each once.
func (s settings) wanted() (wanted []string, err error) {
	if s.isQuick() {
		return quick, nil
	}
	modes := s.modes
	if len(modes) == 0 {
		modes = []string{"quiet", "loaded"}
	}
	names := []string{}
	for _, k := range kinds {
		names = append(names, k.name)
	}
	for _, name := range s.kinds {
		if !slices.Contains(names, name) && name != "split" {
			return nil, fmt.Errorf("KINDS has %s; there are %s and split", name, strings.Join(names, ", "))
		}
	}
	for _, name := range names {
		if len(s.kinds) > 0 && !slices.Contains(s.kinds, name) {
			continue
		}
		for _, mode := range modes {
			wanted = append(wanted, name+" "+mode)
		}
	}
	return wanted, nil
}

// job is one run, or the loop of splits.
type job struct {
	kind  *kind
	quiet bool
	title string
	// Chooses the victim, so that runs of a kind take turns.
	turn int
	// Decides all that is left to chance.
	number uint64
}

func (s settings) jobs(wanted []string) (jobs []job) {
	if s.splits > 0 {
		// The longest first.
		jobs = append(jobs, job{})
	}
	for n := range s.runs {
		for i, name := range wanted {
			kindName, mode, _ := strings.Cut(name, " ")
			at := slices.IndexFunc(kinds, func(k kind) bool { return k.name == kindName })
			jobs = append(jobs, job{
				kind: &kinds[at], quiet: mode == modeName(true),
				title: fmt.Sprintf("run %d of %d", n+1, s.runs), turn: n + i, number: uint64(len(jobs)),
			})
		}
	}
	return jobs
}

// check makes all runs and says whether nothing is broken.
func check(ctx context.Context) (ok bool, err error) {
	s, err := read()
	if err != nil {
		return false, err
	}
	wanted, err := s.wanted()
	if err != nil {
		return false, err
	}
	begin := time.Now()
	fmt.Printf("seed %d, election timeout %s: a range may take no writes for %s; load %s before, %d clusters at a time\n",
		s.seed, s.election, s.bound(), loadAverage(), s.clusters)
	stopBusy, err := keepBusy(s.busy)
	if err != nil {
		return false, err
	}
	defer stopBusy()
	results, err := s.work(ctx, s.jobs(wanted))
	if err != nil {
		return false, err
	}
	summarize(results)
	broken := 0
	for _, r := range results {
		if len(r.broken) > 0 {
			broken++
		}
	}
	fmt.Printf("\n%d of %d runs are broken; %s, load %s, seed %d\n", broken, len(results),
		time.Since(begin).Round(time.Second), loadAverage(), s.seed)
	return broken == 0, nil
}

// work does the jobs on some clusters side by side.
func (s settings) work(ctx context.Context, jobs []job) (results []*result, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	queue := make(chan job, len(jobs))
	for _, j := range jobs {
		queue <- j
	}
	close(queue)
	var mu sync.Mutex
	var working sync.WaitGroup
	for n := range s.clusters {
		working.Go(func() {
			mine := s
			mine.dir = filepath.Join(s.dir, fmt.Sprint("cluster", n))
			failed := mine.workOn(ctx, queue, func(made ...*result) {
				mu.Lock()
				defer mu.Unlock()
				results = append(results, made...)
			})
			if failed != nil {
				cancel()
				mu.Lock()
				defer mu.Unlock()
				err = errors.Join(err, failed)
			}
		})
	}
	working.Wait()
	return results, err
}

// workOn does jobs on one cluster until there is none left.
func (s settings) workOn(ctx context.Context, queue <-chan job, report func(...*result)) (err error) {
	c, err := newCluster(s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	since := 0
	for j := range queue {
		rng := rand.New(rand.NewPCG(s.seed, j.number))
		if j.kind == nil {
			splits, err := c.splitLoop(ctx, rng)
			report(splits...)
			if err == nil {
				err = c.wipe()
			}
			if err != nil {
				return err
			}
			continue
		}
		if c.running && since >= runsPerCluster {
			if err := c.wipe(); err != nil {
				return err
			}
		}
		started := time.Now()
		if !c.running {
			since = 0
			if err := c.start(ctx); err != nil {
				return fmt.Errorf("a new cluster doesn't start: %w", err)
			}
		} else if err := c.settle(ctx); err != nil {
			return err
		}
		since++
		r, err := c.fault(ctx, *j.kind, j.quiet, c.members[(s.seed+uint64(j.turn))%3], rng)
		if err != nil {
			return err
		}
		if err := c.writable(ctx, c.members, 30*time.Second); err != nil {
			r.broke("after the fault: %v", err)
		}
		r.note("took %s", seconds(time.Since(started)))
		r.print(j.title)
		report(r)
		if len(r.broken) > 0 || j.kind.wipes {
			keepLogs(c, r, int(j.number))
			if err := c.wipe(); err != nil {
				return err
			}
		}
	}
	return nil
}

// keepLogs puts the members' logs of a broken run where they stay, if KEEP
// names a directory.
func keepLogs(c *cluster, r *result, n int) {
	keep := os.Getenv("KEEP")
	if keep == "" || len(r.broken) == 0 {
		return
	}
	for _, m := range c.members {
		text, err := os.ReadFile(m.logPath)
		if err == nil {
			err = os.WriteFile(fmt.Sprintf("%s/%03d-%s-%s-%s.log", keep, n, r.kind, r.mode, m.Name), text, 0o600)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "faults:", err)
		}
	}
}

// keepBusy has loops take the processor until stop is called.
func keepBusy(count int) (stop func(), err error) {
	var loops []*exec.Cmd
	stop = func() {
		for _, loop := range loops {
			loop.Process.Kill()
			loop.Wait()
		}
	}
	for range count {
		loop := exec.Command("sh", "-c", "while :; do :; done")
		loop.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
		if err := loop.Start(); err != nil {
			stop()
			return nil, err
		}
		loops = append(loops, loop)
	}
	return stop, nil
}
