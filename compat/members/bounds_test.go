package members

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/net/http2"

	"pontoon/compat/clusters"
)

const (
	// What one connection may make the server hold, and a thousand of them.
	aloneBytes    = 4 << 20
	togetherBytes = 512 << 20
	// So many that what is no connection's, such as free memory that the
	// allocator keeps for each thread, counts little.
	fewConnections  = 64
	manyConnections = 1000
)

// hot makes a mebibyte of values as large as those of large Kubernetes objects,
// and a history of 25 of them.
func hot(t testing.TB, client *clientv3.Client) {
	t.Helper()
	const valueBytes, keys = 16 << 10, 64
	value := strings.Repeat("v", valueBytes)
	for n := range 25 * keys {
		put(t, client, fmt.Sprintf("%s%02d", hotPrefix, n%keys), value)
	}
}

func put(t testing.TB, client *clientv3.Client, key, value string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if _, err := client.Put(ctx, key, value); err != nil {
		t.Fatal(err)
	}
}

// misbehave has so many connections do their worst, and returns when they are
// done. They stay open until the test ends.
func misbehave(t testing.TB, m *clusters.Member, deed misdeed, connections, times int) {
	var all sync.WaitGroup
	for range connections {
		h := newHostile(t, m.Endpoint(), deed.reads)
		all.Go(func() { deed.act(h, times) })
	}
	all.Wait()
}

// One client can't take the server's memory, and a thousand can't either.
func TestClientsAreBounded(t *testing.T) {
	for _, deed := range misdeeds {
		t.Run(deed.name, func(t *testing.T) {
			bounded(t, deed, fewConnections, deed.alone, fewConnections*aloneBytes)
		})
		t.Run(deed.name+", a thousand", func(t *testing.T) {
			bounded(t, deed, manyConnections, deed.together, togetherBytes)
		})
	}
}

func bounded(t *testing.T, deed misdeed, connections, times int, bytesMax int64) {
	allowFiles(t)
	cluster := start(t, 1)
	m := cluster.Members[0]
	client := connect(t, endpoints(m))
	hot(t, client)
	// Freed memory goes back to the system after a while.
	time.Sleep(3 * time.Second)
	before := resident(t, m)

	most := before
	done := make(chan struct{})
	go func() {
		defer close(done)
		misbehave(t, m, deed, connections, times)
		// What the server does with the last of it.
		time.Sleep(2 * time.Second)
	}()
	for looking := true; looking; {
		select {
		case <-done:
			looking = false
		case <-time.After(50 * time.Millisecond):
		}
		most = max(most, resident(t, m))
		// Others notice nothing.
		put(t, client, "healthy", "yes")
	}
	grown := most - before
	t.Logf("%d connections: grown by %.1f MiB, of %.1f", connections, float64(grown)/(1<<20), float64(before)/(1<<20))
	if grown > bytesMax {
		t.Errorf("%d connections take %.1f MiB", connections, float64(grown)/(1<<20))
	}
}

// A client may open all the streams that it may have at once, each with a small
// message, before the server has looked at any.
func TestStreamsAtOnce(t *testing.T) {
	const streams = 200
	cluster := start(t, 1)
	m := cluster.Members[0]
	h := newHostile(t, m.Endpoint(), true)
	var all bytes.Buffer
	h.framer = http2.NewFramer(&all, nil)
	for range streams {
		stream, err := h.open(watch, 0)
		fine(t, err)
		fine(t, h.framer.WriteData(stream, false, createWatch(&pb.WatchCreateRequest{Key: []byte("quiet")})))
	}
	_, err := h.conn.Write(all.Bytes())
	fine(t, err)
	for deadline := time.Now().Add(30 * time.Second); watchers(t, m) < streams; {
		if time.Now().After(deadline) {
			t.Fatalf("there are %d watchers of %d", watchers(t, m), streams)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// watchers is how many a member counts.
func watchers(t testing.TB, m *clusters.Member) (count int) {
	t.Helper()
	response, err := http.Get("http://" + m.Endpoint() + "/metrics")
	fine(t, err)
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if text, is := strings.CutPrefix(lines.Text(), "etcd_debugging_mvcc_watcher_total "); is {
			fmt.Sscan(text, &count)
		}
	}
	return count
}

// How long a put of a healthy client takes beside hostile ones, and without. Each
// kind of them is ten connections that do it again and again.
func BenchmarkBesideHostileClients(b *testing.B) {
	const rounds, puts = 5, 2000
	for _, deed := range misdeeds {
		b.Run(deed.name, func(b *testing.B) {
			allowFiles(b)
			cluster := start(b, 1)
			m := cluster.Members[0]
			client := connect(b, endpoints(m))
			hot(b, client)
			var ratios []float64
			for range rounds {
				alone := p99(b, client, puts)
				stop := hostileLoad(b, m, deed)
				beside := p99(b, client, puts)
				stop()
				ratios = append(ratios, beside.Seconds()/alone.Seconds())
				b.Logf("p99 %v alone, %v beside", alone, beside)
			}
			slices.Sort(ratios)
			b.ReportMetric(ratios[rounds/2], "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// hostileLoad has ten connections misbehave, each again when it has ended.
func hostileLoad(t testing.TB, m *clusters.Member, deed misdeed) (stop func()) {
	var over atomic.Bool
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			for !over.Load() {
				h := newHostile(t, m.Endpoint(), deed.reads)
				deed.act(h, deed.together)
				time.Sleep(500 * time.Millisecond)
				h.conn.Close()
			}
		})
	}
	return func() {
		over.Store(true)
		all.Wait()
	}
}

// p99 of so many puts, from eight workers.
func p99(t testing.TB, client *clientv3.Client, puts int) time.Duration {
	const workers = 8
	took := make([]time.Duration, puts)
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			for at := worker; at < puts; at += workers {
				since := time.Now()
				put(t, client, fmt.Sprintf("healthy%d", worker), "yes")
				took[at] = time.Since(since)
			}
		})
	}
	all.Wait()
	slices.Sort(took)
	return took[puts*99/100]
}
