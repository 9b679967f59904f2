// Command clusters starts a cluster of one member and a cluster of three, for
// the suites of clients in other languages. It takes the server's binary and
// the flags of the three, prints where the members are, and does what it is
// told on its input, line by line, until that ends:
//
//	kill N    ends member N of the three without a warning
//	start N   starts it again, and waits until it answers
//
// Each line is answered with "done", or with what went wrong. With it ends all
// that it has started.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"pontoon/compat/clusters"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "clusters: which server?")
		os.Exit(2)
	}
	if err := serve(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "clusters:", err)
		os.Exit(1)
	}
}

func serve(binary string, flags []string) error {
	dir, err := os.MkdirTemp("", "pontoon-clusters")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	one, err := clusters.Start("one", binary, dir, 1)
	if err != nil {
		return err
	}
	defer one.Stop()
	three, err := clusters.Start("three", binary, dir, 3, flags...)
	if err != nil {
		return err
	}
	defer three.Stop()
	fmt.Println("one", places(one))
	fmt.Println("three", places(three))

	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		if err := obey(three, orders.Text()); err != nil {
			fmt.Println(err)
		} else {
			fmt.Println("done")
		}
	}
	return orders.Err()
}

// places are the addresses that clients connect to, with spaces between.
func places(c *clusters.Cluster) string {
	var all []string
	for _, m := range c.Members {
		all = append(all, strings.TrimPrefix(m.ClientURL, "http://"))
	}
	return strings.Join(all, " ")
}

func obey(three *clusters.Cluster, order string) error {
	verb, which, _ := strings.Cut(order, " ")
	at, err := strconv.Atoi(which)
	if err != nil || at < 0 || at >= len(three.Members) {
		return fmt.Errorf("there is no member %q", which)
	}
	m := three.Members[at]
	switch verb {
	case "kill":
		three.Kill(m)
		return nil
	case "start":
		if err := three.StartMember(m, "existing"); err != nil {
			return err
		}
		return three.AwaitMember(m)
	default:
		return fmt.Errorf("%q is not understood", verb)
	}
}
