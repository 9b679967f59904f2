package main

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"pontoon/compat/clusters"
)

const (
	// What doesn't come in this time is missing.
	watchTimeout = 30 * time.Second
	// etcd looks after watches that begin in the past every 100 ms.
	catchUp = 200 * time.Millisecond
)

// pair is one stream at etcd and one at Pontoon that are sent the same.
type pair struct {
	etcd, pontoon *stream
	// Which member of Pontoon it is at.
	member  int
	watches map[int64]*watch
}

// watch is one that both sides have.
type watch struct {
	request *pb.WatchCreateRequest
	// How many events it must have been sent.
	expected int
	// What has been compared already.
	etcdSeen, pontoonSeen int
	compacted             bool
	// Until when it may be catching up at etcd.
	behind time.Time
}

// covers tells whether a key is in a range, in any of etcd's forms.
func covers(key, end, k []byte) bool {
	switch {
	case len(end) == 0:
		return bytes.Equal(key, k)
	case bytes.Equal(end, []byte{0}):
		return bytes.Compare(k, key) >= 0
	default:
		return bytes.Compare(k, key) >= 0 && bytes.Compare(k, end) < 0
	}
}

// wants tells whether a watch is sent an event, if it is there in time.
func (w *watch) wants(event *mvccpb.Event) bool {
	key := w.request.Key
	if len(key) == 0 {
		key = []byte{0}
	}
	filter := pb.WatchCreateRequest_NOPUT
	if event.Type == mvccpb.DELETE {
		filter = pb.WatchCreateRequest_NODELETE
	}
	return event.Kv.ModRevision >= w.request.StartRevision &&
		covers(key, w.request.RangeEnd, event.Kv.Key) &&
		!slices.Contains(w.request.Filters, filter)
}

// openPair begins a stream at both sides.
func (r *run) openPair() (*pair, error) {
	member := r.IntN(len(r.pontoon.Members))
	etcd, err := openStream(r.etcd.Members[0].Conn)
	if err != nil {
		return nil, err
	}
	pontoon, err := openStream(r.pontoon.Members[member].Conn)
	if err != nil {
		return nil, err
	}
	return &pair{etcd: etcd, pontoon: pontoon, member: member, watches: map[int64]*watch{}}, nil
}

func (p *pair) send(request *pb.WatchRequest) error {
	return errors.Join(p.etcd.requests.Send(request), p.pontoon.requests.Send(request))
}

func (p *pair) close() {
	p.etcd.cancel()
	p.pontoon.cancel()
}

// answered waits for the answer of both sides to a request, and compares.
func (p *pair) answered() (*pb.WatchResponse, error) {
	var answers [2]*pb.WatchResponse
	for i, s := range []*stream{p.etcd, p.pontoon} {
		if err := s.await(watchTimeout, func() bool { return len(s.control) > 0 }); err != nil {
			return nil, fmt.Errorf("%s: %w", sideName(i), err)
		}
		s.mutex.Lock()
		answers[i] = s.control[0]
		s.control = s.control[1:]
		s.mutex.Unlock()
	}
	return answers[0], unequal(answers[0], answers[1])
}

func sideName(i int) string { return []string{"etcd", "pontoon"}[i] }

// unequal compares two responses as they are, but for the members' names.
func unequal(etcd, pontoon *pb.WatchResponse) error {
	a, b := proto.CloneOf(etcd), proto.CloneOf(pontoon)
	levelHeaders(a.ProtoReflect())
	levelHeaders(b.ProtoReflect())
	if proto.Equal(a, b) {
		return nil
	}
	return fmt.Errorf("etcd:    %s\npontoon: %s", text(a), text(b))
}

// createWatch asks both sides for a watch and waits until it has what is past.
func (r *run) createWatch(p *pair, request *pb.WatchCreateRequest) error {
	if err := r.sync(p.member); err != nil {
		return err
	}
	message := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: request}}
	r.coverage.sent(message)
	if len(r.splits) > 0 {
		r.coverage.watches++
		if spans(r.splits, request.Key, request.RangeEnd) {
			r.coverage.watchesOverGroups++
		}
	}
	if err := p.send(message); err != nil {
		return err
	}
	created, err := p.answered()
	if err != nil {
		return err
	}
	if created.Canceled {
		r.coverage.reasons[created.CancelReason]++
		return nil
	}
	w := &watch{request: request}
	if request.StartRevision > 0 {
		w.behind = time.Now().Add(catchUp)
	}
	p.watches[created.WatchId] = w
	if request.StartRevision > 0 && request.StartRevision < r.compacted {
		w.compacted = true
		return r.compareCompacted(p, created.WatchId)
	}
	if request.StartRevision > 0 && request.StartRevision <= r.revision {
		w.expected = r.oracle.past(w, r.compacted)
	}
	return r.compareEvents(p, created.WatchId, true)
}

