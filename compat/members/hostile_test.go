package members

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"
)

const (
	kvRange   = "/etcdserverpb.KV/Range"
	kvPut     = "/etcdserverpb.KV/Put"
	watch     = "/etcdserverpb.Watch/Watch"
	frameMax  = 16 << 10
	windowMax = 1<<31 - 1
	// What HTTP/2 allows to be sent before the other side says more.
	windowAtFirst = 65_535
)

// hostile is a client that speaks HTTP/2 as no library does.
type hostile struct {
	conn    net.Conn
	framer  *http2.Framer
	encoder *hpack.Encoder
	head    bytes.Buffer
	next    uint32

	// Of what may still be sent, which grows as the server says so.
	windows    sync.Mutex
	grown      *sync.Cond
	connection int64
	stream     int64
	streams    map[uint32]int64
	ended      bool
}

// newHostile connects. A client that reads takes note of windows, and drops the
// rest; one that doesn't, never reads a byte, and opens its own windows wide.
func newHostile(t testing.TB, endpoint string, reads bool) *hostile {
	t.Helper()
	conn, err := net.Dial("tcp", endpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	h := &hostile{
		conn:       conn,
		framer:     http2.NewFramer(conn, conn),
		next:       1,
		connection: windowAtFirst,
		stream:     windowAtFirst,
		streams:    make(map[uint32]int64),
	}
	h.grown = sync.NewCond(&h.windows)
	h.encoder = hpack.NewEncoder(&h.head)
	var settings []http2.Setting
	if !reads {
		// The kernel must not take what the server can't get rid of.
		conn.(*net.TCPConn).SetReadBuffer(8 << 10)
		settings = append(settings, http2.Setting{ID: http2.SettingInitialWindowSize, Val: windowMax})
	}
	conn.Write([]byte(http2.ClientPreface))
	h.framer.WriteSettings(settings...)
	if reads {
		go h.read(h.framer)
	} else {
		h.framer.WriteWindowUpdate(0, windowMax-windowAtFirst)
	}
	return h
}

func (h *hostile) read(framer *http2.Framer) {
	for {
		frame, err := framer.ReadFrame()
		h.windows.Lock()
		switch frame := frame.(type) {
		case *http2.WindowUpdateFrame:
			if frame.StreamID == 0 {
				h.connection += int64(frame.Increment)
			} else {
				h.streams[frame.StreamID] += int64(frame.Increment)
			}
		case *http2.SettingsFrame:
			if size, is := frame.Value(http2.SettingInitialWindowSize); is {
				h.stream = int64(size)
			}
		}
		h.ended = h.ended || err != nil
		h.grown.Broadcast()
		h.windows.Unlock()
		if err != nil {
			return
		}
	}
}

// open sends the head of a call with so many bytes of metadata.
func (h *hostile) open(path string, metadataBytes int) (stream uint32, err error) {
	h.head.Reset()
	fields := []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: path},
		{Name: ":authority", Value: "hostile"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}
	if metadataBytes > 0 {
		value := strings.Repeat("m", metadataBytes)
		fields = append(fields, hpack.HeaderField{Name: "metadata", Value: value, Sensitive: true})
	}
	for _, field := range fields {
		h.encoder.WriteField(field)
	}
	stream = h.next
	h.next += 2
	return stream, h.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: h.head.Bytes(), EndHeaders: true,
	})
}

// message is one as gRPC sends it.
func message(m proto.Message) []byte {
	body, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	head := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body)))
	return append(head, body...)
}

func createWatch(create *pb.WatchCreateRequest) []byte {
	return message(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}})
}

// take takes up to a frame from the windows of a stream, or nothing.
func (h *hostile) take(stream uint32) int {
	h.windows.Lock()
	defer h.windows.Unlock()
	// What the server has granted this stream is on top of what each has.
	count := min(frameMax, h.connection, h.stream+h.streams[stream])
	if count <= 0 {
		return 0
	}
	h.connection -= count
	h.streams[stream] -= count
	return int(count)
}

// A kind of client that asks for more than its share. It must come to an end by
// itself, and leaves what it holds open.
type misdeed struct {
	name string
	// How much one connection tries, and each of a thousand.
	alone, together int
	reads           bool
	act             func(h *hostile, times int)
}

