package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// result is what came of a run.
type result struct {
	kind, mode string
	figures    []figure
	notes      []string
	broken     []string
	// Of a split: it was not made.
	gaveUp bool
	// Of a split: a side of it stays without service.
	lost bool
}

type figure struct {
	name  string
	value float64
	unit  string
}

func newResult(kind, mode string) *result { return &result{kind: kind, mode: mode} }

func (r *result) figure(name string, value time.Duration) {
	r.figures = append(r.figures, figure{name, value.Seconds(), " s"})
}

func (r *result) count(name string, value int) {
	r.figures = append(r.figures, figure{name, float64(value), ""})
}

func (r *result) note(format string, arguments ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, arguments...))
}

// broke takes down what is not as it must be.
func (r *result) broke(format string, arguments ...any) {
	r.broken = append(r.broken, fmt.Sprintf(format, arguments...))
}

func (f figure) format(value float64) string {
	if f.unit == "" {
		return fmt.Sprintf("%.0f", value)
	}
	return fmt.Sprintf("%.2f%s", value, f.unit)
}

// print writes the run's line, and one for each thing that is broken.
func (r *result) print(title string) {
	var parts []string
	for i, f := range r.figures {
		// Figures that were taken of each member: the largest.
		if i+1 < len(r.figures) && r.figures[i+1].name == f.name {
			r.figures[i+1].value = max(r.figures[i+1].value, f.value)
			continue
		}
		parts = append(parts, f.name+" "+f.format(f.value))
	}
	verdict := "ok"
	if len(r.broken) > 0 {
		verdict = "BROKEN"
	}
	// In one piece, since others print too.
	text := fmt.Sprintf("%-9s %-7s %-6s %s: %s (%s)\n", r.kind, r.mode, verdict, title,
		strings.Join(parts, ", "), strings.Join(r.notes, ", "))
	for i, broken := range r.broken {
		if i == 8 {
			text += fmt.Sprintf("    and %d more\n", len(r.broken)-i)
			break
		}
		text += fmt.Sprintf("    broken: %s\n", broken)
	}
	fmt.Print(text)
}

// summarize prints a table of all figures over all runs.
func summarize(results []*result) {
	type row struct {
		figure
		label  string
		values []float64
	}
	var rows []*row
	type tally struct{ runs, broken int }
	tallies := map[string]*tally{}
	for _, r := range results {
		label := r.kind + " " + r.mode
		t := tallies[label]
		if t == nil {
			t = &tally{}
			tallies[label] = t
		}
		t.runs++
		if len(r.broken) > 0 {
			t.broken++
		}
		for i, f := range r.figures {
			if i+1 < len(r.figures) && r.figures[i+1].name == f.name {
				continue
			}
			at := slices.IndexFunc(rows, func(known *row) bool { return known.label == label && known.name == f.name })
			if at < 0 {
				at = len(rows)
				rows = append(rows, &row{figure: f, label: label})
			}
			rows[at].values = append(rows[at].values, f.value)
		}
	}
	slices.SortStableFunc(rows, func(a, b *row) int { return strings.Compare(a.label, b.label) })
	fmt.Printf("\n%-18s %6s %6s  %-30s %10s %10s %10s\n", "fault", "runs", "broken", "figure", "min", "median", "max")
	last := ""
	for _, row := range rows {
		slices.Sort(row.values)
		label, runs, broken := "", "", ""
		if row.label != last {
			label, runs, broken = row.label, fmt.Sprint(tallies[row.label].runs), fmt.Sprint(tallies[row.label].broken)
			last = row.label
		}
		n := len(row.values)
		fmt.Printf("%-18s %6s %6s  %-30s %10s %10s %10s\n", label, runs, broken, row.name,
			row.format(row.values[0]), row.format(row.values[n/2]), row.format(row.values[n-1]))
	}
}

func seconds(d time.Duration) string      { return fmt.Sprintf("%.2f s", d.Seconds()) }
func milliseconds(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

// loadAverage is that of the last minute.
func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

// lateness is how late the harness itself was woken: a machine that starves
// the harness starves the servers too.
type lateness struct {
	mu   sync.Mutex
	most time.Duration
	done chan struct{}
}

func watchLateness() *lateness {
	const every = 20 * time.Millisecond
	l := &lateness{done: make(chan struct{})}
	go func() {
		for {
			begin := time.Now()
			select {
			case <-l.done:
				return
			case <-time.After(every):
			}
			l.mu.Lock()
			l.most = max(l.most, time.Since(begin)-every)
			l.mu.Unlock()
		}
	}()
	return l
}

func (l *lateness) stop() { close(l.done) }

func (l *lateness) longest() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.most
}
