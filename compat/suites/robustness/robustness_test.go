// Package robustness runs etcd's robustness tests on Pontoon: their traffic,
// their failures (as far as these need no build of etcd's own) and their
// validators. Two things are different. Peers speak without TLS, also through
// the proxies that disturb them. And what was persisted is not read from etcd's
// log, but from a watch that sees every event.
package robustness

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/tests/v3/framework"
	"go.etcd.io/etcd/tests/v3/framework/e2e"
	"go.etcd.io/etcd/tests/v3/robustness/client"
	"go.etcd.io/etcd/tests/v3/robustness/failpoint"
	"go.etcd.io/etcd/tests/v3/robustness/identity"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
	"go.etcd.io/etcd/tests/v3/robustness/scenarios"
	"go.etcd.io/etcd/tests/v3/robustness/traffic"
	"go.etcd.io/etcd/tests/v3/robustness/validate"
)

var rounds = flag.Int("rounds", 1, "how often each scenario meets each of its failures")

// So that it doesn't meet etcd's other suites.
const basePort = 23000

// The failures that need nothing inside the server.
var failures = []failpoint.Failpoint{
	failpoint.KillFailpoint,
	failpoint.BlackholePeerNetwork,
	failpoint.DelayPeerNetwork,
	failpoint.DropPeerNetwork,
	failpoint.MemberReplace,
}

func TestMain(m *testing.M) {
	framework.E2eTestRunner.TestMain(m)
}

func TestRobustness(t *testing.T) {
	for round := range *rounds {
		for _, scenario := range scenarios.Exploratory(t) {
			for _, failure := range failures {
				name := fmt.Sprintf("%d/%s/%s", round, scenario.Name, failure.Name())
				t.Run(name, func(t *testing.T) { run(t, scenario, failure) })
			}
		}
	}
}

func run(t *testing.T, scenario scenarios.TestScenario, failure failpoint.Failpoint) {
	// (The suite's own logger would print every request of every client.)
	lg := zap.NewNop()
	config := scenario.Cluster
	config.Logger = lg
	config.GoFailEnabled = false
	config.BasePort = basePort
	cluster, err := e2e.InitEtcdProcessCluster(t, &config)
	if err != nil {
		t.Fatal(err)
	}
	speakPlainly(cluster)
	if _, err = e2e.StartEtcdProcessCluster(t.Context(), t, cluster, &config); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cluster.Kill()
		_ = cluster.ConcurrentStop()
	}()
	if failpoint.Validate(cluster, failure, scenario.Profile) != nil {
		t.Skip("it needs more members")
	}
	history := record(t, cluster)
	clients := work(t, lg, cluster, scenario, failure)
	persisted := history.requests(t, clients)
	if t.Failed() {
		return
	}
	expected := validate.Config{ExpectRevisionUnique: scenario.Traffic.ExpectUniqueRevision()}
	result := validate.ValidateAndReturnVisualize(lg, expected, clients, persisted, 5*time.Minute)
	if err := result.Error(); err != nil {
		t.Errorf("%v (see %s)", err, keep(t, lg, cluster, clients, result))
	}
	count := 0
	for _, one := range clients {
		count += len(one.KeyValue)
	}
	t.Logf("%d requests, %d of them persisted", count, len(persisted))
}

// speakPlainly takes TLS from what peers are told; only with it the framework
// gives them proxies.
func speakPlainly(cluster *e2e.EtcdProcessCluster) {
	secret := []string{"--peer-cert-file", "--peer-key-file", "--peer-trusted-ca-file"}
	for _, member := range cluster.Procs {
		config := member.Config()
		var plain []string
		for at := 0; at < len(config.Args); at++ {
			if slices.Contains(secret, config.Args[at]) {
				at++
				continue
			}
			plain = append(plain, strings.ReplaceAll(config.Args[at], "https://", "http://"))
		}
		config.Args = plain
		config.PeerURL.Scheme = "http"
		config.InitialCluster = strings.ReplaceAll(config.InitialCluster, "https://", "http://")
		if config.Proxy != nil {
			config.Proxy.From.Scheme, config.Proxy.To.Scheme = "http", "http"
		}
	}
}

