// Sends the same random requests to a real etcd and to Pontoon, and compares
// every answer and event.
package main

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// With fewer requests than this the counts are printed, but may be low.
const countedMin = 100_000

// How often a cluster of several members may leave out a revision.
const gapsMax = 10

type binaries struct {
	etcd, pontoon string
	goOn          bool
}

func main() {
	seed := flag.Uint64("seed", rand.Uint64(), "decides about all requests")
	count := flag.Int("requests", 40_000, "random requests for each shape")
	only := flag.String("shape", "", "run only shapes whose name has this in it")
	var binaries binaries
	flag.StringVar(&binaries.etcd, "etcd", "", "the real etcd")
	flag.StringVar(&binaries.pontoon, "pontoon", "", "the server that is compared with it")
	flag.BoolVar(&binaries.goOn, "go-on", false, "go on where one side refuses what the other does")
	errorsPage := flag.String("errors", "", "docs/errors.md")
	flag.Parse()
	if err := compareAll(*seed, *count, *only, binaries, *errorsPage); err != nil {
		fmt.Fprintf(os.Stderr, "\nDIFFERENT (seed %d): %v\n", *seed, err)
		os.Exit(1)
	}
}

func compareAll(seed uint64, count int, only string, binaries binaries, errorsPage string) error {
	dir, err := os.MkdirTemp("", "pontoon-differential")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fmt.Printf("seed %d, %d requests for each shape\n", seed, count)
	fmt.Println("not compared as it is:")
	for _, e := range excluded {
		fmt.Printf("  %s\n    because: %s\n", e.what, e.reason)
	}
	coverage := newCoverage()
	if err := compareShapes(seed, count, only, binaries, dir, coverage); err != nil {
		return err
	}
	if only == "" || only == "members" {
		if err := compareMembers(binaries, dir, coverage); err != nil {
			return fmt.Errorf("3 members on both sides: %w", err)
		}
	}
	missing, err := coverage.report(errorsPage)
	if err != nil {
		return err
	}
	if len(missing) > 0 && coverage.requests >= countedMin {
		return fmt.Errorf("no difference, but too little was tried:\n  %s", strings.Join(missing, "\n  "))
	}
	for _, what := range missing {
		fmt.Println("too little for a real run:", what)
	}
	fmt.Println("etcd and Pontoon agree")
	return nil
}

// compareShapes runs the shapes beside each other: most of the time each of them
// waits for a disk or for a watch.
func compareShapes(seed uint64, count int, only string, binaries binaries, dir string, all *coverage) error {
	var group sync.WaitGroup
	var mutex sync.Mutex
	var failures []error
	for i, shape := range shapes {
		if !strings.Contains(shape.name, only) {
			continue
		}
		group.Go(func() {
			own := newCoverage()
			err := compareShape(shape, seed+uint64(i), count, binaries, filepath.Join(dir, fmt.Sprint(i)), own)
			mutex.Lock()
			defer mutex.Unlock()
			all.add(own)
			if err != nil {
				err = fmt.Errorf("%s: %w", shape.name, err)
				fmt.Printf("%v\n(The other shapes go on.)\n", err)
				failures = append(failures, err)
			}
		})
	}
	group.Wait()
	return errors.Join(failures...)
}

func compareShape(s shape, seed uint64, count int, binaries binaries, dir string, coverage *coverage) error {
	started := time.Now()
	for gaps, left := 0, count; left > 0; gaps++ {
		done, err := compareOnce(s, seed+1000*uint64(gaps), left, binaries, fmt.Sprintf("%s/%d", dir, gaps), coverage)
		var gap *gap
		if errors.As(err, &gap) && gaps < gapsMax {
			fmt.Printf("%s: a revision was left out: %.1500s…\n", s.name, gap.Error())
		} else if err != nil {
			return err
		}
		left -= done
	}
	fmt.Printf("%s: %d requests in %.0f s, no difference\n", s.name, count, time.Since(started).Seconds())
	return nil
}

// compareOnce sends so many requests to new clusters, and tells how many it did.
func compareOnce(s shape, seed uint64, count int, binaries binaries, dir string, coverage *coverage) (int, error) {
	r, err := newRun(s, seed, binaries, dir, coverage)
	if err != nil {
		return 0, err
	}
	defer r.stop()
	if err := r.scenes(); err != nil {
		return r.number, err
	}
	if err := r.random(count); err != nil {
		return r.number, err
	}
	if len(s.splits) == 0 {
		return r.number, r.loseQuorum()
	}
	return r.number, nil
}
