// SPDX-License-Identifier: Apache-2.0

package sim

import "debug/elf"

const (
	// LibraryDir holds the driver's libraries, below the driver root.
	LibraryDir = "usr/lib/x86_64-linux-gnu"
	// elfMachine is the architecture that they are for.
	elfMachine = elf.EM_X86_64
)
