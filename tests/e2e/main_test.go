// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/tests/e2e/harness"
)

// cluster is what TestMain found; tests do not change it.
var cluster *harness.Cluster

func TestMain(m *testing.M) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if cluster, err = harness.Open(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "end-to-end tests:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
