package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apps "k8s.io/api/apps/v1"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// load is a cluster without machines: what its kubelets and controllers say to
// kube-apiserver.
type load struct {
	server string
	nodes  int
	churn  float64
	lasts  time.Duration

	client kubernetes.Interface
	failed atomic.Int64
	pods   atomic.Int64
}

const (
	leaseNamespace = "kube-node-lease"
	namespace      = "default"
	renewEvery     = 10 * time.Second
	// A kubelet tells its status that often when nothing has changed.
	statusEvery = 5 * time.Minute
)

func (l *load) run(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host:            l.server,
		BearerToken:     "load",
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		ContentConfig:   rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf"},
		QPS:             10_000,
		Burst:           10_000,
	})
	if err != nil {
		return err
	}
	l.client = client
	if err := l.awaitServer(ctx); err != nil {
		return err
	}
	if err := l.prepare(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, l.lasts)
	defer cancel()
	l.watch(ctx)
	fmt.Println("prepared")
	var all sync.WaitGroup
	for node := range l.nodes {
		all.Go(func() { l.kubelet(ctx, node) })
		all.Go(func() { l.births(ctx, node) })
	}
	all.Wait()
	fmt.Printf("%d nodes for %v, %d pods were born, %d requests failed\n", l.nodes, l.lasts, l.pods.Load(), l.failed.Load())
	return nil
}

func (l *load) awaitServer(ctx context.Context) error {
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Second) {
		_, err := l.client.CoreV1().Namespaces().Get(ctx, namespace, meta.GetOptions{})
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

// note counts what fails while nobody has told it to end.
func (l *load) note(ctx context.Context, err error) bool {
	if err != nil && ctx.Err() == nil {
		if l.failed.Add(1) <= 5 {
			fmt.Println(err)
		}
	}
	return err == nil
}

func nodeName(node int) string { return fmt.Sprintf("node-%06d", node) }

func (l *load) prepare(ctx context.Context) error {
	spaces := l.client.CoreV1().Namespaces()
	spaces.Create(ctx, &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: leaseNamespace}}, meta.CreateOptions{})
	for node := range l.nodes {
		if _, err := l.client.CoreV1().Nodes().Create(ctx, newNode(node), meta.CreateOptions{}); err != nil {
			return err
		}
		if _, err := l.client.CoordinationV1().Leases(leaseNamespace).Create(ctx, newLease(node), meta.CreateOptions{}); err != nil {
			return err
		}
		if _, err := l.client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, newSlice(node), meta.CreateOptions{}); err != nil {
			return err
		}
		if _, err := l.client.AppsV1().ReplicaSets(namespace).Create(ctx, newSet(node), meta.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// watch does as controllers do: it lists and watches each resource.
func (l *load) watch(ctx context.Context) {
	all := informers.NewSharedInformerFactory(l.client, 0)
	all.Core().V1().Nodes().Informer()
	all.Core().V1().Pods().Informer()
	all.Core().V1().Events().Informer()
	all.Coordination().V1().Leases().Informer()
	all.Discovery().V1().EndpointSlices().Informer()
	all.Apps().V1().ReplicaSets().Informer()
	all.Start(ctx.Done())
	all.WaitForCacheSync(ctx.Done())
}

func wait(ctx context.Context, time_ time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time_):
		return true
	}
}

// kubelet renews the lease of a node and tells its status.
func (l *load) kubelet(ctx context.Context, node int) {
	if !wait(ctx, time.Duration(rand.Int64N(int64(renewEvery)))) {
		return
	}
	leases := l.client.CoordinationV1().Leases(leaseNamespace)
	lease, err := leases.Get(ctx, nodeName(node), meta.GetOptions{})
	if !l.note(ctx, err) {
		return
	}
	told := time.Now().Add(-time.Duration(rand.Int64N(int64(statusEvery))))
	for {
		now := meta.NowMicro()
		lease.Spec.RenewTime = &now
		if renewed, err := leases.Update(ctx, lease, meta.UpdateOptions{}); l.note(ctx, err) {
			lease = renewed
		}
		if time.Since(told) >= statusEvery {
			told = time.Now()
			patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":%q}]}}`, told.UTC().Format(time.RFC3339))
			_, err := l.client.CoreV1().Nodes().PatchStatus(ctx, nodeName(node), []byte(patch))
			l.note(ctx, err)
		}
		if !wait(ctx, renewEvery) {
			return
		}
	}
}

