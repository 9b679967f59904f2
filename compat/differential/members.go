package main

import (
	"fmt"
	"path/filepath"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"pontoon/compat/clusters"
)

// etcd takes members for connected, or away, after 5 s.
const connected = 7 * time.Second

// members are scenes of a cluster of three on both sides: who belongs to it,
// who leads it, and what it does without a quorum.
type members struct {
	etcd, pontoon *clusters.Cluster
	coverage      *coverage
}

func compareMembers(binaries binaries, dir string, coverage *coverage) error {
	fmt.Println("--- 3 members on both sides")
	dir = filepath.Join(dir, "members")
	etcd, err := clusters.Start("etcd", binaries.etcd, dir, 3, "--unsafe-no-fsync")
	if err != nil {
		return err
	}
	defer etcd.Stop()
	pontoon, err := clusters.Start("pontoon", binaries.pontoon, dir, 3)
	if err != nil {
		return err
	}
	defer pontoon.Stop()
	m := &members{etcd, pontoon, coverage}
	time.Sleep(connected)
	for _, scene := range []struct {
		name string
		play func() error
	}{
		{"leaders", m.leaders},
		{"learners", m.learners},
		{"a member is away", m.oneAway},
		{"two members are away", m.twoAway},
	} {
		if err := scene.play(); err != nil {
			return fmt.Errorf("%s: %w", scene.name, err)
		}
	}
	return nil
}

// ask asks one member of each side, with a request for each, as ids differ.
func (m *members) ask(etcd, pontoon *clusters.Member, toEtcd, toPontoon call) (answer, error) {
	m.coverage.sent(toEtcd.request)
	a, b := send(etcd.Conn, toEtcd), send(pontoon.Conn, toPontoon)
	if isUnhealthy(a) != isUnhealthy(b) {
		a, b = onceHealthy(a, etcd, toEtcd), onceHealthy(b, pontoon, toPontoon)
	}
	if failure := a.failure(); failure != "" {
		m.coverage.failures[failure]++
	}
	if wrong := difference(toEtcd, a, b); wrong != "" {
		return b, fmt.Errorf("%s\n%s", describeCall(toEtcd), wrong)
	}
	return b, nil
}

// isUnhealthy is what a cluster says for some seconds after a connection between
// two of its members broke, which happens on a busy machine.
func isUnhealthy(a answer) bool {
	return a.failure() == "Unavailable: etcdserver: unhealthy cluster"
}

// onceHealthy is an answer that isn't the passing one, if another comes in time.
func onceHealthy(a answer, m *clusters.Member, c call) answer {
	for deadline := time.Now().Add(3 * connected); isUnhealthy(a) && time.Now().Before(deadline); {
		time.Sleep(time.Second)
		a = send(m.Conn, c)
	}
	return a
}

// places are members of both sides that play the same part.
type places struct{ etcd, pontoon *clusters.Member }

func (m *members) roles() (leader, follower places, err error) {
	a, err := m.etcd.Leader()
	if err != nil {
		return leader, follower, err
	}
	b, err := m.pontoon.Leader()
	leader = places{m.etcd.Members[a], m.pontoon.Members[b]}
	follower = places{m.etcd.Members[(a+1)%3], m.pontoon.Members[(b+1)%3]}
	return leader, follower, err
}

func idOf(m *clusters.Member) uint64 {
	a := send(m.Conn, call{method: "/etcdserverpb.Maintenance/Status", request: &pb.StatusRequest{}})
	if a.err != nil {
		return 0
	}
	return a.messages[0].(*pb.StatusResponse).Header.MemberId
}

func moveTo(id uint64) call {
	return call{method: "/etcdserverpb.Maintenance/MoveLeader", request: &pb.MoveLeaderRequest{TargetID: id}}
}

func (m *members) leaders() error {
	leader, follower, err := m.roles()
	if err != nil {
		return err
	}
	steps := []struct {
		at places
		to [2]uint64
	}{
		{follower, [2]uint64{idOf(leader.etcd), idOf(leader.pontoon)}},
		{leader, [2]uint64{1, 1}},
		{leader, [2]uint64{idOf(follower.etcd), idOf(follower.pontoon)}},
	}
	for _, step := range steps {
		if _, err := m.ask(step.at.etcd, step.at.pontoon, moveTo(step.to[0]), moveTo(step.to[1])); err != nil {
			return err
		}
	}
	return nil
}

