package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// stream is a watch stream of one side, with all that came on it, sorted by
// what it is about.
type stream struct {
	requests pb.Watch_WatchClient
	cancel   context.CancelFunc

	mutex sync.Mutex
	came  chan struct{}
	// Answers to requests: created, canceled.
	control []*pb.WatchResponse
	// The revisions of signs of progress for the whole stream.
	progress []int64
	// How often one was asked for again; what was late then comes later still.
	again   int
	watches map[int64]*received
	err     error
	// What must not come, in words.
	wrong string
}

// received is what one watch was sent.
type received struct {
	responses []*pb.WatchResponse
	events    int
	// The response that ended it because of a compaction.
	compacted *pb.WatchResponse
	// How often it was told of progress alone.
	notified []int64
}

func openStream(conn *grpc.ClientConn) (*stream, error) {
	ctx, cancel := context.WithCancel(context.Background())
	requests, err := pb.NewWatchClient(conn).Watch(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	s := &stream{
		requests: requests,
		cancel:   cancel,
		came:     make(chan struct{}, 1),
		watches:  map[int64]*received{},
	}
	go s.receive()
	return s, nil
}

func (s *stream) receive() {
	for {
		response, err := s.requests.Recv()
		s.mutex.Lock()
		if err != nil {
			s.err = err
		} else {
			s.sort(response)
		}
		s.mutex.Unlock()
		select {
		case s.came <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

func (s *stream) sort(r *pb.WatchResponse) {
	watch := s.watches[r.WatchId]
	switch {
	case r.Created:
		s.control = append(s.control, r)
		if !r.Canceled {
			s.watches[r.WatchId] = &received{}
		}
	case r.Canceled && r.CompactRevision == 0:
		s.control = append(s.control, r)
		delete(s.watches, r.WatchId)
	case r.WatchId == -1 && len(r.Events) == 0:
		s.progress = append(s.progress, r.Header.Revision)
	case watch == nil || watch.compacted != nil:
		s.wrong = "a response for a watch that is not there: " + text(r)
	case r.Canceled:
		watch.compacted = r
	case len(r.Events) == 0:
		watch.notified = append(watch.notified, r.Header.Revision)
	default:
		watch.responses = append(watch.responses, r)
		watch.events += len(r.Events)
	}
}

// ended names the watches that a compaction has ended: they hold back progress.
func (s *stream) ended() (text string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for id, watch := range s.watches {
		if watch.compacted != nil {
			text += fmt.Sprintf("; a compaction at %d has ended the watch %d", watch.compacted.CompactRevision, id)
		}
	}
	return text
}

// await waits until something is so; what it looks at is locked meanwhile.
func (s *stream) await(within time.Duration, done func() bool) error {
	timeout := time.After(within)
	for {
		s.mutex.Lock()
		ok, err, wrong := done(), s.err, s.wrong
		s.mutex.Unlock()
		switch {
		case wrong != "":
			return fmt.Errorf("%s", wrong)
		case ok:
			return nil
		case err != nil:
			return fmt.Errorf("the stream has ended: %w", err)
		}
		select {
		case <-s.came:
		case <-timeout:
			return errTooLate
		}
	}
}

// signs is how many signs of progress have come.
func (s *stream) signs() int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return len(s.progress)
}

// awaitProgress waits for a sign of progress at a revision, after those that
// had come before it was asked for. A server that is too busy may leave it out,
// and then has to be asked again.
func (s *stream) awaitProgress(told int, revision int64, request *pb.WatchRequest) (err error) {
	for range 30 {
		err = s.await(time.Second, func() bool {
			return len(s.progress) > told && s.progress[len(s.progress)-1] >= revision
		})
		if !errors.Is(err, errTooLate) {
			return err
		}
		s.again++
		if err := s.requests.Send(request); err != nil {
			return err
		}
	}
	return err
}

var errTooLate = fmt.Errorf("nothing came for too long")