// births has pods come and go on a node.
func (l *load) births(ctx context.Context, node int) {
	var all sync.WaitGroup
	defer all.Wait()
	for number := 0; ; number++ {
		pause := time.Duration(rand.ExpFloat64() * 3600 / l.churn * float64(time.Second))
		if !wait(ctx, pause) {
			return
		}
		all.Go(func() { l.life(ctx, node, fmt.Sprintf("pod-%06d-%06d", node, number)) })
	}
}

// life is what becomes of a pod: the steps that scheduler, kubelet and
// controllers take, with the pauses between them.
func (l *load) life(ctx context.Context, node int, name string) {
	pods := l.client.CoreV1().Pods(namespace)
	pod, err := pods.Create(ctx, newPod(name), meta.CreateOptions{})
	if !l.note(ctx, err) {
		return
	}
	l.pods.Add(1)
	status := func(phase core.PodPhase) bool {
		if _, err := pods.Get(ctx, name, meta.GetOptions{}); !l.note(ctx, err) {
			return false
		}
		patch := fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"phase":%q,"startTime":%q,"conditions":[{"type":"Ready","status":"True"},{"type":"PodScheduled","status":"True"},{"type":"Initialized","status":"True"}],"message":%q}}`,
			pod.UID, phase, time.Now().UTC().Format(time.RFC3339), strings.Repeat("m", 200))
		_, err := pods.Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), meta.PatchOptions{}, "status")
		return l.note(ctx, err)
	}
	event := func(reason string) bool { return l.event(ctx, pod, reason) }
	services := func() bool { return l.services(ctx, node) }
	bind := func() bool {
		target := core.ObjectReference{Kind: "Node", Name: nodeName(node)}
		return l.note(ctx, pods.Bind(ctx, &core.Binding{ObjectMeta: meta.ObjectMeta{Name: name}, Target: target}, meta.CreateOptions{}))
	}
	steps := []func() bool{
		bind,
		func() bool { return event("Scheduled") },
		func() bool { return status(core.PodPending) },
		func() bool { return event("Pulling") && event("Pulled") && event("Created") && event("Started") },
		func() bool { return status(core.PodRunning) },
		func() bool { return status(core.PodRunning) },
		services,
		func() bool { return l.note(ctx, pods.Delete(ctx, name, meta.DeleteOptions{})) },
		func() bool { return event("Killing") },
		services,
		func() bool { return status(core.PodSucceeded) },
		func() bool {
			now := int64(0)
			return l.note(ctx, pods.Delete(ctx, name, meta.DeleteOptions{GracePeriodSeconds: &now}))
		},
	}
	for _, step := range steps {
		if !wait(ctx, 200*time.Millisecond) || !step() {
			return
		}
	}
}

func (l *load) event(ctx context.Context, pod *core.Pod, reason string) bool {
	now := meta.Now()
	_, err := l.client.CoreV1().Events(namespace).Create(ctx, &core.Event{
		ObjectMeta:     meta.ObjectMeta{GenerateName: pod.Name + "."},
		InvolvedObject: core.ObjectReference{Kind: "Pod", Namespace: namespace, Name: pod.Name, UID: pod.UID, APIVersion: "v1"},
		Reason:         reason,
		Message:        strings.Repeat(reason+" container image ", 5),
		Source:         core.EventSource{Component: "kubelet", Host: "node"},
		FirstTimestamp: now, LastTimestamp: now, Count: 1, Type: "Normal",
	}, meta.CreateOptions{})
	return l.note(ctx, err)
}

// services changes the endpoint slice and the replica set that a pod belongs to.
func (l *load) services(ctx context.Context, node int) bool {
	stamp := time.Now().Format(time.RFC3339Nano)
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"changed":%q}}}`, stamp)
	_, err := l.client.DiscoveryV1().EndpointSlices(namespace).Patch(ctx, newSlice(node).Name, types.MergePatchType, []byte(patch), meta.PatchOptions{})
	if !l.note(ctx, err) {
		return false
	}
	patch = fmt.Sprintf(`{"status":{"replicas":%d}}`, rand.IntN(100))
	_, err = l.client.AppsV1().ReplicaSets(namespace).Patch(ctx, newSet(node).Name, types.MergePatchType, []byte(patch), meta.PatchOptions{}, "status")
	return l.note(ctx, err)
}

