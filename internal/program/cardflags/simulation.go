// SPDX-License-Identifier: Apache-2.0

//go:build simulation

package cardflags

import (
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/sim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/source"
)

// Simulator simulates GPUs, in programs for demonstrations and tests.
func Simulator() source.Simulator { return sim.Open }