// work has clients ask and watch, and something fail meanwhile; it returns what
// the clients have seen.
func work(
	t *testing.T, lg *zap.Logger, cluster *e2e.EtcdProcessCluster,
	scenario scenarios.TestScenario, failure failpoint.Failpoint,
) []report.ClientReport {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ids, began := identity.NewIDProvider(), time.Now()
	askers, watchers := client.NewSet(ids, began), client.NewSet(ids, began)
	defer askers.Close()
	defer watchers.Close()
	injected := make(chan report.FailpointInjection, 1)
	newest := make(chan int64, 1)
	var others []report.ClientReport
	var group errgroup.Group
	group.Go(func() error {
		defer close(injected)
		pause := func() { time.Sleep(800*time.Millisecond + rand.N(400*time.Millisecond)) }
		pause()
		done, err := failpoint.Inject(ctx, t, lg, cluster, failure, began, ids)
		if err != nil {
			cancel()
			return fmt.Errorf("%s: %w", failure.Name(), err)
		}
		pause()
		others = done.Client
		injected <- done.FailpointInjection
		return nil
	})
	group.Go(func() error {
		defer close(newest)
		seen := traffic.SimulateTraffic(ctx, t, lg, cluster, scenario.Profile, scenario.Traffic, injected, askers)
		newest <- report.OperationsMaxRevision(seen)
		return nil
	})
	group.Go(func() error {
		return client.CollectClusterWatchEvents(ctx, client.CollectClusterWatchEventsParam{
			Lg: lg, Endpoints: cluster.EndpointsGRPC(), MaxRevisionChan: newest, ClientSet: watchers,
		})
	})
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	if err := client.CheckEndOfTestHashKV(ctx, cluster); err != nil {
		t.Error(err)
	}
	return slices.Concat(askers.Reports(), watchers.Reports(), others)
}

// A history has every event of the cluster, by a watch of its own.
type history struct {
	client *clientv3.Client
	end    context.CancelFunc
	events []*clientv3.Event
	lost   error
	done   chan struct{}
	until  chan int64
}

func record(t *testing.T, cluster *e2e.EtcdProcessCluster) *history {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints:            cluster.EndpointsGRPC(),
		Logger:               zap.NewNop(),
		DialKeepAliveTime:    time.Second,
		DialKeepAliveTimeout: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.Background())
	h := &history{client: c, end: end, done: make(chan struct{}), until: make(chan int64, 1)}
	t.Cleanup(func() {
		end()
		_ = c.Close()
	})
	watch := c.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(1), clientv3.WithProgressNotify())
	go func() {
		defer close(h.done)
		var seen, last int64 = 1, 0
		for last == 0 || seen < last {
			select {
			case last = <-h.until:
			case told, open := <-watch:
				if !open || told.Err() != nil {
					h.lost = fmt.Errorf("the watch has ended: %w", told.Err())
					return
				}
				h.events = append(h.events, told.Events...)
				seen = max(seen, told.Header.Revision)
			}
		}
	}()
	return h
}

