package members

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pontoon/compat/clusters"
)

// resident is how much memory of its own a member has, in bytes.
func resident(t *testing.T, m *clusters.Member) (bytes int64) {
	t.Helper()
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", m.Pid()))
	fine(t, err)
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if text, is := strings.CutPrefix(lines.Text(), "RssAnon:"); is {
			fmt.Sscan(text, &bytes)
		}
	}
	return bytes << 10
}

// allowFiles lets this process have as many connections as the system allows.
func allowFiles(t testing.TB) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
}

const connections = 10_000

// Connections that only stay cost little.
func TestIdleConnections(t *testing.T) {
	allowFiles(t)
	cluster := start(t, 1)
	m := cluster.Members[0]
	client := connect(t, endpoints(m))
	put(t, client, "a", "1")
	before := resident(t, m)
	for range connections {
		conn, err := net.Dial("tcp", m.Endpoint())
		fine(t, err)
		defer conn.Close()
		// HTTP/2's first words, with an empty SETTINGS.
		_, err = conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
		fine(t, err)
		// The server's: 9 bytes and what they announce.
		head := make([]byte, 9)
		_, err = io.ReadFull(conn, head)
		fine(t, err)
	}
	put(t, client, "a", "1")
	each := (resident(t, m) - before) / connections
	t.Logf("%d bytes for each of %d connections", each, connections)
	if each > 64<<10 {
		t.Errorf("a connection that does nothing costs %d bytes", each)
	}
}

// A watcher that takes nothing costs no memory, and gets all when it does.
func TestStalledWatcher(t *testing.T) {
	const puts, valueBytes, slackBytes = 1000, 128 << 10, 48 << 20
	value := strings.Repeat("v", valueBytes)
	grown := func(watched bool) int64 {
		cluster := start(t, 1)
		m := cluster.Members[0]
		client := connect(t, endpoints(m))
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		var stream pb.Watch_WatchClient
		if watched {
			var err error
			stream, err = pb.NewWatchClient(m.Conn).Watch(ctx)
			fine(t, err)
			create := &pb.WatchCreateRequest{Key: []byte("stalled"), RangeEnd: []byte(clientv3.GetPrefixRangeEnd("stalled"))}
			fine(t, stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}))
			_, err = stream.Recv()
			fine(t, err)
		}
		before := resident(t, m)
		for n := range puts {
			_, err := client.Put(ctx, fmt.Sprintf("stalled-%d", n%7), value)
			fine(t, err)
		}
		grown := resident(t, m) - before
		for seen := 0; watched && seen < puts; {
			response, err := stream.Recv()
			fine(t, err)
			for _, event := range response.Events {
				if want := fmt.Sprintf("stalled-%d", seen%7); string(event.Kv.Key) != want {
					t.Fatalf("event %d is of %s", seen, event.Kv.Key)
				}
				seen++
			}
		}
		return grown
	}
	without, with := grown(false), grown(true)
	t.Logf("grown by %d MiB without the watcher, by %d MiB with it", without>>20, with>>20)
	if with > without+slackBytes {
		t.Errorf("the watcher costs %d MiB", (with-without)>>20)
	}
}
