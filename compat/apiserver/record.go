package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// request is one message to the store.
type request struct {
	Method string `json:"method"`
	// What a transaction does: create, update, delete; or other.
	Deed string `json:"deed,omitempty"`
	Key  string `json:"key,omitempty"`
	// Whether it is about more than one key.
	Many  bool  `json:"many,omitempty"`
	Limit int64 `json:"limit,omitempty"`
	// Bytes of the value that is written.
	Value int  `json:"value,omitempty"`
	Bytes int  `json:"bytes"`
	Lease bool `json:"lease,omitempty"`
}

// raw hands messages on as they are.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func (raw) Name() string { return "proto" }

// record hands everything on to a store, and writes down what it is asked.
func record(ctx context.Context, listen, to, out string) error {
	file, err := os.Create(out)
	if err != nil {
		return err
	}
	defer file.Close()
	store, err := grpc.NewClient(to, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		return err
	}
	defer store.Close()
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	written := &log{to: bufio.NewWriter(file)}
	// As etcd has it: clients may ask every 5 s whether the store is there.
	pings := keepalive.EnforcementPolicy{MinTime: 5 * time.Second}
	server := grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.MaxRecvMsgSize(1<<30), grpc.KeepaliveEnforcementPolicy(pings),
		grpc.UnknownServiceHandler(func(_ any, from grpc.ServerStream) error {
			return handOn(store, from, written)
		}))
	fmt.Println("listening at", listener.Addr())
	context.AfterFunc(ctx, server.Stop)
	if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return written.end()
}

// log is what was asked, a line each.
type log struct {
	mutex sync.Mutex
	to    *bufio.Writer
	err   error
}

func (l *log) add(r request) {
	line, err := json.Marshal(r)
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.err = errors.Join(l.err, err)
	if _, err := l.to.Write(append(line, '\n')); err != nil {
		l.err = err
	}
}

func (l *log) end() error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return errors.Join(l.err, l.to.Flush())
}

// handOn serves one call by the store.
func handOn(store *grpc.ClientConn, from grpc.ServerStream, written *log) error {
	method, _ := grpc.MethodFromServerStream(from)
	asked, _ := metadata.FromIncomingContext(from.Context())
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(from.Context(), asked))
	defer cancel()
	both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	stream, err := grpc.NewClientStream(ctx, both, store, method)
	if err != nil {
		return err
	}
	go func() {
		for {
			var message []byte
			if err := from.RecvMsg(&message); err != nil {
				if errors.Is(err, io.EOF) {
					stream.CloseSend()
				} else {
					cancel()
				}
				return
			}
			written.add(read(method, message))
			if stream.SendMsg(&message) != nil {
				return
			}
		}
	}()
	for first := true; ; first = false {
		var message []byte
		err := stream.RecvMsg(&message)
		if first {
			if head, err := stream.Header(); err == nil {
				from.SetHeader(head)
			}
		}
		if err != nil {
			from.SetTrailer(stream.Trailer())
			if errors.Is(err, io.EOF) {
				return nil
			}
			return status.Convert(err).Err()
		}
		if err := from.SendMsg(&message); err != nil {
			return err
		}
	}
}

// read finds out what a message asks.
func read(method string, message []byte) request {
	r := request{Method: method, Bytes: len(message)}
	switch method {
	case "/etcdserverpb.KV/Range", "/etcdserverpb.KV/RangeStream":
		var asked pb.RangeRequest
		if asked.Unmarshal(message) == nil {
			r.Key, r.Many, r.Limit = string(asked.Key), len(asked.RangeEnd) > 0, asked.Limit
		}
	case "/etcdserverpb.KV/Put":
		var asked pb.PutRequest
		if asked.Unmarshal(message) == nil {
			r.Key, r.Value, r.Lease = string(asked.Key), len(asked.Value), asked.Lease != 0
		}
	case "/etcdserverpb.KV/Txn":
		var asked pb.TxnRequest
		if asked.Unmarshal(message) == nil {
			readTxn(&r, &asked)
		}
	case "/etcdserverpb.Watch/Watch":
		var asked pb.WatchRequest
		if asked.Unmarshal(message) == nil {
			if create := asked.GetCreateRequest(); create != nil {
				r.Deed, r.Key, r.Many = "create", string(create.Key), len(create.RangeEnd) > 0
			} else {
				r.Deed = "other"
			}
		}
	}
	return r
}

// readTxn tells what kube-apiserver's transactions do: one comparison of a
// revision, one write, and a read if the comparison fails.
func readTxn(r *request, asked *pb.TxnRequest) {
	r.Deed = "other"
	if len(asked.Compare) != 1 || len(asked.Success) != 1 {
		return
	}
	compare := asked.Compare[0]
	r.Key = string(compare.Key)
	put, remove := asked.Success[0].GetRequestPut(), asked.Success[0].GetRequestDeleteRange()
	switch {
	case compare.Target != pb.Compare_MOD:
	case remove != nil:
		r.Deed = "delete"
	case put != nil && compare.GetModRevision() == 0:
		r.Deed = "create"
	case put != nil:
		r.Deed = "update"
	}
	if put != nil {
		r.Value, r.Lease = len(put.Value), put.Lease != 0
	}
}
