package main

import (
	"bytes"
	"fmt"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	historyMax = 5000
	historyLen = 40
)

// history is what was sent lately.
type history struct {
	entries []entry
}

type entry struct {
	number int
	what   string
	touch  touched
	answer string
}

// touched are the keys and leases that a request is about.
type touched struct {
	ranges     [][2][]byte
	leases     map[int64]bool
	everything bool
}

func (h *history) add(number int, what string, request proto.Message, answer string) {
	if len(h.entries) == historyMax {
		h.entries = append(h.entries[:0], h.entries[historyMax/2:]...)
	}
	h.entries = append(h.entries, entry{number, what, touches(request), answer})
}

func touches(request proto.Message) touched {
	t := touched{leases: map[int64]bool{}}
	switch request.(type) {
	case *pb.CompactionRequest, *pb.AlarmRequest:
		t.everything = true
	}
	t.gather(request.ProtoReflect())
	return t
}

func (t *touched) gather(message protoreflect.Message) {
	fields := message.Descriptor().Fields()
	if key := fields.ByName("key"); key != nil && key.Kind() == protoreflect.BytesKind {
		var end []byte
		if field := fields.ByName("range_end"); field != nil {
			end = message.Get(field).Bytes()
		}
		t.ranges = append(t.ranges, [2][]byte{message.Get(key).Bytes(), end})
	}
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		name := string(field.Name())
		switch {
		case field.Kind() == protoreflect.Int64Kind && (name == "lease" || name == "ID"):
			t.leases[value.Int()] = true
		case field.Message() == nil:
		case field.IsList():
			for i := range value.List().Len() {
				t.gather(value.List().Get(i).Message())
			}
		default:
			t.gather(value.Message())
		}
		return true
	})
}

func (t touched) meets(other touched) bool {
	if t.everything {
		return true
	}
	for lease := range t.leases {
		if other.leases[lease] {
			return true
		}
	}
	for _, a := range t.ranges {
		for _, b := range other.ranges {
			if covers(a[0], a[1], b[0]) || covers(b[0], b[1], a[0]) {
				return true
			}
		}
	}
	return false
}

// about are the last requests that touch what a request touches.
func (h *history) about(request proto.Message) string {
	t := touches(request)
	var lines []string
	for i := len(h.entries) - 1; i >= 0 && len(lines) < historyLen; i-- {
		e := h.entries[i]
		if e.touch.meets(t) {
			lines = append(lines, fmt.Sprintf("#%d %s\n      %s", e.number, e.what, e.answer))
		}
	}
	var text bytes.Buffer
	for i := len(lines) - 1; i >= 0; i-- {
		fmt.Fprintln(&text, lines[i])
	}
	return text.String()
}

func describeCall(c call) string {
	return strings.TrimPrefix(c.method, "/") + " {" + text(c.request) + "}"
}
