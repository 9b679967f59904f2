package main

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// A request that takes longer has failed, on either side.
const callTimeout = 30 * time.Second

// slowest is how long a request has taken at most: so far apart may be what both
// sides did at the same time.
var slowest atomic.Int64

// call is one request as it is sent to both sides.
type call struct {
	method  string
	request proto.Message
	// metadata beside the request, in pairs.
	metadata []string
}

// answer is what came back: a message for a unary call, several for a stream.
type answer struct {
	messages []proto.Message
	err      error
}

// methods are the unary ones, each with an empty answer.
var methods = map[string]func() proto.Message{
	"/etcdserverpb.KV/Range":               func() proto.Message { return &pb.RangeResponse{} },
	"/etcdserverpb.KV/Put":                 func() proto.Message { return &pb.PutResponse{} },
	"/etcdserverpb.KV/DeleteRange":         func() proto.Message { return &pb.DeleteRangeResponse{} },
	"/etcdserverpb.KV/Txn":                 func() proto.Message { return &pb.TxnResponse{} },
	"/etcdserverpb.KV/Compact":             func() proto.Message { return &pb.CompactionResponse{} },
	"/etcdserverpb.Lease/LeaseGrant":       func() proto.Message { return &pb.LeaseGrantResponse{} },
	"/etcdserverpb.Lease/LeaseRevoke":      func() proto.Message { return &pb.LeaseRevokeResponse{} },
	"/etcdserverpb.Lease/LeaseTimeToLive":  func() proto.Message { return &pb.LeaseTimeToLiveResponse{} },
	"/etcdserverpb.Lease/LeaseLeases":      func() proto.Message { return &pb.LeaseLeasesResponse{} },
	"/etcdserverpb.Cluster/MemberAdd":      func() proto.Message { return &pb.MemberAddResponse{} },
	"/etcdserverpb.Cluster/MemberRemove":   func() proto.Message { return &pb.MemberRemoveResponse{} },
	"/etcdserverpb.Cluster/MemberUpdate":   func() proto.Message { return &pb.MemberUpdateResponse{} },
	"/etcdserverpb.Cluster/MemberList":     func() proto.Message { return &pb.MemberListResponse{} },
	"/etcdserverpb.Cluster/MemberPromote":  func() proto.Message { return &pb.MemberPromoteResponse{} },
	"/etcdserverpb.Maintenance/Alarm":      func() proto.Message { return &pb.AlarmResponse{} },
	"/etcdserverpb.Maintenance/Status":     func() proto.Message { return &pb.StatusResponse{} },
	"/etcdserverpb.Maintenance/Defragment": func() proto.Message { return &pb.DefragmentResponse{} },
	"/etcdserverpb.Maintenance/Hash":       func() proto.Message { return &pb.HashResponse{} },
	"/etcdserverpb.Maintenance/HashKV":     func() proto.Message { return &pb.HashKVResponse{} },
	"/etcdserverpb.Maintenance/MoveLeader": func() proto.Message { return &pb.MoveLeaderResponse{} },
	"/etcdserverpb.Maintenance/Downgrade":  func() proto.Message { return &pb.DowngradeResponse{} },
	"/v3lockpb.Lock/Lock":                  func() proto.Message { return &v3lockpb.LockResponse{} },
	"/v3lockpb.Lock/Unlock":                func() proto.Message { return &v3lockpb.UnlockResponse{} },
	"/v3electionpb.Election/Campaign":      func() proto.Message { return &v3electionpb.CampaignResponse{} },
	"/v3electionpb.Election/Proclaim":      func() proto.Message { return &v3electionpb.ProclaimResponse{} },
	"/v3electionpb.Election/Leader":        func() proto.Message { return &v3electionpb.LeaderResponse{} },
	"/v3electionpb.Election/Resign":        func() proto.Message { return &v3electionpb.ResignResponse{} },
}

const (
	rangeStream = "/etcdserverpb.KV/RangeStream"
	keepAlive   = "/etcdserverpb.Lease/LeaseKeepAlive"
)

// send makes a call at one member and returns all that it answers.
func send(conn *grpc.ClientConn, c call) answer {
	defer func(began time.Time) {
		took := int64(time.Since(began))
		for known := slowest.Load(); took > known && !slowest.CompareAndSwap(known, took); {
			known = slowest.Load()
		}
	}(time.Now())
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if len(c.metadata) > 0 {
		ctx = metadata.AppendToOutgoingContext(ctx, c.metadata...)
	}
	switch c.method {
	case rangeStream:
		return sendRangeStream(ctx, conn, c)
	case keepAlive:
		return sendKeepAlive(ctx, conn, c)
	}
	var response proto.Message = &pb.RangeResponse{}
	if empty, known := methods[c.method]; known {
		response = empty()
	}
	if err := conn.Invoke(ctx, c.method, c.request, response); err != nil {
		return answer{err: err}
	}
	return answer{messages: []proto.Message{response}}
}

func sendRangeStream(ctx context.Context, conn *grpc.ClientConn, c call) (a answer) {
	stream, err := pb.NewKVClient(conn).RangeStream(ctx, c.request.(*pb.RangeRequest))
	if err != nil {
		return answer{err: err}
	}
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return a
		}
		if err != nil {
			a.err = err
			return a
		}
		a.messages = append(a.messages, response)
	}
}

func sendKeepAlive(ctx context.Context, conn *grpc.ClientConn, c call) answer {
	stream, err := pb.NewLeaseClient(conn).LeaseKeepAlive(ctx)
	if err == nil {
		err = stream.Send(c.request.(*pb.LeaseKeepAliveRequest))
	}
	if err != nil {
		return answer{err: err}
	}
	response, err := stream.Recv()
	if err != nil {
		return answer{err: err}
	}
	a := answer{messages: []proto.Message{response}}
	if err := stream.CloseSend(); err != nil {
		a.err = err
	} else if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		a.err = err
	}
	return a
}

// sendBoth makes the same call at both sides at once.
func sendBoth(etcd, pontoon *grpc.ClientConn, c call) (fromEtcd, fromPontoon answer) {
	var group sync.WaitGroup
	group.Go(func() { fromEtcd = send(etcd, c) })
	fromPontoon = send(pontoon, c)
	group.Wait()
	return fromEtcd, fromPontoon
}

// failure is the code and text of an error; empty if there is none.
func (a answer) failure() string {
	if a.err == nil {
		return ""
	}
	s := status.Convert(a.err)
	return s.Code().String() + ": " + s.Message()
}

// isLocal tells whether a member answers from what it has itself, which may be
// older than what others have.
func (c call) isLocal() bool {
	switch c.request.(type) {
	case *pb.LeaseLeasesRequest, *pb.LeaseKeepAliveRequest, *pb.LeaseTimeToLiveRequest,
		*pb.StatusRequest, *pb.HashRequest, *pb.HashKVRequest, *pb.DowngradeRequest,
		*pb.MemberListRequest:
		return true
	}
	return c.isSerializable()
}

func (c call) isSerializable() bool {
	switch request := c.request.(type) {
	case *pb.RangeRequest:
		return request.Serializable
	case *pb.TxnRequest:
		return isSerializable(request.Success) && isSerializable(request.Failure)
	}
	return false
}

func isSerializable(ops []*pb.RequestOp) bool {
	for _, op := range ops {
		if ranged := op.GetRequestRange(); ranged == nil || !ranged.Serializable {
			return false
		}
	}
	return true
}