// compareCompacted waits until both sides say that a watch begins too early.
func (r *run) compareCompacted(p *pair, id int64) error {
	var said [2]*pb.WatchResponse
	for i, s := range []*stream{p.etcd, p.pontoon} {
		done := func() bool {
			said[i] = s.watches[id].compacted
			return said[i] != nil
		}
		if err := s.await(watchTimeout, done); err != nil {
			return fmt.Errorf("%s doesn't cancel the watch %d: %w", sideName(i), id, err)
		}
	}
	return unequal(said[0], said[1])
}

func (r *run) cancelWatch(p *pair, id int64) error {
	if err := r.sync(p.member); err != nil {
		return err
	}
	request := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{
		CancelRequest: &pb.WatchCancelRequest{WatchId: id}}}
	r.coverage.sent(request)
	if err := p.send(request); err != nil {
		return err
	}
	if p.watches[id] == nil {
		return nil
	}
	delete(p.watches, id)
	_, err := p.answered()
	return err
}

// requestProgress asks for a sign of progress. Where etcd owes one, both must
// send it; where it doesn't, none may ever come (see compareProgress).
func (r *run) requestProgress(p *pair) error {
	if err := r.sync(p.member); err != nil {
		return err
	}
	owed := len(p.watches) > 0
	for _, w := range p.watches {
		owed = owed && !w.compacted && w.request.StartRevision <= r.revision
	}
	if owed {
		p.catchUp()
	}
	request := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{
		ProgressRequest: &pb.WatchProgressRequest{}}}
	r.coverage.sent(request)
	streams := []*stream{p.etcd, p.pontoon}
	var told []int
	for _, s := range streams {
		told = append(told, s.signs())
	}
	if err := p.send(request); err != nil {
		return err
	}
	if !owed {
		return nil
	}
	for i, s := range streams {
		if err := s.awaitProgress(told[i], r.revision, request); err != nil {
			return fmt.Errorf("%s doesn't tell of progress: %w%s", sideName(i), err, s.ended())
		}
	}
	return p.compareProgress()
}

// catchUp waits until etcd has brought all watches up to date: before, what it
// does depends on the moment.
func (p *pair) catchUp() {
	for _, w := range p.watches {
		time.Sleep(time.Until(w.behind))
	}
}

func (p *pair) compareProgress() error {
	p.etcd.mutex.Lock()
	defer p.etcd.mutex.Unlock()
	p.pontoon.mutex.Lock()
	defer p.pontoon.mutex.Unlock()
	// One that was asked for again may have come at any time since.
	only := func(s, other *stream) (count int) {
		for _, revision := range s.progress {
			if !slices.Contains(other.progress, revision) {
				count++
			}
		}
		return count
	}
	if only(p.etcd, p.pontoon) > p.etcd.again || only(p.pontoon, p.etcd) > p.pontoon.again {
		return fmt.Errorf("signs of progress at\netcd:    %v\npontoon: %v", p.etcd.progress, p.pontoon.progress)
	}
	return nil
}

// compareEvents waits until a watch has all events that it must have on both
// sides, and compares those that are new. If there was time for each event to
// come alone, the revisions of the headers are compared too.
func (r *run) compareEvents(p *pair, id int64, alone bool) error {
	w := p.watches[id]
	for i, s := range []*stream{p.etcd, p.pontoon} {
		err := s.await(watchTimeout, func() bool { return s.watches[id].events >= w.expected })
		if err != nil {
			return fmt.Errorf("%s has not sent all events to the watch %d (%s): %w\n%s",
				sideName(i), id, text(w.request), err, r.eventsOf(p, id))
		}
	}
	etcd, nextEtcd := p.etcd.fresh(id, w.etcdSeen, alone)
	pontoon, nextPontoon := p.pontoon.fresh(id, w.pontoonSeen, alone)
	w.etcdSeen, w.pontoonSeen = nextEtcd, nextPontoon
	for i, responses := range [][]*pb.WatchResponse{etcd, pontoon} {
		for _, response := range responses {
			last := response.Events[len(response.Events)-1].Kv.ModRevision
			if response.Header.Revision < last || response.Header.Revision > r.revision {
				return fmt.Errorf("%s has a header at %d over events up to %d, while the store is at %d",
					sideName(i), response.Header.Revision, last, r.revision)
			}
			if !w.request.PrevKv && i == 0 {
				dropPrevious(response.Events)
			}
			r.coverage.events += i * len(response.Events)
		}
	}
	same := slices.EqualFunc(etcd, pontoon, func(a, b *pb.WatchResponse) bool {
		levelHeaders(a.ProtoReflect())
		levelHeaders(b.ProtoReflect())
		if !alone {
			a.Header, b.Header = nil, nil
		}
		return proto.Equal(a, b)
	})
	if same {
		return nil
	}
	return fmt.Errorf("events of the watch %d (%s)\n%s", id, text(w.request), sideBySide(etcd, pontoon))
}

