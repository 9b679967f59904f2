// etcd is the real etcd, whole, as its own main starts it: what Pontoon is
// compared with. Its version is the one that go.mod names.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