func addMember(learner bool, urls ...string) call {
	request := &pb.MemberAddRequest{PeerURLs: urls, IsLearner: learner}
	return call{method: "/etcdserverpb.Cluster/MemberAdd", request: request}
}

func promote(id uint64) call {
	return call{method: "/etcdserverpb.Cluster/MemberPromote", request: &pb.MemberPromoteRequest{ID: id}}
}

func remove(id uint64) call {
	return call{method: "/etcdserverpb.Cluster/MemberRemove", request: &pb.MemberRemoveRequest{ID: id}}
}

func (m *members) learners() error {
	leader, follower, err := m.roles()
	if err != nil {
		return err
	}
	// A URL that a member has.
	_, err = m.ask(leader.etcd, leader.pontoon, addMember(false, follower.etcd.PeerURL), addMember(false, follower.pontoon.PeerURL))
	if err != nil {
		return err
	}
	update := func(member *clusters.Member, url string) call {
		request := &pb.MemberUpdateRequest{ID: idOf(member), PeerURLs: []string{url}}
		return call{method: "/etcdserverpb.Cluster/MemberUpdate", request: request}
	}
	_, err = m.ask(leader.etcd, leader.pontoon,
		update(leader.etcd, follower.etcd.PeerURL), update(leader.pontoon, follower.pontoon.PeerURL))
	if err != nil {
		return err
	}
	// Voters are no learners.
	if _, err = m.ask(leader.etcd, leader.pontoon, promote(idOf(follower.etcd)), promote(idOf(follower.pontoon))); err != nil {
		return err
	}
	var ids [2]uint64
	var added [2]*clusters.Member
	for i, c := range []*clusters.Cluster{m.etcd, m.pontoon} {
		if added[i], err = clusters.NewMember("learner"); err != nil {
			return err
		}
		at := places{leader.etcd, leader.pontoon}
		asked, add := []*clusters.Member{at.etcd, at.pontoon}[i], addMember(true, added[i].PeerURL)
		a := onceHealthy(send(asked.Conn, add), asked, add)
		if a.err != nil {
			return fmt.Errorf("%s: %w", c.Name, a.err)
		}
		ids[i] = a.messages[0].(*pb.MemberAddResponse).Member.ID
	}
	// It isn't there yet, and a second one is too many.
	if _, err = m.ask(leader.etcd, leader.pontoon, promote(ids[0]), promote(ids[1])); err != nil {
		return err
	}
	second := addMember(true, "http://127.0.0.1:1")
	if _, err = m.ask(leader.etcd, leader.pontoon, second, second); err != nil {
		return err
	}
	for i, c := range []*clusters.Cluster{m.etcd, m.pontoon} {
		c.Members = append(c.Members, added[i])
		if err := c.StartMember(added[i], "existing"); err != nil {
			return err
		}
	}
	if err := m.awaitLearner(added[0], added[1]); err != nil {
		return err
	}
	if err := m.asLearner(added[0], added[1]); err != nil {
		return err
	}
	list := call{method: "/etcdserverpb.Cluster/MemberList", request: &pb.MemberListRequest{Linearizable: true}}
	if _, err = m.ask(leader.etcd, leader.pontoon, list, list); err != nil {
		return err
	}
	if _, err := m.ask(leader.etcd, leader.pontoon, remove(ids[0]), remove(ids[1])); err != nil {
		return err
	}
	for _, c := range []*clusters.Cluster{m.etcd, m.pontoon} {
		c.Kill(c.Members[3])
		c.Members = c.Members[:3]
	}
	// It is gone for good.
	_, err = m.ask(leader.etcd, leader.pontoon, remove(ids[0]), remove(ids[1]))
	return err
}

// awaitLearner waits until learners answer for themselves.
func (m *members) awaitLearner(learners ...*clusters.Member) error {
	read := call{method: readAll.method, request: &pb.RangeRequest{Key: []byte("a"), Serializable: true}}
	for i, learner := range learners {
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			a := send(learner.Conn, read)
			if a.err == nil {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%s: the learner doesn't answer: %s", sideName(i), a.failure())
			}
		}
	}
	return nil
}

