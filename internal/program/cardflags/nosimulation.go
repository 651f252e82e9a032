// SPDX-License-Identifier: Apache-2.0

//go:build !simulation

package cardflags

import "github.com/gpushare/dra-driver-gpushare/pkg/gpu/source"

// Simulator is nil: the program is for real nodes, and go-nvml's mock is not in it.
func Simulator() source.Simulator { return nil }
