package main

import (
	"bytes"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc"

	"pontoon/compat/clusters"
)

// scenes are what chance would not come upon, in the order in which they are
// played before the random requests.
func (r *run) scenes() error {
	for _, scene := range []struct {
		name string
		play func() error
	}{
		{"requests that are too large", r.tooLarge},
		{"methods that are not there", r.notThere},
		{"a lease without a given id", r.leaseWithoutID},
		{"a lease that ends", r.leaseEnds},
		{"the largest lease", r.largestLease},
		{"a lock that is waited for", r.waitForLock},
		{"large events in pieces", r.pieces},
		{"a transaction that makes etcd panic", r.panics},
	} {
		if err := scene.play(); err != nil {
			return fmt.Errorf("%s: %w", scene.name, err)
		}
	}
	return nil
}

func (r *run) put(key, value string, lease int64) error {
	request := &pb.PutRequest{Key: []byte(key), Value: []byte(value), Lease: lease}
	return r.call(call{method: "/etcdserverpb.KV/Put", request: request})
}

func (r *run) tooLarge() error {
	for _, size := range []int{1 << 20, 3<<19 - 200, 3 << 19, 2<<20 + 1, 3 << 20} {
		value := bytes.Repeat([]byte("x"), size)
		if err := r.put("large", string(value), 0); err != nil {
			return err
		}
		op := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{
			RequestPut: &pb.PutRequest{Key: []byte("large"), Value: value}}}
		txn := call{method: "/etcdserverpb.KV/Txn", request: &pb.TxnRequest{Failure: []*pb.RequestOp{op}}}
		if err := r.call(txn); err != nil {
			return err
		}
	}
	return r.call(call{method: "/etcdserverpb.KV/DeleteRange", request: &pb.DeleteRangeRequest{Key: []byte("large")}})
}

func (r *run) notThere() error {
	for _, method := range []string{"/etcdserverpb.KV/Nothing", "/nothing.Nothing/Nothing", "/etcdserverpb.Watch/x"} {
		if err := r.call(call{method: method, request: &pb.RangeRequest{Key: []byte("a")}}); err != nil {
			return err
		}
	}
	return nil
}

// leaseWithoutID grants one on each side and revokes what each has chosen.
func (r *run) leaseWithoutID() error {
	grant := call{method: "/etcdserverpb.Lease/LeaseGrant", request: &pb.LeaseGrantRequest{TTL: 1000}}
	etcd, pontoon := sendBoth(r.etcd.Members[0].Conn, r.pontoon.Members[0].Conn, grant)
	if wrong := difference(grant, etcd, pontoon); wrong != "" {
		return fmt.Errorf("%s", wrong)
	}
	revoke := func(conn *grpc.ClientConn, a answer) answer {
		id := a.messages[0].(*pb.LeaseGrantResponse).ID
		return send(conn, call{method: "/etcdserverpb.Lease/LeaseRevoke", request: &pb.LeaseRevokeRequest{ID: id}})
	}
	etcd = revoke(r.etcd.Members[0].Conn, etcd)
	pontoon = revoke(r.pontoon.Members[0].Conn, pontoon)
	if wrong := difference(grant, etcd, pontoon); wrong != "" {
		return fmt.Errorf("%s", wrong)
	}
	return nil
}

// leaseEnds has keys vanish with their lease, which no request does.
func (r *run) leaseEnds() error {
	grant := &pb.LeaseGrantRequest{ID: 77, TTL: 1}
	if err := r.call(call{method: "/etcdserverpb.Lease/LeaseGrant", request: grant}); err != nil {
		return err
	}
	for _, key := range []string{"a1", "c1", "f9"} {
		if err := r.put(key, "leased", 77); err != nil {
			return err
		}
	}
	wanted := r.revision + 1
	for _, c := range []*clusters.Cluster{r.etcd, r.pontoon} {
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			a := send(c.Members[0].Conn, readAll)
			if a.err == nil && revisionOf(a.messages[0]) >= wanted {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%s keeps the keys of a lease that has ended", c.Name)
			}
		}
	}
	if err := r.call(readAll); err != nil {
		return err
	}
	alive := &pb.LeaseTimeToLiveRequest{ID: 77, Keys: true}
	if err := r.call(call{method: "/etcdserverpb.Lease/LeaseTimeToLive", request: alive}); err != nil {
		return err
	}
	return r.call(call{method: keepAlive, request: &pb.LeaseKeepAliveRequest{ID: 77}})
}

func (r *run) largestLease() error {
	grant := &pb.LeaseGrantRequest{ID: 78, TTL: 9_000_000_000}
	if err := r.call(call{method: "/etcdserverpb.Lease/LeaseGrant", request: grant}); err != nil {
		return err
	}
	return r.call(call{method: "/etcdserverpb.Lease/LeaseRevoke", request: &pb.LeaseRevokeRequest{ID: 78}})
}

