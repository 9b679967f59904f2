package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// classes are the kinds of requests that the profile of `pontoon-bench k8s` has,
// and what a real kube-apiserver asks besides.
var classes = []string{
	"lease renewal", "node status", "pod write", "event", "other write", "get", "list page", "lease grant", "compact",
	"watch", "besides: writes", "besides: reads", "besides: others",
}

// class says which kind a request is.
func class(r request) string {
	_, path, found := strings.Cut(r.Key, "/registry/")
	in := func(folders ...string) bool {
		return found && slices.ContainsFunc(folders, func(folder string) bool { return strings.HasPrefix(path, folder) })
	}
	switch {
	case strings.HasSuffix(r.Key, "compact_rev_key") || r.Method == "/etcdserverpb.KV/Compact":
		return "compact"
	case r.Method == "/etcdserverpb.Lease/LeaseGrant":
		return "lease grant"
	case r.Method == "/etcdserverpb.Watch/Watch" && r.Deed == "create":
		return "watch"
	case r.Method == "/etcdserverpb.KV/Txn" || r.Method == "/etcdserverpb.KV/Put":
		switch {
		case in("leases/kube-node-lease/"):
			return "lease renewal"
		case in("minions/"):
			return "node status"
		case in("pods/"):
			return "pod write"
		case in("events/"):
			return "event"
		case in("endpointslices/", "replicasets/"):
			return "other write"
		}
		return "besides: writes"
	case r.Method == "/etcdserverpb.KV/Range" || r.Method == "/etcdserverpb.KV/RangeStream":
		switch {
		case r.Many:
			return "list page"
		case in("pods/"):
			return "get"
		}
		return "besides: reads"
	}
	return "besides: others"
}

// mix is what one recording has of a kind.
type mix struct {
	count  int
	values []int
	deeds  map[string]int
}

func (m *mix) median() int {
	if len(m.values) == 0 {
		return 0
	}
	slices.Sort(m.values)
	return m.values[len(m.values)/2]
}

func (m *mix) describe() string {
	var parts []string
	for deed, count := range m.deeds {
		parts = append(parts, fmt.Sprintf("%s %d", deed, count))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

func readMix(path string) (map[string]*mix, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	found := map[string]*mix{}
	for decoder := json.NewDecoder(file); ; {
		var r request
		if err := decoder.Decode(&r); errors.Is(err, io.EOF) {
			return found, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		name := class(r)
		m := found[name]
		if m == nil {
			m = &mix{deeds: map[string]int{}}
			found[name] = m
		}
		m.count++
		if r.Deed != "" {
			m.deeds[r.Deed]++
		}
		if r.Value > 0 {
			m.values = append(m.values, r.Value)
		}
	}
}

// compareMixes prints recordings side by side. What a pod's life costs is told
// per pod that was born, so that it doesn't matter how many were.
func compareMixes(paths []string) error {
	if len(paths) == 0 {
		return errors.New("no recording is named")
	}
	var mixes []map[string]*mix
	for _, path := range paths {
		m, err := readMix(path)
		if err != nil {
			return err
		}
		mixes = append(mixes, m)
	}
	fmt.Print("| requests |")
	for _, path := range paths {
		fmt.Printf(" %s | per pod | median value | deeds |", path)
	}
	fmt.Printf("\n|---|%s\n", strings.Repeat("---|---|---|---|", len(paths)))
	for _, name := range classes {
		fmt.Printf("| %s |", name)
		for _, m := range mixes {
			of := m[name]
			if of == nil {
				fmt.Print(" 0 | | | |")
				continue
			}
			perPod := ""
			if born := m["pod write"]; born != nil && born.deeds["create"] > 0 {
				perPod = fmt.Sprintf("%.1f", float64(of.count)/float64(born.deeds["create"]))
			}
			fmt.Printf(" %d | %s | %d | %s |", of.count, perPod, of.median(), of.describe())
		}
		fmt.Println()
	}
	return nil
}