// requests are what must have been asked for, as etcd's model knows it.
func (h *history) requests(t *testing.T, clients []report.ClientReport) []model.EtcdRequest {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// Its revision is that of the last event, or of one that is in no range.
	last, err := h.client.Get(ctx, "none", clientv3.WithCountOnly())
	if err != nil {
		t.Error(err)
		return nil
	}
	h.until <- last.Header.Revision
	select {
	case <-h.done:
	case <-ctx.Done():
		h.end()
		<-h.done
		h.lost = errors.Join(h.lost, ctx.Err())
	}
	if h.lost != nil {
		// As when a compaction was faster than a member that started again.
		t.Logf("watches are not judged: %v", h.lost)
		return nil
	}
	var requests []model.EtcdRequest
	leases := revocations(clients)
	leaseOf := map[string]int64{}
	granted := map[int64]bool{}
	var operations []model.EtcdOperation
	var revoked int64
	for at, event := range h.events {
		key := string(event.Kv.Key)
		switch event.Type {
		case clientv3.EventTypePut:
			lease := event.Kv.Lease
			leaseOf[key] = lease
			if lease != 0 && !granted[lease] {
				granted[lease] = true
				grant := &model.LeaseGrantRequest{LeaseID: lease}
				requests = append(requests, model.EtcdRequest{Type: model.LeaseGrant, LeaseGrant: grant})
			}
			operations = append(operations, model.EtcdOperation{Type: model.PutOperation, Put: model.PutOptions{
				Key: key, Value: model.ToValueOrHash(string(event.Kv.Value)), LeaseID: lease,
			}})
		case clientv3.EventTypeDelete:
			if leases.went(leaseOf[key], event.Kv.ModRevision) {
				revoked = leaseOf[key]
			}
			delete(leaseOf, key)
			operations = append(operations, model.EtcdOperation{
				Type: model.DeleteOperation, Delete: model.DeleteOptions{Key: key},
			})
		}
		if at+1 < len(h.events) && h.events[at+1].Kv.ModRevision == event.Kv.ModRevision {
			continue
		}
		request := model.EtcdRequest{Type: model.Txn, Txn: &model.TxnRequest{OperationsOnSuccess: operations}}
		// (A lease takes all of its keys.)
		if revoked != 0 && !slices.Contains(slices.Collect(maps.Values(leaseOf)), revoked) {
			revoke := &model.LeaseRevokeRequest{LeaseID: revoked}
			request = model.EtcdRequest{Type: model.LeaseRevoke, LeaseRevoke: revoke}
		}
		requests = append(requests, request)
		operations, revoked = nil, 0
	}
	// Where compactions were in that order can't be seen, and the validator takes
	// the order for certain. Those that failed are the last, because they have no
	// end in time, and are not taken for ones that were never made.
	for _, one := range clients {
		for _, operation := range one.KeyValue {
			request := operation.Input.(model.EtcdRequest)
			failed := operation.Output.(model.MaybeEtcdResponse).Error != ""
			if failed && request.Type == model.Compact {
				requests = append(requests, request)
			}
		}
	}
	return requests
}

// leaseEnds tells deletions by a lease that was revoked from others.
type leaseEnds struct {
	// The leases that were revoked, each with the revision that was answered.
	at map[[2]int64]bool
	// Leases whose revocation has failed, so it may have been done or not.
	perhaps map[int64]bool
	// The revisions of transactions that a client heard of.
	written map[int64]bool
}

func revocations(clients []report.ClientReport) leaseEnds {
	ends := leaseEnds{at: map[[2]int64]bool{}, perhaps: map[int64]bool{}, written: map[int64]bool{}}
	for _, one := range clients {
		for _, operation := range one.KeyValue {
			request := operation.Input.(model.EtcdRequest)
			response := operation.Output.(model.MaybeEtcdResponse)
			switch {
			case request.Type == model.Txn && response.Error == "" && !request.IsRead():
				ends.written[response.Revision] = true
			case request.Type == model.LeaseRevoke && response.Error == "":
				ends.at[[2]int64{request.LeaseRevoke.LeaseID, response.Revision}] = true
			case request.Type == model.LeaseRevoke:
				ends.perhaps[request.LeaseRevoke.LeaseID] = true
			}
		}
	}
	return ends
}

// went says whether keys of a lease went with it at a revision.
func (e leaseEnds) went(lease, revision int64) bool {
	return lease != 0 && (e.at[[2]int64{lease, revision}] || e.perhaps[lease] && !e.written[revision])
}

// keep writes down what was seen, for people, and says where.
func keep(
	t *testing.T, lg *zap.Logger, cluster *e2e.EtcdProcessCluster,
	clients []report.ClientReport, result validate.RobustnessResult,
) string {
	t.Helper()
	base := os.Getenv("RESULTS_DIR")
	if base == "" {
		base = os.TempDir()
	}
	dir := filepath.Join(base, strings.ReplaceAll(t.Name(), "/", "_"))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Error(err)
		return "nothing"
	}
	r, err := report.NewTestReport(lg, dir, report.ServerDataPaths(cluster), &report.TrafficDetail{})
	if err != nil {
		t.Error(err)
		return "nothing"
	}
	r.SetClientReports(clients)
	r.SetVisualizer(result.Linearization.Visualize)
	if err := r.Finalize(true, false); err != nil {
		t.Error(err)
	}
	return dir
}
