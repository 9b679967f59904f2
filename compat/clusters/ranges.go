package clusters

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Range is one range of keys, as the member that was asked knows it.
type Range struct {
	ID uint64
	// First is its first key; End is the first key behind it, empty if there is none.
	First, End []byte
	// Leader is the member that leads it, 0 if that is not known. Leads says
	// whether it is the one that was asked, and has taken up work.
	Leader uint64
	Leads  bool
	// Term, Committed and Applied are those of that member's replica.
	Term, Committed, Applied uint64
	// Quiet says whether the timers of that member's replica rest.
	Quiet bool
	// Failure says why that replica has stopped; empty if it has not.
	Failure string
	// Counted are the members that the range's group counts.
	Counted []uint64
	// Splitting says whether a split of it is under way.
	Splitting bool
}

// Ranges asks a member of Pontoon for all ranges, in the order of their keys.
// (The numbers of fields are those of api/proto/pontoonpb.proto.)
func Ranges(ctx context.Context, conn grpc.ClientConnInterface) ([]Range, error) {
	var list emptypb.Empty
	if err := conn.Invoke(ctx, "/pontoonpb.Ranges/List", &emptypb.Empty{}, &list); err != nil {
		return nil, err
	}
	answer, err := parse(list.ProtoReflect().GetUnknown())
	if err != nil {
		return nil, err
	}
	var ranges []Range
	for _, message := range answer[3] {
		one, err := parse(message.bytes)
		if err != nil {
			return nil, err
		}
		here, err := parse(one.bytes(5))
		if err != nil {
			return nil, err
		}
		r := Range{
			ID: one.number(1), First: one.bytes(2), End: one.bytes(3), Splitting: len(one[6]) > 0,
			Leader: here.number(1), Term: here.number(2), Leads: here.number(3) != 0,
			Committed: here.number(4), Applied: here.number(5), Quiet: here.number(10) != 0, Failure: string(here.bytes(16)),
		}
		for _, packed := range here[17] {
			for left := packed.bytes; len(left) > 0; {
				id, length := protowire.ConsumeVarint(left)
				if length < 0 {
					return nil, fmt.Errorf("no list of members: %x", packed.bytes)
				}
				r.Counted, left = append(r.Counted, id), left[length:]
			}
		}
		ranges = append(ranges, r)
	}
	return ranges, nil
}

// Split asks a member of Pontoon to cut a range in two at a key, and returns
// the new range when that is done.
func Split(ctx context.Context, conn grpc.ClientConnInterface, key []byte) (child uint64, err error) {
	var request, response emptypb.Empty
	request.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), key))
	if err := conn.Invoke(ctx, "/pontoonpb.Ranges/Split", &request, &response); err != nil {
		return 0, err
	}
	answer, err := parse(response.ProtoReflect().GetUnknown())
	return answer.number(2), err
}

// fields are those of a message whose type is not known here.
type fields map[protowire.Number][]field

type field struct {
	number uint64
	bytes  []byte
}

func parse(message []byte) (fields, error) {
	found := fields{}
	for len(message) > 0 {
		number, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return nil, fmt.Errorf("no message: %x", message)
		}
		length := protowire.ConsumeFieldValue(number, kind, message[tag:])
		if length < 0 {
			return nil, fmt.Errorf("no message: %x", message)
		}
		var value field
		switch kind {
		case protowire.VarintType:
			value.number, _ = protowire.ConsumeVarint(message[tag:])
		case protowire.BytesType:
			value.bytes, _ = protowire.ConsumeBytes(message[tag:])
		}
		found[number] = append(found[number], value)
		message = message[tag+length:]
	}
	return found, nil
}

func (f fields) number(number protowire.Number) uint64 {
	if len(f[number]) == 0 {
		return 0
	}
	return f[number][0].number
}

func (f fields) bytes(number protowire.Number) []byte {
	if len(f[number]) == 0 {
		return nil
	}
	return f[number][0].bytes
}
