// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"path/filepath"
	"time"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/mig"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
)

// partitionsLimit is how long a look at how the GPUs could be cut may take. It takes milliseconds.
const partitionsLimit = 30 * time.Second

// partitions reads how the GPUs could be cut into MIG instances, and changes nothing.
func (b *bundle) partitions(ctx context.Context, g *gpus) report.Table {
	procFS := "/proc"
	if b.simulated != "" {
		procFS = filepath.Join(b.simulated, "proc")
	}
	const what = "reading how the GPUs could be cut"
	table, err := bounded.Try(ctx, bounded.New("NVML", partitionsLimit), what, func() (report.Table, error) {
		return mig.Table(g.lib, procFS), nil
	})
	if err != nil {
		return report.Table{Mode: mig.Mode, Rows: []report.Row{{What: what, Observed: err.Error(), Result: report.NotRun}}}
	}
	return table
}
