//go:build e2e

// Package suites names what etcd's own suites need, so that `go mod tidy` keeps
// it: they are packages of tests, which are compiled and run by check-suites.
package suites

import (
	_ "go.etcd.io/etcd/tests/v3/common"
	_ "go.etcd.io/etcd/tests/v3/e2e"
	_ "go.etcd.io/etcd/tests/v3/robustness/failpoint"
	_ "go.etcd.io/etcd/tests/v3/robustness/report"
	_ "go.etcd.io/etcd/tests/v3/robustness/scenarios"
	_ "go.etcd.io/etcd/tests/v3/robustness/validate"
)