// asLearner asks learners what they don't do.
func (m *members) asLearner(etcd, pontoon *clusters.Member) error {
	for _, c := range []call{
		readAll,
		{method: readAll.method, request: &pb.RangeRequest{Key: []byte("a"), Serializable: true}},
		{method: "/etcdserverpb.KV/Put", request: &pb.PutRequest{Key: []byte("a")}},
		{method: "/etcdserverpb.KV/Txn", request: &pb.TxnRequest{}},
		{method: "/etcdserverpb.KV/Compact", request: &pb.CompactionRequest{}},
		{method: rangeStream, request: &pb.RangeRequest{Key: []byte("a"), Serializable: true}},
		{method: keepAlive, request: &pb.LeaseKeepAliveRequest{ID: 1}},
		{method: "/etcdserverpb.Lease/LeaseGrant", request: &pb.LeaseGrantRequest{TTL: 10}},
		{method: "/etcdserverpb.Lease/LeaseLeases", request: &pb.LeaseLeasesRequest{}},
		{method: "/etcdserverpb.Maintenance/Status", request: &pb.StatusRequest{}},
		{method: "/etcdserverpb.Maintenance/HashKV", request: &pb.HashKVRequest{}},
		{method: "/etcdserverpb.Cluster/MemberList", request: &pb.MemberListRequest{}},
	} {
		if _, err := m.ask(etcd, pontoon, c, c); err != nil {
			return err
		}
	}
	return nil
}

// oneAway has a member away for so long that another one is too much.
func (m *members) oneAway() error {
	leader, follower, err := m.roles()
	if err != nil {
		return err
	}
	m.etcd.Kill(follower.etcd)
	m.pontoon.Kill(follower.pontoon)
	time.Sleep(connected)
	put := call{method: "/etcdserverpb.KV/Put", request: &pb.PutRequest{Key: []byte("a")}}
	if _, err := m.ask(leader.etcd, leader.pontoon, put, put); err != nil {
		return err
	}
	add := addMember(false, "http://127.0.0.1:1")
	if _, err := m.ask(leader.etcd, leader.pontoon, add, add); err != nil {
		return err
	}
	// Without this one two of two would have to be there.
	third := func(c *clusters.Cluster, others ...*clusters.Member) *clusters.Member {
		for _, member := range c.Members {
			if member != others[0] && member != others[1] {
				return member
			}
		}
		return nil
	}
	last := places{third(m.etcd, leader.etcd, follower.etcd), third(m.pontoon, leader.pontoon, follower.pontoon)}
	_, err = m.ask(leader.etcd, leader.pontoon, remove(idOf(last.etcd)), remove(idOf(last.pontoon)))
	return err
}

// twoAway leaves one member alone.
func (m *members) twoAway() error {
	leader, _, err := m.roles()
	if err != nil {
		return err
	}
	for i, c := range []*clusters.Cluster{m.etcd, m.pontoon} {
		kept := []*clusters.Member{leader.etcd, leader.pontoon}[i]
		for _, member := range c.Members {
			if member != kept {
				c.Kill(member)
			}
		}
	}
	time.Sleep(4 * time.Second)
	for _, c := range []call{
		{method: "/etcdserverpb.KV/Put", request: &pb.PutRequest{Key: []byte("a")}, metadata: []string{"hasleader", "true"}},
		{method: readAll.method, request: readAll.request, metadata: []string{"hasleader", "true"}},
		{method: rangeStream, request: readAll.request, metadata: []string{"hasleader", "true"}},
		{method: keepAlive, request: &pb.LeaseKeepAliveRequest{ID: 1}, metadata: []string{"hasleader", "true"}},
		{method: readAll.method, request: &pb.RangeRequest{Key: []byte("a"), Serializable: true}},
		{method: "/etcdserverpb.Maintenance/Status", request: &pb.StatusRequest{}},
	} {
		if _, err := m.ask(leader.etcd, leader.pontoon, c, c); err != nil {
			return err
		}
	}
	return nil
}