func dropPrevious(events []*mvccpb.Event) {
	for _, event := range events {
		event.PrevKv = nil
	}
}

// fresh are the responses that have not been compared, as copies. Responses of
// one header's revision are put together, or all, where events don't come alone.
func (s *stream) fresh(id int64, from int, alone bool) (fresh []*pb.WatchResponse, next int) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	responses := s.watches[id].responses
	for _, response := range responses[from:] {
		last := len(fresh) - 1
		if last >= 0 && (!alone || fresh[last].Header.Revision == response.Header.Revision) {
			fresh[last].Events = append(fresh[last].Events, proto.CloneOf(response).Events...)
			fresh[last].Header = response.Header
			continue
		}
		response = proto.CloneOf(response)
		response.Fragment = false
		fresh = append(fresh, response)
	}
	return fresh, len(responses)
}

func (r *run) eventsOf(p *pair, id int64) string {
	etcd, _ := p.etcd.fresh(id, p.watches[id].etcdSeen, true)
	pontoon, _ := p.pontoon.fresh(id, p.watches[id].pontoonSeen, true)
	return sideBySide(etcd, pontoon)
}

func sideBySide(etcd, pontoon []*pb.WatchResponse) string {
	var lines bytes.Buffer
	for i, responses := range [][]*pb.WatchResponse{etcd, pontoon} {
		for _, response := range responses {
			fmt.Fprintf(&lines, "%-8s %s\n", sideName(i)+":", text(response))
		}
	}
	return lines.String()
}

// compareStreams lets all watches have what was written, and compares it.
func (r *run) compareStreams() error {
	fresh, err := r.oracle.through(r.revision)
	if err != nil {
		return err
	}
	alone := r.unseen <= 1
	r.unseen = 0
	for _, p := range r.pairs {
		for id, w := range p.watches {
			if w.compacted {
				continue
			}
			for _, event := range fresh {
				if w.wants(event) {
					w.expected++
				}
			}
			if err := r.compareEvents(p, id, alone); err != nil {
				return err
			}
		}
	}
	return nil
}

// finish compares what a stream must not have been sent, and closes it.
func (r *run) finish(p *pair) error {
	defer p.close()
	for id, w := range p.watches {
		if !w.compacted {
			if err := r.compareEvents(p, id, true); err != nil {
				return err
			}
			p.pontoon.mutex.Lock()
			events := p.pontoon.watches[id].events
			p.pontoon.mutex.Unlock()
			if events != w.expected {
				return fmt.Errorf("pontoon has sent %d events instead of %d to the watch %d", events, w.expected, id)
			}
		}
	}
	return p.compareProgress()
}

// oracle is a watch of everything at etcd: what happened, in order.
type oracle struct {
	stream *stream
	taken  int
	events []*mvccpb.Event
}

func newOracle(c *clusters.Cluster) (*oracle, error) {
	s, err := openStream(c.Members[0].Conn)
	if err != nil {
		return nil, err
	}
	everything := &pb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}, StartRevision: 1}
	request := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: everything}}
	if err := s.requests.Send(request); err != nil {
		return nil, err
	}
	return &oracle{stream: s}, s.await(watchTimeout, func() bool { return len(s.control) > 0 })
}

// through are the events that came since the last time, up to a revision.
func (o *oracle) through(revision int64) (fresh []*mvccpb.Event, err error) {
	known := o.revision()
	err = o.stream.await(watchTimeout, func() bool {
		for _, response := range o.stream.watches[0].responses[o.taken:] {
			o.taken++
			for _, event := range response.Events {
				fresh = append(fresh, event)
				known = event.Kv.ModRevision
			}
		}
		return known >= revision
	})
	o.events = append(o.events, fresh...)
	return fresh, err
}

func (o *oracle) revision() int64 {
	if len(o.events) == 0 {
		return 1
	}
	return o.events[len(o.events)-1].Kv.ModRevision
}

// past counts the events that a new watch is sent first. Of a key that was
// changed twice at the compacted revision only the last change is left.
func (o *oracle) past(w *watch, compacted int64) (count int) {
	from := sort.Search(len(o.events), func(i int) bool {
		return o.events[i].Kv.ModRevision >= w.request.StartRevision
	})
	left := map[string]int{}
	for i, event := range o.events[from:] {
		if event.Kv.ModRevision == compacted {
			left[string(event.Kv.Key)] = i
		}
	}
	for i, event := range o.events[from:] {
		if event.Kv.ModRevision == compacted && left[string(event.Kv.Key)] != i {
			continue
		}
		if w.wants(event) {
			count++
		}
	}
	return count
}
