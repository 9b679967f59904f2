package clusters

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Terminate asks a member to end, and returns when it has.
func (c *Cluster) Terminate(m *Member) error {
	if err := m.process.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	<-m.exited
	return nil
}

// Restart starts a member that has ended, and returns when it answers.
func (c *Cluster) Restart(m *Member) error {
	if err := c.StartMember(m, "existing"); err != nil {
		return err
	}
	return c.AwaitMember(m)
}

// Pid is the process of a member.
func (m *Member) Pid() int { return m.process.Process.Pid }

// Endpoint is where clients find a member.
func (m *Member) Endpoint() string { return strings.TrimPrefix(m.ClientURL, "http://") }

// Forget takes a member out of the list, and its data off the disk.
func (c *Cluster) Forget(m *Member) error {
	for at, other := range c.Members {
		if other == m {
			c.Members = append(c.Members[:at:at], c.Members[at+1:]...)
		}
	}
	return os.RemoveAll(filepath.Join(c.dir, m.Name))
}
