// SPDX-License-Identifier: Apache-2.0

// Package version says which version of the driver a program is of.
package version

import (
	"cmp"
	"runtime/debug"
)

// linked is set by the linker: the Makefile has git describe the checkout.
var linked string

// String is the version that the program was linked with or, where Go built it
// alone, what Go knows of the module.
func String() string {
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		info = &debug.BuildInfo{}
	}
	return cmp.Or(linked, info.Main.Version, "(devel)")
}
