package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"pontoon/compat/clusters"
)

const commandTimeout = 100 * time.Second

// recovering is what a cluster says that takes no new member, because for some
// seconds after a connection between two of its members broke it counts as
// unhealthy. On a busy machine that happens; which side says so is chance.
var recovering = regexp.MustCompile(`etcdserver: unhealthy cluster`)

const healthTimeout = 30 * time.Second

// side is one cluster, as etcdctl sees it.
type side struct {
	tool    string
	version string
	cluster *clusters.Cluster
	// What stands for the cluster's own names in commands, such as {leader}.
	names map[string]string
	// What is put in place of them in what is printed.
	normal []replacement
}

type replacement struct {
	pattern *regexp.Regexp
	by      string
}

func newSide(tool string, c *clusters.Cluster) *side {
	return &side{tool: tool, cluster: c, names: map[string]string{}}
}

// learnMembers finds out how the members are called.
func (s *side) learnMembers() error {
	said, err := exec.Command(s.tool, "version").Output()
	if err != nil {
		return err
	}
	s.version, _, _ = strings.Cut(string(said), "\n")
	leader, err := s.cluster.Leader()
	if err != nil {
		return err
	}
	var endpoints []string
	for i, m := range s.cluster.Members {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		status, err := pb.NewMaintenanceClient(m.Conn).Status(ctx, &pb.StatusRequest{})
		cancel()
		if err != nil {
			return err
		}
		endpoint := strings.TrimPrefix(m.ClientURL, "http://")
		endpoints = append(endpoints, endpoint)
		role := "{other}"
		if i == leader {
			role = "{leader}"
		}
		s.names[role] = endpoint
		s.names[strings.TrimSuffix(role, "}")+"-id}"] = fmt.Sprintf("%x", status.Header.MemberId)
		s.hide(fmt.Sprintf("%x", status.Header.MemberId), "MEMBER")
		s.hide(fmt.Sprint(status.Header.MemberId), "MEMBER")
		s.hide(fmt.Sprintf("%x", status.Header.ClusterId), "CLUSTER")
		s.hide(fmt.Sprint(status.Header.ClusterId), "CLUSTER")
		s.hide(m.ClientURL, "CLIENT")
		s.hide(endpoint, "CLIENT")
		s.hide(m.PeerURL, "PEER")
		s.hide(fmt.Sprintf(`\b%s\b`, m.Name), "NAME")
	}
	s.names["{all}"] = strings.Join(endpoints, ",")
	return nil
}

// hide puts a word in the place of a text.
func (s *side) hide(text, by string) {
	s.normal = append(s.normal, replacement{regexp.MustCompile(text), by})
}

// run does one step and returns what is printed, as it would be printed by any
// cluster.
func (s *side) run(step step) string {
	command := step.command
	for name, value := range s.names {
		command = strings.ReplaceAll(command, name, value)
	}
	arguments := split(command)
	if !strings.Contains(command, "--endpoints") {
		arguments = append([]string{"--endpoints", s.names["{all}"]}, arguments...)
	}
	output, code := s.execute(arguments, step)
	for deadline := time.Now().Add(healthTimeout); recovering.MatchString(output) && time.Now().Before(deadline); {
		time.Sleep(time.Second)
		output, code = s.execute(arguments, step)
	}
	if step.learns != nil {
		for name, pattern := range step.learns {
			if found := regexp.MustCompile(pattern).FindStringSubmatch(output); found != nil {
				s.names[name] = found[1]
				s.hide(found[1], strings.Trim(name, "{}"))
				var id uint64
				if _, err := fmt.Sscanf(found[1], "%x", &id); err == nil && id > 1<<32 {
					s.hide(fmt.Sprint(id), strings.Trim(name, "{}"))
				}
			}
		}
	}
	output = s.normalise(output)
	if inAnyOrder.MatchString(step.command) {
		words := regexp.MustCompile(`[^\s,\[\](){}"]+`).FindAllString(output, -1)
		slices.Sort(words)
		output = strings.Join(words, " ")
	}
	if step.keeps != "" {
		// Lines were in an order that what isn't kept may have decided.
		var kept []string
		for _, line := range strings.Split(output, "\n") {
			if found := regexp.MustCompile(step.keeps).FindAllString(line, -1); found != nil {
				kept = append(kept, strings.Join(found, "\n"))
			}
		}
		slices.Sort(kept)
		output = strings.Join(kept, "\n")
	}
	if step.endsAnyhow {
		return output
	}
	return fmt.Sprintf("%s\n(ends with %d)", output, code)
}