const hotPrefix = "hot/"

var misdeeds = []misdeed{
	{"opens streams without end", 3000, 100, true, func(h *hostile, times int) {
		for range times {
			stream, err := h.open(watch, 8<<10)
			if err != nil {
				return
			}
			create := &pb.WatchCreateRequest{Key: []byte("quiet")}
			if h.framer.WriteData(stream, false, createWatch(create)) != nil {
				return
			}
		}
	}},
	{"sends half requests", 512, 60, true, func(h *hostile, times int) {
		h.sendHalves(times, 1<<20)
	}},
	{"sends half requests of one frame", 512, 60, true, func(h *hostile, times int) {
		h.sendHalves(times, frameMax-10)
	}},
	{"sends heads of headers", 512, 60, true, func(h *hostile, times int) {
		for range times {
			if _, err := h.open(kvPut, 15<<10); err != nil {
				return
			}
		}
	}},
	{"sends headers without end", 4000, 200, true, func(h *hostile, times int) {
		h.head.Reset()
		value := strings.Repeat("m", 1<<10)
		for _, field := range []hpack.HeaderField{
			{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"},
			{Name: ":path", Value: kvPut}, {Name: ":authority", Value: "hostile"},
		} {
			h.encoder.WriteField(field)
		}
		stream := h.next
		if h.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: h.head.Bytes()}) != nil {
			return
		}
		for n := range times {
			h.head.Reset()
			for at := range 15 {
				h.encoder.WriteField(hpack.HeaderField{Name: fmt.Sprintf("m-%d-%d", n, at), Value: value, Sensitive: true})
			}
			if h.framer.WriteContinuation(stream, false, h.head.Bytes()) != nil {
				return
			}
		}
	}},
	{"never reads answers", 400, 60, false, func(h *hostile, times int) {
		end := clientv3.GetPrefixRangeEnd(hotPrefix)
		for range times {
			stream, err := h.open(kvRange, 0)
			if err != nil {
				return
			}
			if h.framer.WriteData(stream, true, message(&pb.RangeRequest{Key: []byte(hotPrefix), RangeEnd: []byte(end)})) != nil {
				return
			}
		}
	}},
	{"never reads events", 400, 60, false, func(h *hostile, times int) {
		end := clientv3.GetPrefixRangeEnd(hotPrefix)
		for range times {
			stream, err := h.open(watch, 0)
			if err != nil {
				return
			}
			// From the beginning, so that there are events at once.
			create := &pb.WatchCreateRequest{Key: []byte(hotPrefix), RangeEnd: []byte(end), StartRevision: 1, PrevKv: true}
			if h.framer.WriteData(stream, false, createWatch(create)) != nil {
				return
			}
		}
	}},
}

// sendHalves opens calls, announces a message of so many bytes in each, and
// sends as much of all of them as the server lets it, but for their last bytes.
func (h *hostile) sendHalves(calls, messageBytes int) {
	left := make(map[uint32]int)
	for range calls {
		stream, err := h.open(kvPut, 0)
		if err != nil {
			return
		}
		left[stream] = messageBytes - 1
		for h.take(stream) == 0 {
			if !h.awaitGrowth() {
				return
			}
		}
		head := binary.BigEndian.AppendUint32([]byte{0}, uint32(messageBytes))
		if h.framer.WriteData(stream, false, head) != nil {
			return
		}
	}
	zeros := make([]byte, frameMax)
	for {
		sent := false
		for stream, bytes := range left {
			count := min(bytes, h.take(stream))
			if count == 0 {
				continue
			}
			if h.framer.WriteData(stream, false, zeros[:count]) != nil {
				return
			}
			left[stream] = bytes - count
			sent = true
		}
		if !sent && !h.awaitGrowth() {
			return
		}
	}
}

// awaitGrowth returns whether a window has grown within a second.
func (h *hostile) awaitGrowth() bool {
	patience := time.AfterFunc(time.Second, func() { h.grown.Broadcast() })
	defer patience.Stop()
	since := time.Now()
	h.windows.Lock()
	defer h.windows.Unlock()
	h.grown.Wait()
	return !h.ended && time.Since(since) < time.Second
}
