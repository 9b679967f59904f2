package main

import (
	"fmt"
	"sort"

	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// surface has a line for everything in the files that clients use.
func surface() ([]string, error) {
	files := []protoreflect.FileDescriptor{
		(&etcdserverpb.RangeRequest{}).ProtoReflect().Descriptor().ParentFile(),
		(&mvccpb.KeyValue{}).ProtoReflect().Descriptor().ParentFile(),
		(&authpb.User{}).ProtoReflect().Descriptor().ParentFile(),
		(&v3lockpb.LockRequest{}).ProtoReflect().Descriptor().ParentFile(),
		(&v3electionpb.LeaderKey{}).ProtoReflect().Descriptor().ParentFile(),
		(&healthpb.HealthCheckRequest{}).ProtoReflect().Descriptor().ParentFile(),
	}
	var lines []string
	for _, file := range files {
		for i := range file.Services().Len() {
			lines = append(lines, service(file.Services().Get(i))...)
		}
		lines = append(lines, messages(file.Messages())...)
		lines = append(lines, enums(file.Enums())...)
	}
	sort.Strings(lines)
	return lines, nil
}

func service(service protoreflect.ServiceDescriptor) (lines []string) {
	for i := range service.Methods().Len() {
		method := service.Methods().Get(i)
		lines = append(lines, fmt.Sprintf("rpc %s/%s: %s -> %s", service.FullName(), method.Name(),
			streamed(method.IsStreamingClient(), method.Input()),
			streamed(method.IsStreamingServer(), method.Output())))
	}
	return lines
}

func streamed(stream bool, message protoreflect.MessageDescriptor) string {
	if stream {
		return "stream " + string(message.FullName())
	}
	return string(message.FullName())
}

func messages(messages protoreflect.MessageDescriptors) (lines []string) {
	for i := range messages.Len() {
		message := messages.Get(i)
		lines = append(lines, fmt.Sprintf("message %s", message.FullName()))
		for j := range message.Fields().Len() {
			lines = append(lines, field(message.Fields().Get(j)))
		}
		lines = append(lines, messagesIn(message)...)
	}
	return lines
}

func messagesIn(message protoreflect.MessageDescriptor) []string {
	return append(messages(message.Messages()), enums(message.Enums())...)
}

func field(field protoreflect.FieldDescriptor) string {
	kind := field.Kind().String()
	switch field.Kind() {
	case protoreflect.MessageKind:
		kind = string(field.Message().FullName())
	case protoreflect.EnumKind:
		kind = string(field.Enum().FullName())
	}
	if field.Cardinality() == protoreflect.Repeated {
		kind = "repeated " + kind
	}
	if union := field.ContainingOneof(); union != nil {
		kind = "oneof " + string(union.Name()) + " " + kind
	}
	return fmt.Sprintf("field %s = %d %s", field.FullName(), field.Number(), kind)
}

func enums(enums protoreflect.EnumDescriptors) (lines []string) {
	for i := range enums.Len() {
		enum := enums.Get(i)
		for j := range enum.Values().Len() {
			value := enum.Values().Get(j)
			lines = append(lines, fmt.Sprintf("enum %s.%s = %d", enum.FullName(), value.Name(), value.Number()))
		}
	}
	return lines
}
