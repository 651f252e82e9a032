// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"os"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// cluster is what TestMain found; tests do not change it.
var cluster *harness.Cluster

func TestMain(m *testing.M) { os.Exit(harness.RunTests(m, &cluster)) }
