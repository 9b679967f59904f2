package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"pontoon/compat/clusters"
)

// Each letter is a range when the cluster is new.
const letters = "abcdefghijkl"

// cluster is three members, each on its own disk.
type cluster struct {
	settings settings
	members  []*member
	history  *history
	// Whether the processes were started since the disks were cleared.
	running bool
}

func newCluster(s settings) (*cluster, error) {
	c := &cluster{settings: s, history: newHistory()}
	for i := range 3 {
		m, err := clusters.NewMember(fmt.Sprintf("m%d", i))
		if err == nil {
			var d *disk
			if d, err = newDisk(s.dir, m.Name); err == nil {
				c.members = append(c.members, &member{
					Member: m, disk: d, binary: s.binary,
					logPath: filepath.Join(s.dir, m.Name+".log"),
				})
			}
		}
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	return c, nil
}

// start starts a new cluster, and returns when it is settled.
func (c *cluster) start(ctx context.Context) error {
	var all []*clusters.Member
	for _, m := range c.members {
		all = append(all, m.Member)
	}
	c.history, c.running = newHistory(), true
	for _, m := range c.members {
		m.flags = append(clusters.Arguments(m.Member, all, m.disk.data(), "new"),
			"--initial-splits="+strings.Join(strings.Split(letters, "")[1:], ","))
		m.flags = append(m.flags, c.settings.flags...)
		var err error
		m.client, err = clientv3.New(clientv3.Config{
			Endpoints: []string{m.Endpoint()}, DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
		})
		if err != nil {
			return err
		}
		if err := m.start(); err != nil {
			return err
		}
	}
	return c.settle(ctx)
}

// wipe ends all processes and removes their data.
func (c *cluster) wipe() error {
	c.end()
	var errs []error
	for _, m := range c.members {
		errs = append(errs, m.disk.free(), m.disk.clear(), os.RemoveAll(m.logPath))
		m.mu.Lock()
		m.exits = nil
		m.mu.Unlock()
	}
	c.running = false
	return errors.Join(errs...)
}

func (c *cluster) end() {
	for _, m := range c.members {
		m.disk.thaw()
		if m.client != nil {
			m.client.Close()
		}
		m.end()
	}
}

// close ends all processes and gives the disks back.
func (c *cluster) close() error {
	c.end()
	var errs []error
	for _, m := range c.members {
		errs = append(errs, m.disk.close())
	}
	return errors.Join(errs...)
}

// settle returns when every member is ready, every range takes writes through
// every member, and leaders are spread, as far as that is to be had soon.
func (c *cluster) settle(ctx context.Context) error {
	deadline := time.Now().Add(30 * time.Second)
	for _, m := range c.members {
		for {
			err := get(ctx, m.ClientURL+"/readyz")
			if err == nil {
				break
			}
			if ctx.Err() != nil || time.Now().After(deadline) {
				return fmt.Errorf("%s isn't ready: %w", m.Name, err)
			}
			pause(ctx, 50*time.Millisecond)
		}
	}
	if err := c.writable(ctx, c.members, 30*time.Second); err != nil {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline) && ctx.Err() == nil; pause(ctx, 100*time.Millisecond) {
		least := len(letters)
		for _, m := range c.members {
			led, _ := m.metric(ctx, "pontoon_groups_led")
			least = min(least, led)
		}
		if least >= len(letters)/4 {
			break
		}
	}
	return ctx.Err()
}

// rest waits until all ranges are quiet on all members, or some will not be
// soon, and returns how many are quiet everywhere at least.
func (c *cluster) rest(ctx context.Context) (quiet int) {
	pause(ctx, quietAfter)
	for deadline := time.Now().Add(3 * quietAfter); ; pause(ctx, 100*time.Millisecond) {
		quiet = len(letters)
		for _, m := range c.members {
			resting, _ := m.metric(ctx, "pontoon_groups_quiet")
			quiet = min(quiet, resting)
		}
		if quiet == len(letters) || ctx.Err() != nil || time.Now().After(deadline) {
			return quiet
		}
	}
}

// writable returns when every range that a member knows of has taken a write
// through each of the given members, or says which hasn't in time.
func (c *cluster) writable(ctx context.Context, through []*member, within time.Duration) error {
	deadline := time.Now().Add(within)
	var ranges []clusters.Range
	for {
		asked, cancel := context.WithTimeout(ctx, 2*time.Second)
		var err error
		ranges, err = clusters.Ranges(asked, through[0].client.ActiveConnection())
		cancel()
		if err == nil {
			break
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return fmt.Errorf("%s lists no ranges: %w", through[0].Name, err)
		}
		pause(ctx, 50*time.Millisecond)
	}
	var writing sync.WaitGroup
	errs := make([]error, len(ranges)*len(through))
	for i, r := range ranges {
		for j, m := range through {
			writing.Go(func() {
				errs[i*len(through)+j] = c.writeTo(ctx, r, m, deadline)
			})
		}
	}
	writing.Wait()
	return errors.Join(errs...)
}

func (c *cluster) writeTo(ctx context.Context, r clusters.Range, m *member, deadline time.Time) error {
	first := string(r.First)
	if first == "" {
		first = letters[:1]
	}
	for begin := time.Now(); ; pause(ctx, 50*time.Millisecond) {
		within, cancel := context.WithTimeout(ctx, c.settings.bound())
		err := c.history.put(within, m, fmt.Sprintf("%s/%d", first, c.history.next.Add(1)), "settle")
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return fmt.Errorf("range %d (from %q) takes no writes through %s for %s: %w",
				r.ID, first, m.Name, seconds(time.Since(begin)), err)
		}
	}
}

// others are all members but one.
func (c *cluster) others(victim *member) (others []*member) {
	for _, m := range c.members {
		if m != victim {
			others = append(others, m)
		}
	}
	return others
}

// metric is a figure of a member's /metrics.
func (m *member) metric(ctx context.Context, name string) (int, error) {
	text, err := page(ctx, m.ClientURL+"/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if value, is := strings.CutPrefix(line, name+" "); is {
			return strconv.Atoi(strings.TrimSpace(value))
		}
	}
	return 0, fmt.Errorf("%s has no metric %s", m.Name, name)
}
