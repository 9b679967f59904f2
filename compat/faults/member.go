package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pontoon/compat/clusters"
)

// A supervisor waits this long before it starts a process again that has exited.
const restartPause = time.Second

// exitDisk is the exit code of a server whose disk has failed.
const exitDisk = 74

// member is a server's process on a disk of its own, under a supervisor that
// starts it again when it has exited, and does nothing else for it.
type member struct {
	*clusters.Member
	disk    *disk
	binary  string
	flags   []string
	logPath string
	// A client of this member alone.
	client *clientv3.Client
	health *health

	mu      sync.Mutex
	process *os.Process
	// Closed when `process` has exited.
	gone chan struct{}
	// Whether a process that exits stays so.
	held  bool
	exits []exit
}

// exit is one end of a member's process.
type exit struct {
	at time.Time
	// -1 if it was killed by a signal.
	code int
	// What the log had then.
	logBytes int64
}

func (e exit) String() string {
	if e.code < 0 {
		return "a signal"
	}
	return fmt.Sprintf("code %d", e.code)
}

// start starts the process, from now on under the supervisor.
func (m *member) start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held = false
	return m.launch()
}

func (m *member) launch() error {
	log, err := os.OpenFile(m.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	server := exec.Command(m.binary, m.flags...)
	server.Stdout, server.Stderr = log, log
	// A Ctrl-C is for the harness alone.
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := server.Start(); err != nil {
		return err
	}
	gone := make(chan struct{})
	m.process, m.gone = server.Process, gone
	go m.supervise(server, gone)
	return nil
}

func (m *member) supervise(server *exec.Cmd, gone chan struct{}) {
	server.Wait()
	m.mu.Lock()
	m.exits = append(m.exits, exit{time.Now(), server.ProcessState.ExitCode(), m.logBytes()})
	close(gone)
	m.mu.Unlock()
	time.Sleep(restartPause)
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.held && m.gone == gone {
		if err := m.launch(); err != nil {
			fmt.Fprintf(os.Stderr, "%s doesn't start: %v\n", m.Name, err)
		}
	}
}

// end kills the process and waits until it has exited; it stays so until start.
// A process that waits for a frozen disk can't exit: thaw that first.
func (m *member) end() {
	m.mu.Lock()
	m.held = true
	process, gone := m.process, m.gone
	m.mu.Unlock()
	if process != nil {
		process.Kill()
		<-gone
	}
}

func (m *member) signal(signal syscall.Signal) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.gone:
		return fmt.Errorf("%s doesn't run", m.Name)
	default:
		return m.process.Signal(signal)
	}
}

func (m *member) exitCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.exits)
}

// exitsFrom are those after the first `count`.
func (m *member) exitsFrom(count int) []exit {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]exit(nil), m.exits[count:]...)
}

// refuses says whether nobody listens at the member's ports, neither for
// clients nor for members.
func (m *member) refuses() bool {
	for _, url := range []string{m.ClientURL, m.PeerURL} {
		conn, err := net.DialTimeout("tcp", strings.TrimPrefix(url, "http://"), time.Second)
		if err == nil {
			conn.Close()
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return false
		}
	}
	return true
}

func (m *member) logBytes() int64 {
	info, err := os.Stat(m.logPath)
	if err != nil {
		return 0
	}
	return info.Size()
}

// logFrom are the lines that were logged after an earlier logBytes.
func (m *member) logFrom(offset int64) []string { return m.logBetween(offset, m.logBytes()) }

// logBetween are the lines that were logged between two earlier logBytes.
func (m *member) logBetween(from, until int64) []string {
	text, _ := os.ReadFile(m.logPath)
	if from >= until || until > int64(len(text)) {
		return nil
	}
	return strings.Split(strings.TrimSpace(colours.ReplaceAllString(string(text[from:until]), "")), "\n")
}

var (
	colours   = regexp.MustCompile(`\x1b\[[0-9;]*m`)
	operation = regexp.MustCompile(`(?i)write|append|sync|open|create|rename|truncate|allocate|read|remove`)
	errno     = regexp.MustCompile(`(?i)os error \d+|errno\W{0,2}\d+|\bE(IO|ROFS|NOSPC)\b`)
)

// errorLines are the lines with level ERROR, and how many of them name a file
// of the member's disk, an operation and an errno.
func (m *member) errorLines(lines []string) (all []string, complete int) {
	for _, line := range lines {
		if !strings.Contains(line, " ERROR ") {
			continue
		}
		all = append(all, line)
		if m.namesCause(line) {
			complete++
		}
	}
	return all, complete
}

// namesCause says whether a line names a file of the member's disk, an
// operation and an errno.
func (m *member) namesCause(line string) bool {
	return strings.Contains(line, m.disk.mount) && operation.MatchString(line) && errno.MatchString(line)
}

// logLinesMax is the largest number of lines logged within ten seconds.
func logLinesMax(lines []string) (count int) {
	var times []time.Time
	for _, line := range lines {
		word, _, _ := strings.Cut(line, " ")
		at, err := time.Parse(time.RFC3339Nano, word)
		if err != nil {
			// A line without a time came with the one before.
			if len(times) == 0 {
				continue
			}
			at = times[len(times)-1]
		}
		times = append(times, at)
		first := 0
		for times[first].Before(at.Add(-10 * time.Second)) {
			first++
		}
		times = times[first:]
		count = max(count, len(times))
	}
	return count
}
