package goclient

import (
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pontoon/compat/clusters"
)

func TestMemberList(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		members := must[*clientv3.MemberListResponse](t)(client.MemberList(soon(t)))
		equal(t, len(members.Members), len(client.Endpoints()))
		fine(t, client.Sync(soon(t)))
	})
}

func TestStatusAndHash(t *testing.T) {
	both(t, func(t *testing.T, client *clientv3.Client) {
		revision := put(t, client, "hash")
		var hashes []uint32
		for _, endpoint := range client.Endpoints() {
			must[*clientv3.StatusResponse](t)(client.Status(soon(t), endpoint))
			for ctx := soon(t); ; time.Sleep(20 * time.Millisecond) {
				answer, err := client.HashKV(ctx, endpoint, revision)
				if err == nil {
					hashes = append(hashes, answer.Hash)
					break
				}
				fine(t, ctx.Err())
			}
		}
		for _, hash := range hashes {
			equal(t, hash, hashes[0])
		}
	})
}

// away kills a member for as long as a case lasts.
func away(t *testing.T, c *clusters.Cluster, m *clusters.Member) {
	c.Kill(m)
	t.Cleanup(func() { fine(t, c.StartMember(m, "existing")) })
}

// The watch is at a member that dies: it goes on at another, and misses nothing.
func TestWatchGoesOnWhenItsMemberDies(t *testing.T) {
	for at, m := range three.Members {
		t.Run(m.Name, func(t *testing.T) {
			// A client that begins with this member.
			rotated := &clusters.Cluster{Members: append(append([]*clusters.Member{}, three.Members[at:]...), three.Members[:at]...)}
			client, writer := connect(t, rotated), connect(t, three)
			prefix := fmt.Sprintf("resume-%d/", at)
			watch := client.Watch(within(t, time.Minute), prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
			next(t, watch)
			write := func(n int) {
				key := fmt.Sprintf("%s%03d", prefix, n)
				for ctx := within(t, time.Minute); ; {
					if _, err := writer.Put(ctx, key, ""); err == nil {
						return
					}
					fine(t, ctx.Err())
				}
			}
			for n := range 20 {
				write(n)
			}
			away(t, three, m)
			for n := 20; n < 40; n++ {
				write(n)
			}
			seen, last := map[string]bool{}, int64(0)
			for len(seen) < 40 {
				for _, event := range next(t, watch).Events {
					if event.Kv.ModRevision <= last {
						t.Fatalf("%s came again or too late", event.Kv.Key)
					}
					last = event.Kv.ModRevision
					seen[string(event.Kv.Key)] = true
				}
			}
		})
	}
}

func TestKeepAliveGoesOnWhenAMemberDies(t *testing.T) {
	for _, m := range three.Members {
		t.Run(m.Name, func(t *testing.T) {
			client := connect(t, three)
			lease := must[*clientv3.LeaseGrantResponse](t)(client.Grant(soon(t), 8)).ID
			must[*clientv3.PutResponse](t)(client.Put(soon(t), "kept-"+m.Name, "", clientv3.WithLease(lease)))
			alive := must[<-chan *clientv3.LeaseKeepAliveResponse](t)(client.KeepAlive(within(t, time.Minute), lease))
			<-alive
			away(t, three, m)
			until := time.Now().Add(14 * time.Second)
			for time.Now().Before(until) {
				select {
				case answer := <-alive:
					if answer == nil {
						t.Fatal("it is not kept alive")
					}
				case <-time.After(time.Until(until)):
				}
			}
			equal(t, read(t, client, "kept-"+m.Name), "kept-"+m.Name)
		})
	}
}