func newNode(node int) *core.Node {
	images := make([]core.ContainerImage, 50)
	for at := range images {
		digest := strings.Repeat("0123456789abcdef", 4)
		images[at] = core.ContainerImage{
			Names:     []string{fmt.Sprintf("registry.example/team/image-%02d@sha256:%s", at, digest), fmt.Sprintf("registry.example/team/image-%02d:v1.2.3", at)},
			SizeBytes: 123_456_789,
		}
	}
	return &core.Node{
		ObjectMeta: meta.ObjectMeta{Name: nodeName(node), Labels: map[string]string{"kubernetes.io/hostname": nodeName(node), "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}},
		Status: core.NodeStatus{
			Capacity:   core.ResourceList{core.ResourceCPU: resource.MustParse("64"), core.ResourceMemory: resource.MustParse("256Gi"), core.ResourcePods: resource.MustParse("110")},
			Conditions: []core.NodeCondition{{Type: core.NodeReady, Status: core.ConditionTrue, LastHeartbeatTime: meta.Now(), Reason: "KubeletReady", Message: "kubelet is posting ready status"}},
			Addresses:  []core.NodeAddress{{Type: core.NodeInternalIP, Address: "10.1.2.3"}},
			Images:     images,
		},
	}
}

func newLease(node int) *coordination.Lease {
	holder, seconds := nodeName(node), int32(40)
	now := meta.NowMicro()
	return &coordination.Lease{
		ObjectMeta: meta.ObjectMeta{Name: holder, OwnerReferences: []meta.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: holder, UID: "01234567-89ab-cdef-0123-456789abcdef"}}},
		Spec:       coordination.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}
}

func newPod(name string) *core.Pod {
	container := core.Container{Name: "main", Image: "registry.example/team/image:v1.2.3"}
	for at := range 20 {
		container.Env = append(container.Env, core.EnvVar{Name: fmt.Sprintf("VARIABLE_%02d", at), Value: strings.Repeat("value", 6)})
	}
	container.Resources.Requests = core.ResourceList{core.ResourceCPU: resource.MustParse("100m"), core.ResourceMemory: resource.MustParse("128Mi")}
	container.LivenessProbe = &core.Probe{ProbeHandler: core.ProbeHandler{Exec: &core.ExecAction{Command: []string{"/bin/true"}}}}
	return &core.Pod{
		ObjectMeta: meta.ObjectMeta{Name: name, Labels: map[string]string{"app": "load", "pod-template-hash": "5d4f8c7b9"}, Annotations: map[string]string{"note": strings.Repeat("n", 300)}},
		Spec: core.PodSpec{
			Containers:                   []core.Container{container},
			AutomountServiceAccountToken: new(bool),
		},
	}
}

func newSlice(node int) *discovery.EndpointSlice {
	slice := &discovery.EndpointSlice{
		ObjectMeta:  meta.ObjectMeta{Name: fmt.Sprintf("service-%06d", node), Labels: map[string]string{"kubernetes.io/service-name": "service"}},
		AddressType: discovery.AddressTypeIPv4,
	}
	for at := range 10 {
		holder := nodeName(at)
		slice.Endpoints = append(slice.Endpoints, discovery.Endpoint{
			Addresses: []string{fmt.Sprintf("10.2.3.%d", at)},
			NodeName:  &holder,
			TargetRef: &core.ObjectReference{Kind: "Pod", Namespace: namespace, Name: fmt.Sprintf("pod-%06d", at), UID: "01234567-89ab-cdef-0123-456789abcdef"},
		})
	}
	return slice
}

func newSet(node int) *apps.ReplicaSet {
	labels := map[string]string{"app": fmt.Sprintf("set-%06d", node)}
	template := newPod("").Spec
	return &apps.ReplicaSet{
		ObjectMeta: meta.ObjectMeta{Name: fmt.Sprintf("set-%06d", node)},
		Spec: apps.ReplicaSetSpec{
			Replicas: new(int32),
			Selector: &meta.LabelSelector{MatchLabels: labels},
			Template: core.PodTemplateSpec{ObjectMeta: meta.ObjectMeta{Labels: labels}, Spec: template},
		},
	}
}
