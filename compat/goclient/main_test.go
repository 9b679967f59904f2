// Package goclient has etcd's own Go client work with Pontoon: what its users
// do with it, on one node, on three, and through the death of one of them.
package goclient

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"pontoon/compat/clusters"
)

var (
	one   *clusters.Cluster
	three *clusters.Cluster
)

// The boundaries of the groups of the cluster of three.
const boundaries = "--initial-splits=c,g,m,p,s,w,z"

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	binary := os.Getenv("PONTOON")
	if binary == "" {
		fmt.Fprintln(os.Stderr, "PONTOON must name the server")
		return 1
	}
	dir, err := os.MkdirTemp("", "pontoon-goclient")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if one, err = clusters.Start("one", binary, dir, 1); err == nil {
		defer one.Stop()
		three, err = clusters.Start("three", binary, dir, 3, boundaries)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer three.Stop()
	return m.Run()
}

// both runs a case with a client of the one node and with one of the three.
func both(t *testing.T, test func(t *testing.T, client *clientv3.Client)) {
	for _, c := range []*clusters.Cluster{one, three} {
		t.Run(c.Name, func(t *testing.T) { test(t, connect(t, c)) })
	}
}

func connect(t *testing.T, c *clusters.Cluster) *clientv3.Client {
	t.Helper()
	var endpoints []string
	for _, m := range c.Members {
		endpoints = append(endpoints, strings.TrimPrefix(m.ClientURL, "http://"))
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:   endpoints,
		DialTimeout: 5 * time.Second,
		Logger:      zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func within(t *testing.T, time time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time)
	t.Cleanup(cancel)
	return ctx
}

func soon(t *testing.T) context.Context { return within(t, 20*time.Second) }

func must[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func fine(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](t *testing.T, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%v instead of %v", got, want)
	}
}

// put puts keys, each with itself as its value.
func put(t *testing.T, kv clientv3.KV, keys ...string) (revision int64) {
	t.Helper()
	for _, key := range keys {
		revision = must[*clientv3.PutResponse](t)(kv.Put(soon(t), key, key)).Header.Revision
	}
	return revision
}

// read are the keys that a get finds, with spaces between.
func read(t *testing.T, kv clientv3.KV, key string, options ...clientv3.OpOption) string {
	t.Helper()
	var keys []string
	for _, found := range must[*clientv3.GetResponse](t)(kv.Get(soon(t), key, options...)).Kvs {
		keys = append(keys, string(found.Key))
	}
	return strings.Join(keys, " ")
}

// next is the next response of a watch.
func next(t *testing.T, watch clientv3.WatchChan) clientv3.WatchResponse {
	t.Helper()
	select {
	case response, open := <-watch:
		if !open {
			t.Fatal("the watch has ended")
		}
		fine(t, response.Err())
		return response
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came")
	}
	return clientv3.WatchResponse{}
}
