// Package clusters starts clusters of etcd or Pontoon on loopback.
package clusters

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Requests larger than what the servers take must reach them.
const messageBytesMax = 64 << 20

// Cluster is a number of members of one program, on loopback, in one directory.
type Cluster struct {
	Name    string
	binary  string
	dir     string
	flags   []string
	Members []*Member
}

// Member is one of them.
type Member struct {
	Name      string
	ClientURL string
	PeerURL   string
	process   *exec.Cmd
	exited    chan struct{}
	Conn      *grpc.ClientConn
}

// Start starts members and returns when all of them answer.
// Pontoon takes etcd's flags, so there is one way to start both.
func Start(name, binary, dir string, count int, flags ...string) (*Cluster, error) {
	c := &Cluster{Name: name, binary: binary, dir: filepath.Join(dir, name), flags: flags}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return nil, err
	}
	for i := range count {
		m, err := NewMember(fmt.Sprintf("m%d", i))
		if err != nil {
			return nil, err
		}
		c.Members = append(c.Members, m)
	}
	for _, m := range c.Members {
		if err := c.StartMember(m, "new"); err != nil {
			c.Stop()
			return nil, err
		}
	}
	for _, m := range c.Members {
		if err := c.AwaitMember(m); err != nil {
			c.Stop()
			return nil, err
		}
	}
	return c, nil
}

// NewMember has a name and places to listen at, and doesn't run yet.
func NewMember(name string) (*Member, error) {
	m := &Member{Name: name}
	var err error
	if m.ClientURL, err = freeURL(); err != nil {
		return nil, err
	}
	m.PeerURL, err = freeURL()
	return m, err
}

// nextPort counts the ports that were looked at. Other processes look for some
// too, so each begins elsewhere.
var nextPort atomic.Uint32

func init() { nextPort.Store(uint32(os.Getpid()) * 97) }

// freeURL has a port that nobody has now. It is below those that the system gives
// away, so nobody gets it by chance before it is used.
func freeURL() (string, error) {
	for range 1000 {
		address := fmt.Sprintf("127.0.0.1:%d", 10_000+nextPort.Add(1)%20_000)
		if listener, err := net.Listen("tcp", address); err == nil {
			listener.Close()
			return "http://" + address, nil
		}
	}
	return "", errors.New("no port is free")
}

// Arguments start a member with others in a new or an existing cluster.
func Arguments(m *Member, members []*Member, dataDir, state string) []string {
	var initial []string
	for _, other := range members {
		initial = append(initial, other.Name+"="+other.PeerURL)
	}
	return []string{
		"--name=" + m.Name,
		"--data-dir=" + dataDir,
		"--listen-client-urls=" + m.ClientURL,
		"--advertise-client-urls=" + m.ClientURL,
		"--listen-peer-urls=" + m.PeerURL,
		"--initial-advertise-peer-urls=" + m.PeerURL,
		"--initial-cluster=" + strings.Join(initial, ","),
		"--initial-cluster-state=" + state,
	}
}

// StartMember starts one, of a new or an existing cluster.
func (c *Cluster) StartMember(m *Member, state string) error {
	arguments := Arguments(m, c.Members, filepath.Join(c.dir, m.Name), state)
	arguments = append(append(arguments, "--log-level=warn"), c.flags...)
	log, err := os.OpenFile(c.logPath(m), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	m.process = exec.Command(c.binary, arguments...)
	m.process.Stdout, m.process.Stderr = log, log
	m.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.process.Start(); err != nil {
		return fmt.Errorf("%s doesn't start: %w", c.Name, err)
	}
	exited := make(chan struct{})
	m.exited = exited
	process := m.process
	go func() {
		process.Wait()
		close(exited)
	}()
	if m.Conn == nil {
		m.Conn, err = grpc.NewClient(strings.TrimPrefix(m.ClientURL, "http://"),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytesMax)))
	}
	return err
}

// AwaitMember waits until a member answers.
func (c *Cluster) AwaitMember(m *Member) error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err := pb.NewKVClient(m.Conn).Range(ctx, &pb.RangeRequest{Key: []byte("x")}, grpc.WaitForReady(true))
		cancel()
		switch {
		case err == nil:
			return nil
		case c.hasExited(m):
			return fmt.Errorf("%s %s has ended:\n%s", c.Name, m.Name, c.logTail(m))
		case time.Now().After(deadline):
			return fmt.Errorf("%s %s doesn't answer: %v\n%s", c.Name, m.Name, err, c.logTail(m))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (c *Cluster) hasExited(m *Member) bool {
	select {
	case <-m.exited:
		return true
	default:
		return false
	}
}

func (c *Cluster) logPath(m *Member) string {
	return filepath.Join(c.dir, m.Name+".log")
}

// logTail is the end of what a member said.
func (c *Cluster) logTail(m *Member) string {
	text, _ := os.ReadFile(c.logPath(m))
	return string(text[max(0, len(text)-2000):])
}

// Crashed names a member that has ended by itself, with its last words.
func (c *Cluster) Crashed() string {
	for _, m := range c.Members {
		if c.hasExited(m) {
			return fmt.Sprintf("%s %s has ended:\n%s", c.Name, m.Name, c.logTail(m))
		}
	}
	return ""
}

// Kill ends a member without a warning.
func (c *Cluster) Kill(m *Member) {
	if m.process != nil {
		m.process.Process.Kill()
		<-m.exited
	}
}

// Stop ends all members.
func (c *Cluster) Stop() {
	for _, m := range c.Members {
		if m.Conn != nil {
			m.Conn.Close()
		}
		c.Kill(m)
	}
}

// Leader is the index of the member that leads, as the first one says.
func (c *Cluster) Leader() (int, error) {
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		for i, m := range c.Members {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			status, err := pb.NewMaintenanceClient(m.Conn).Status(ctx, &pb.StatusRequest{})
			cancel()
			if err == nil && status.Leader != 0 && status.Leader == status.Header.MemberId {
				return i, nil
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return 0, fmt.Errorf("%s has no leader", c.Name)
}

// groupsLed is how many groups each member of Pontoon leads.
func (c *Cluster) groupsLed() ([]int, error) {
	var led []int
	for _, m := range c.Members {
		answer, err := http.Get(m.ClientURL + "/metrics")
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
			return nil, fmt.Errorf("%s doesn't tell how many groups it leads", m.Name)
		}
		led = append(led, found)
	}
	return led, nil
}

// AwaitSpread waits until no member leads far more groups than another.
func (c *Cluster) AwaitSpread(groups int) error {
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
