// Runs etcdctl's vocabulary against a real etcd and against Pontoon, and
// compares what it prints.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"

	"pontoon/compat/clusters"
)

func main() {
	etcd := flag.String("etcd", "", "the real etcd")
	pontoon := flag.String("pontoon", "", "the server that is compared with it")
	flag.Parse()
	if err := compareAll(*etcd, *pontoon, flag.Args()); err != nil {
		fmt.Fprintf(os.Stderr, "\nDIFFERENT: %v\n", err)
		os.Exit(1)
	}
}

// compareAll compares with each etcdctl, with one member and with three.
func compareAll(etcd, pontoon string, tools []string) error {
	if len(tools) == 0 {
		return fmt.Errorf("no etcdctl is named")
	}
	dir, err := os.MkdirTemp("", "pontoon-etcdctl")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var wrong []error
	for at, tool := range tools {
		for _, count := range []int{1, 3} {
			name := fmt.Sprintf("%d-%d", at, count)
			if err := compare(etcd, pontoon, tool, dir+"/"+name, count); err != nil {
				wrong = append(wrong, fmt.Errorf("%s, %d members: %w", tool, count, err))
			}
		}
	}
	if len(wrong) > 0 {
		return errors.Join(wrong...)
	}
	fmt.Println("etcdctl can't tell etcd and Pontoon apart")
	return nil
}

func compare(etcd, pontoon, tool, dir string, count int) error {
	a, err := clusters.Start("etcd", etcd, dir, count, "--unsafe-no-fsync")
	if err != nil {
		return err
	}
	defer a.Stop()
	b, err := clusters.Start("pontoon", pontoon, dir, count)
	if err != nil {
		return err
	}
	defer b.Stop()
	sides := []*side{newSide(tool, a), newSide(tool, b)}
	for _, s := range sides {
		if err := s.learnMembers(); err != nil {
			return err
		}
	}
	compared, different := 0, 0
	for _, step := range steps(strings.Contains(sides[0].version, "3.4"), count) {
		var said [2]string
		var group sync.WaitGroup
		for i, s := range sides {
			group.Go(func() { said[i] = s.run(step) })
		}
		group.Wait()
		compared++
		if said[0] != said[1] {
			different++
			fmt.Printf("--- etcdctl %s\netcd:\n%s\npontoon:\n%s\n", step.command, said[0], said[1])
		}
	}
	fmt.Printf("%s, %d members: %d commands, %d different\n", sides[0].version, count, compared, different)
	if different > 0 {
		return fmt.Errorf("%d commands", different)
	}
	return nil
}