// inAnyOrder are commands that print lists in the order of ids or times.
var inAnyOrder = regexp.MustCompile(`^(lease list|lease timetolive .*--keys|member (add|list|update|remove))`)

// split cuts a command into its words; what is quoted is one.
func split(command string) (words []string) {
	for _, found := range regexp.MustCompile(`'([^']*)'|\S+`).FindAllStringSubmatch(command, -1) {
		if strings.HasPrefix(found[0], "'") {
			words = append(words, found[1])
		} else {
			words = append(words, found[0])
		}
	}
	return words
}

// execute runs etcdctl to its end, or until it has printed so many lines.
func (s *side) execute(arguments []string, step step) (output string, code int) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, s.tool, arguments...)
	input, err := command.StdinPipe()
	if err != nil {
		return err.Error(), -1
	}
	var errors bytes.Buffer
	command.Stderr = &errors
	printed, err := command.StdoutPipe()
	if err != nil {
		return err.Error(), -1
	}
	if err := command.Start(); err != nil {
		return err.Error(), -1
	}
	io.WriteString(input, step.stdin)
	if step.lines == 0 {
		input.Close()
	}
	var lines []string
	reader := bufio.NewReader(printed)
	for step.lines == 0 || len(lines) < step.lines {
		line, err := reader.ReadString('\n')
		if line != "" {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			lines = append(lines, err.Error())
			break
		}
	}
	if step.lines > 0 {
		// It would go on for ever; an interrupt lets it clean up.
		command.Process.Signal(os.Interrupt)
		command.Wait()
		return strings.Join(lines, "\n"), 0
	}
	command.Wait()
	if errors.Len() > 0 {
		lines = append(lines, "stderr: "+errors.String())
	}
	return strings.Join(lines, "\n"), command.ProcessState.ExitCode()
}

// times and sizes are those of the moment.
var everywhere = []replacement{
	{regexp.MustCompile(`took[ =]+[0-9.]+[a-zµ]+`), "took TIME"},
	{regexp.MustCompile(`"took":"[^"]*"`), `"took":"TIME"`},
	{regexp.MustCompile(`"ts":"[^"]*"`), `"ts":"TIME"`},
	{regexp.MustCompile(`"(raft_term|raftTerm)":\d+`), `"$1":TERM`},
	{regexp.MustCompile(`"(RaftTerm)" : \d+`), `"$1" : TERM`},
	{regexp.MustCompile(`"(dbSize|dbSizeInUse|raftIndex|raftAppliedIndex|dbSizeQuota|hash)":\d+`), `"$1":NUMBER`},
	{regexp.MustCompile(`"(DBSize|DBSizeInUse|RaftIndex|RaftAppliedIndex|DBSizeQuota|Hash)" : \d+`), `"$1" : NUMBER`},
	{regexp.MustCompile(`LocalAddr: '[^']*'`), "LocalAddr"},
	{regexp.MustCompile(`\b[0-9a-f]{14,16}\b`), "ID"},
	{regexp.MustCompile(`"(id|ID)":\d{10,}`), `"$1":ID`},
	{regexp.MustCompile(`remaining\(\d+s\)`), "remaining(TIME)"},
	{regexp.MustCompile(`"ttl":\d+`), `"ttl":TIME`},
	{regexp.MustCompile(`TLS handshake|connection refused`), "no connection"},
	{regexp.MustCompile(`target:"[^"]*"|"target":"[^"]*"`), "target"},
	{regexp.MustCompile(`─+`), "─"},
	{regexp.MustCompile(`--+`), "--"},
	{regexp.MustCompile(`  +`), " "},
	{regexp.MustCompile(`0x[0-9a-f]{6,}`), "POINTER"},
	{regexp.MustCompile(`\d+\.\d+/s|\d+\.\d+s`), "NUMBER"},
}

func (s *side) normalise(output string) string {
	for _, r := range slices.Concat(s.normal, everywhere) {
		output = r.pattern.ReplaceAllString(output, r.by)
	}
	if strings.Contains(output, "MEMBER") || strings.Contains(output, "CLIENT") {
		// Members come in the order of their ids.
		lines := strings.Split(output, "\n")
		slices.Sort(lines)
		output = strings.Join(lines, "\n")
	}
	return output
}