// waitForLock has one wait behind another: who gets the lock when it is free,
// and who waits with a lease that is gone.
func (r *run) waitForLock() error {
	for _, gone := range []bool{false, true} {
		for id := range int64(2) {
			grant := &pb.LeaseGrantRequest{ID: 80 + id, TTL: 1000}
			if err := r.call(call{method: "/etcdserverpb.Lease/LeaseGrant", request: grant}); err != nil {
				return err
			}
		}
		lock := func(lease int64) call {
			return call{method: "/v3lockpb.Lock/Lock", request: &v3lockpb.LockRequest{Name: []byte("lock"), Lease: lease}}
		}
		if err := r.call(lock(80)); err != nil {
			return err
		}
		waits := make(chan [2]answer, 1)
		go func() {
			etcd, pontoon := sendBoth(r.etcd.Members[0].Conn, r.pontoon.Members[0].Conn, lock(81))
			waits <- [2]answer{etcd, pontoon}
		}()
		if err := r.awaitKey("lock/51"); err != nil {
			return err
		}
		if gone {
			revoke := &pb.LeaseRevokeRequest{ID: 81}
			if err := r.call(call{method: "/etcdserverpb.Lease/LeaseRevoke", request: revoke}); err != nil {
				return err
			}
		}
		unlock := &v3lockpb.UnlockRequest{Key: []byte("lock/50")}
		if err := r.call(call{method: "/v3lockpb.Lock/Unlock", request: unlock}); err != nil {
			return err
		}
		got := <-waits
		if wrong := difference(lock(81), got[0], got[1]); wrong != "" {
			return fmt.Errorf("%s", wrong)
		}
		if failure := got[0].failure(); failure != "" {
			r.coverage.failures[failure]++
		}
		for id := range int64(2) {
			revoke := &pb.LeaseRevokeRequest{ID: 80 + id}
			if err := r.call(call{method: "/etcdserverpb.Lease/LeaseRevoke", request: revoke}); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitKey waits until a key is there on both sides.
func (r *run) awaitKey(key string) error {
	get := call{method: "/etcdserverpb.KV/Range", request: &pb.RangeRequest{Key: []byte(key), CountOnly: true}}
	for _, c := range []*clusters.Cluster{r.etcd, r.pontoon} {
		for deadline := time.Now().Add(callTimeout); ; time.Sleep(5 * time.Millisecond) {
			a := send(c.Members[0].Conn, get)
			if a.err == nil && a.messages[0].(*pb.RangeResponse).Count > 0 {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%s doesn't have the key %s: %s", c.Name, key, describe(a))
			}
		}
	}
	return r.call(readAll)
}

// pieces has a revision that doesn't fit a response.
func (r *run) pieces() error {
	for i := range 8 {
		value := bytes.Repeat([]byte("x"), 700_000)
		if err := r.put(fmt.Sprintf("large-%d", i), string(value), 0); err != nil {
			return err
		}
	}
	from := r.revision + 1
	deletion := &pb.DeleteRangeRequest{Key: []byte("large-"), RangeEnd: []byte("large.")}
	if err := r.call(call{method: "/etcdserverpb.KV/DeleteRange", request: deletion}); err != nil {
		return err
	}
	p, err := r.openPair()
	if err != nil {
		return err
	}
	defer p.close()
	create := &pb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}, StartRevision: from,
		PrevKv: true, Fragment: true}
	if _, err := r.oracle.through(r.revision); err != nil {
		return err
	}
	if err := r.createWatch(p, create); err != nil {
		return err
	}
	var cut [2][]int
	for i, s := range []*stream{p.etcd, p.pontoon} {
		s.mutex.Lock()
		for n, response := range s.watches[0].responses {
			if response.Fragment == (n == len(s.watches[0].responses)-1) {
				s.wrong = "a piece doesn't say whether it is the last: " + fmt.Sprint(response.Fragment)
			}
			cut[i] = append(cut[i], len(response.Events))
		}
		wrong := s.wrong
		s.mutex.Unlock()
		if wrong != "" {
			return fmt.Errorf("%s: %s", sideName(i), wrong)
		}
	}
	if fmt.Sprint(cut[0]) != fmt.Sprint(cut[1]) || len(cut[0]) < 2 {
		return fmt.Errorf("events in each piece: etcd %v, pontoon %v", cut[0], cut[1])
	}
	return nil
}

// panics sends Pontoon alone what etcd must not be sent.
func (r *run) panics() error {
	if err := r.put("z", "here", 0); err != nil {
		return err
	}
	deletion := &pb.DeleteRangeRequest{Key: []byte("z"), RangeEnd: []byte{0}}
	put := &pb.PutRequest{Key: []byte("z"), IgnoreValue: true}
	txn := &pb.TxnRequest{Success: []*pb.RequestOp{
		{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: deletion}},
		{Request: &pb.RequestOp_RequestPut{RequestPut: put}},
	}}
	a := send(r.pontoon.Members[0].Conn, call{method: "/etcdserverpb.KV/Txn", request: txn})
	if a.failure() != "InvalidArgument: etcdserver: key not found" {
		return fmt.Errorf("pontoon: %s", describe(a))
	}
	return r.call(call{method: "/etcdserverpb.KV/Range", request: &pb.RangeRequest{Key: []byte("z")}})
}

// loseQuorum ends a cluster of one: a second member that never comes, and no
// third one.
func (r *run) loseQuorum() error {
	for i := range 2 {
		url := fmt.Sprintf("http://127.0.0.1:%d", 1+i)
		add := call{method: "/etcdserverpb.Cluster/MemberAdd", request: &pb.MemberAddRequest{PeerURLs: []string{url}}}
		if err := r.call(add); err != nil {
			return err
		}
	}
	return nil
}
