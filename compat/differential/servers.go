package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Requests larger than what the servers take must reach them.
const messageBytesMax = 64 << 20

// cluster is a number of members of one program, on loopback, in one directory.
type cluster struct {
	name    string
	binary  string
	dir     string
	flags   []string
	members []*member
}

type member struct {
	name      string
	clientURL string
	peerURL   string
	process   *exec.Cmd
	exited    chan struct{}
	conn      *grpc.ClientConn
}

// startCluster starts members and returns when all of them answer.
// Pontoon takes etcd's flags, so there is one way to start both.
func startCluster(name, binary, dir string, count int, flags ...string) (*cluster, error) {
	c := &cluster{name: name, binary: binary, dir: filepath.Join(dir, name), flags: flags}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return nil, err
	}
	for i := range count {
		m, err := newMember(fmt.Sprintf("m%d", i))
		if err != nil {
			return nil, err
		}
		c.members = append(c.members, m)
	}
	for _, m := range c.members {
		if err := c.start(m, "new"); err != nil {
			c.stop()
			return nil, err
		}
	}
	for _, m := range c.members {
		if err := c.awaitMember(m); err != nil {
			c.stop()
			return nil, err
		}
	}
	return c, nil
}

func newMember(name string) (*member, error) {
	m := &member{name: name}
	var err error
	if m.clientURL, err = freeURL(); err != nil {
		return nil, err
	}
	m.peerURL, err = freeURL()
	return m, err
}

func freeURL() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return "http://" + listener.Addr().String(), nil
}

func (c *cluster) start(m *member, state string) error {
	var initial []string
	for _, other := range c.members {
		initial = append(initial, other.name+"="+other.peerURL)
	}
	arguments := append([]string{
		"--name=" + m.name,
		"--data-dir=" + filepath.Join(c.dir, m.name),
		"--listen-client-urls=" + m.clientURL,
		"--advertise-client-urls=" + m.clientURL,
		"--listen-peer-urls=" + m.peerURL,
		"--initial-advertise-peer-urls=" + m.peerURL,
		"--initial-cluster=" + strings.Join(initial, ","),
		"--initial-cluster-state=" + state,
		"--log-level=warn",
	}, c.flags...)
	log, err := os.OpenFile(c.logPath(m), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	m.process = exec.Command(c.binary, arguments...)
	m.process.Stdout, m.process.Stderr = log, log
	m.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.process.Start(); err != nil {
		return fmt.Errorf("%s doesn't start: %w", c.name, err)
	}
	exited := make(chan struct{})
	m.exited = exited
	process := m.process
	go func() {
		process.Wait()
		close(exited)
	}()
	if m.conn == nil {
		m.conn, err = grpc.NewClient(strings.TrimPrefix(m.clientURL, "http://"),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytesMax)))
	}
	return err
}

func (c *cluster) awaitMember(m *member) error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err := pb.NewKVClient(m.conn).Range(ctx, &pb.RangeRequest{Key: []byte("x")}, grpc.WaitForReady(true))
		cancel()
		switch {
		case err == nil:
			return nil
		case c.hasExited(m):
			return fmt.Errorf("%s %s has ended:\n%s", c.name, m.name, c.logTail(m))
		case time.Now().After(deadline):
			return fmt.Errorf("%s %s doesn't answer: %v\n%s", c.name, m.name, err, c.logTail(m))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (c *cluster) hasExited(m *member) bool {
	select {
	case <-m.exited:
		return true
	default:
		return false
	}
}

func (c *cluster) logPath(m *member) string {
	return filepath.Join(c.dir, m.name+".log")
}

// logTail is the end of what a member said.
func (c *cluster) logTail(m *member) string {
	text, _ := os.ReadFile(c.logPath(m))
	return string(text[max(0, len(text)-2000):])
}

// crashed names a member that has ended by itself, with its last words.
func (c *cluster) crashed() string {
	for _, m := range c.members {
		if c.hasExited(m) {
			return fmt.Sprintf("%s %s has ended:\n%s", c.name, m.name, c.logTail(m))
		}
	}
	return ""
}

func (c *cluster) kill(m *member) {
	if m.process != nil {
		m.process.Process.Kill()
		<-m.exited
	}
}

func (c *cluster) stop() {
	for _, m := range c.members {
		if m.conn != nil {
			m.conn.Close()
		}
		c.kill(m)
	}
}

// leader is the index of the member that leads, as the first one says.
func (c *cluster) leader() (int, error) {
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		for i, m := range c.members {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			status, err := pb.NewMaintenanceClient(m.conn).Status(ctx, &pb.StatusRequest{})
			cancel()
			if err == nil && status.Leader != 0 && status.Leader == status.Header.MemberId {
				return i, nil
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return 0, fmt.Errorf("%s has no leader", c.name)
}

// groupsLed is how many groups each member of Pontoon leads.
func (c *cluster) groupsLed() ([]int, error) {
	var led []int
	for _, m := range c.members {
		answer, err := http.Get(m.clientURL + "/metrics")
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(answer.Body)
		found := -1
		for lines.Scan() {
			if value, is := strings.CutPrefix(lines.Text(), "pontoon_groups_led "); is {
				found, err = strconv.Atoi(value)
			}
		}
		answer.Body.Close()
		if err != nil || found < 0 {
			return nil, fmt.Errorf("%s doesn't tell how many groups it leads", m.name)
		}
		led = append(led, found)
	}
	return led, nil
}

// awaitSpread waits until no member leads far more groups than another.
func (c *cluster) awaitSpread(groups int) error {
	deadline := time.Now().Add(60 * time.Second)
	for {
		led, err := c.groupsLed()
		if err != nil {
			return err
		}
		sum, least := 0, groups
		for _, n := range led {
			sum, least = sum+n, min(least, n)
		}
		if sum == groups && least >= groups/(len(led)+1) {
			fmt.Printf("groups led by each member: %v\n", led)
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("leaders are not spread: %v", led)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
