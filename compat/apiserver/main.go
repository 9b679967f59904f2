// apiserver has a real kube-apiserver, a proxy that records what it asks of its
// store, a load of nodes and pods to make it ask, and a table of what was asked.
// `compat/check-k8s-mix` uses all of them.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	command, words := os.Args[1], os.Args[2:]
	flags := flag.NewFlagSet(command, flag.ExitOnError)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch command {
	case "server":
		server := app.NewAPIServerCommand()
		server.SetArgs(words)
		os.Exit(cli.Run(server))
	case "record":
		listen := flags.String("listen", "127.0.0.1:0", "where to listen")
		to := flags.String("to", "127.0.0.1:2379", "the store")
		out := flags.String("out", "requests", "the file that requests are written to")
		flags.Parse(words)
		err = record(ctx, *listen, *to, *out)
	case "drive":
		load := load{}
		flags.StringVar(&load.server, "server", "https://127.0.0.1:6443", "the kube-apiserver")
		flags.IntVar(&load.nodes, "nodes", 20, "nodes")
		flags.Float64Var(&load.churn, "pod-churn", 720, "pods that are born on each node in an hour")
		flags.DurationVar(&load.lasts, "duration", time.Minute, "how long")
		flags.Parse(words)
		err = load.run(ctx)
	case "mix":
		flags.Parse(words)
		err = compareMixes(flags.Args())
	default:
		usage()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "apiserver %s: %v\n", command, err)
		os.Exit(1)
	}
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: apiserver server|record|drive|mix …")
	os.Exit(2)
}
