package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// requests has a line for every message that the real client would send.
// Nothing is sent: calls end at the recorder, which gives empty answers.
func requests() ([]string, error) {
	recorder := &recorder{sent: make(chan struct{}, 16)}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"127.0.0.1:1"},
		DialOptions: []grpc.DialOption{
			grpc.WithUnaryInterceptor(recorder.unary),
			grpc.WithStreamInterceptor(recorder.stream),
		},
	})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := unaryCalls(ctx, client); err != nil {
		return nil, err
	}

	go client.Watch(ctx, "a", clientv3.WithRange("b"), clientv3.WithRev(7), clientv3.WithProgressNotify(),
		clientv3.WithFilterPut(), clientv3.WithFilterDelete(), clientv3.WithPrevKV(), clientv3.WithFragment())
	<-recorder.sent
	go client.KeepAliveOnce(ctx, 0x1234)
	<-recorder.sent

	recorder.mutex.Lock()
	defer recorder.mutex.Unlock()
	return recorder.lines, nil
}

func unaryCalls(ctx context.Context, client *clientv3.Client) error {
	// Not through the client's own helpers where those read the (empty) answer.
	steps := []func() error{
		func() error {
			_, err := client.Get(ctx, "a", clientv3.WithRange("b"), clientv3.WithLimit(100), clientv3.WithRev(7),
				clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend), clientv3.WithSerializable(),
				clientv3.WithKeysOnly(), clientv3.WithMinModRev(2), clientv3.WithMaxModRev(3),
				clientv3.WithMinCreateRev(4), clientv3.WithMaxCreateRev(5))
			return err
		},
		func() error {
			_, err := client.Get(ctx, "p/", clientv3.WithPrefix(), clientv3.WithCountOnly())
			return err
		},
		func() error {
			_, err := client.Put(ctx, "key", "value", clientv3.WithLease(0x1234), clientv3.WithPrevKV())
			return err
		},
		func() error {
			_, err := client.Put(ctx, "key", "", clientv3.WithIgnoreValue(), clientv3.WithIgnoreLease())
			return err
		},
		func() error {
			_, err := client.Delete(ctx, "a", clientv3.WithFromKey(), clientv3.WithPrevKV())
			return err
		},
		func() error {
			_, err := client.Txn(ctx).If(
				clientv3.Compare(clientv3.ModRevision("key"), "=", 7),
				clientv3.Compare(clientv3.CreateRevision("key"), ">", 2),
				clientv3.Compare(clientv3.Version("key"), "<", 9),
				clientv3.Compare(clientv3.Value("key"), "!=", "value"),
				clientv3.Compare(clientv3.LeaseValue("a"), "=", 0).WithRange("b"),
			).Then(
				clientv3.OpPut("key", "value"),
				clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpDelete("other")}, nil),
			).Else(
				clientv3.OpGet("key"),
			).Commit()
			return err
		},
		func() error {
			_, err := client.Compact(ctx, 7, clientv3.WithCompactPhysical())
			return err
		},
		func() error { _, err := client.Grant(ctx, 60); return err },
		func() error { _, err := client.Revoke(ctx, 0x1234); return err },
		func() error { _, err := client.TimeToLive(ctx, 0x1234, clientv3.WithAttachedKeys()); return err },
		func() error { _, err := client.MemberList(ctx); return err },
		func() error { _, err := client.MemberAddAsLearner(ctx, []string{"http://127.0.0.1:2380"}); return err },
		func() error { _, err := client.MemberUpdate(ctx, 9, []string{"http://127.0.0.1:2381"}); return err },
		func() error { _, err := client.MoveLeader(ctx, 9); return err },
		func() error { _, err := client.Downgrade(ctx, clientv3.DowngradeEnable, "3.6.0"); return err },
		func() error { _, err := client.Authenticate(ctx, "root", "secret"); return err },
		func() error {
			_, err := client.UserAddWithOptions(ctx, "u", "", &clientv3.UserAddOptions{NoPassword: true})
			return err
		},
		func() error {
			_, err := client.RoleGrantPermission(ctx, "r", "a", "b", clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
	}
	for i, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}

type recorder struct {
	mutex sync.Mutex
	lines []string
	sent  chan struct{}
}

func (r *recorder) record(method string, message any) error {
	bytes, err := proto.Marshal(message.(proto.Message))
	if err != nil {
		return err
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.lines = append(r.lines, method+" "+hex.EncodeToString(bytes))
	return nil
}

func (r *recorder) unary(_ context.Context, method string, request, _ any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption) error {
	return r.record(method, request)
}

func (r *recorder) stream(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, method string, _ grpc.Streamer, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return &stream{recorder: r, method: method, ctx: ctx}, nil
}

// stream takes what is sent and never has an answer.
type stream struct {
	recorder *recorder
	method   string
	ctx      context.Context
}

func (s *stream) SendMsg(message any) error {
	err := s.recorder.record(s.method, message)
	s.recorder.sent <- struct{}{}
	return err
}

func (s *stream) RecvMsg(any) error {
	<-s.ctx.Done()
	return io.EOF
}

func (s *stream) Header() (metadata.MD, error) { return nil, nil }
func (s *stream) Trailer() metadata.MD         { return nil }
func (s *stream) CloseSend() error             { return nil }
func (s *stream) Context() context.Context     { return s.ctx }
